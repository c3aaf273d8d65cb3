"""Archives, written: the same files give the same bytes anywhere.

The standard library's writers leave marks of the machine (PAX headers, versions of zlib). What is written here is
stored, not compressed: different builds of zlib (zlib-ng, Apple's, hardware) compress the same input to different
bytes, and a digest in an index must not depend on who computed it. A deflate stream of stored blocks has one spelling.
It costs transfer: 148 public skills came to three and a half times their compressed size, the median one to 60 KiB.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Mapping
from typing import Final

from mcp_skills_server.format.archive.tar_reader import BLOCK, ZEROS
from mcp_skills_server.format.archive.tree import ArchiveRefusedError, Files, check_name
from mcp_skills_server.format.archive.zip_reader import (
    CENTRAL,
    CENTRAL_HEAD,
    END,
    END_RECORD,
    LOCAL,
    LOCAL_HEAD,
    MOST_BYTES,
    MOST_MEMBERS,
    STORED,
    UNIX,
)

TAR_GZ: Final = ".tar.gz"
ZIP: Final = ".zip"
MEDIA_TYPES: Final[Mapping[str, str]] = {TAR_GZ: "application/gzip", ZIP: "application/zip"}
"""By suffix."""
_MAX_OCTAL: Final = 8**11
_UTF8: Final = 0x800
_1980: Final = 1 << 5 | 1


def pack(files: Files) -> tuple[str, bytes]:
    """Return the archive of a skill as (suffix, bytes): `.tar.gz`, or `.zip` where ustar cannot hold a name.

    Files stand at the root, sorted by path, with mode 0644 or 0755 and nothing else of the machine they came from: no
    owner, no time, no directories, no links, no `./`. A zip is taken when a name is not ASCII or does not fit 100 bytes
    and a prefix of 155. The bytes are the same on every machine.

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or the files are too large for the format.
    """
    members = sorted(files.items())
    for path, _ in members:
        check_name(path)
    heads = [_ustar_head(path, len(raw), executable) for path, (raw, executable) in members]
    if None in heads:
        return ZIP, _zip(members)
    blocks = [
        part for head, (_, (raw, _)) in zip(heads, members, strict=True) if head for part in (head, *_padded(raw))
    ]
    return TAR_GZ, _gzip(b"".join((*blocks, ZEROS, ZEROS)))


def pack_tar(files: Files) -> bytes:
    """Return the same as a `.tar.gz` whatever the names are, for those who read no other format.

    A name that ustar cannot hold stands in a PAX header before its member.

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or a file is too large for the format.
    """
    parts: list[bytes] = []
    for path, (raw, executable) in sorted(files.items()):
        check_name(path)
        head = _ustar_head(path, len(raw), executable)
        if head is None:
            record = _pax_record("path", path)
            extended = _ustar_head("PaxHeader", len(record), executable=False, kind=b"x")
            head = _ustar_head("named-before", len(raw), executable)
            if head is None or extended is None:
                raise ArchiveRefusedError(f"a file of {len(raw)} bytes is too large for a .tar.gz")
            parts += [extended, *_padded(record)]
        parts += [head, *_padded(raw)]
    return _gzip(b"".join((*parts, ZEROS, ZEROS)))


def _pax_record(key: str, value: str) -> bytes:
    """Return a record of a PAX header, which begins with its own length."""
    rest = f" {key}={value}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _ustar_head(path: str, size: int, executable: bool, kind: bytes = b"0") -> bytes | None:
    """Return the header block of a regular file, or None where ustar cannot hold it."""
    if not path.isascii() or size >= _MAX_OCTAL:
        return None
    prefix, name = b"", path.encode("ascii")
    if len(name) > 100:
        cut = name.find(b"/", len(name) - 101)
        if not 0 < cut <= 155:
            return None
        prefix, name = name[:cut], name[cut + 1 :]
    head = struct.pack(
        "100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x",
        *(name, b"%07o" % (0o755 if executable else 0o644), b"0000000", b"0000000"),
        *(b"%011o" % size, b"%011o" % 0, b" " * 8, kind, b"", b"ustar\x0000"),
        *(b"", b"", b"0000000", b"0000000", prefix),
    )
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def _padded(raw: bytes) -> tuple[bytes, bytes]:
    return raw, bytes(-len(raw) % BLOCK)


def _gzip(raw: bytes) -> bytes:
    """Return a gzip member without time or name, of stored blocks."""
    view = memoryview(raw)
    parts: list[bytes | memoryview] = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
    for start in range(0, len(raw), 0xFFFF):
        block = view[start : start + 0xFFFF]
        last = start + 0xFFFF >= len(raw)
        parts += [struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF), block]
    parts.append(struct.pack("<LL", zlib.crc32(raw), len(raw) & 0xFFFFFFFF))
    return b"".join(parts)


def _zip(members: list[tuple[str, tuple[bytes, bool]]]) -> bytes:
    parts: list[bytes] = []
    central: list[bytes] = []
    offset = 0
    for path, (raw, executable) in members:
        name = path.encode()
        mode = stat.S_IFREG | (0o755 if executable else 0o644)
        shared = (20, _UTF8, STORED, 0, _1980, zlib.crc32(raw), len(raw), len(raw), len(name), 0)
        if offset + len(raw) + len(name) + LOCAL_HEAD.size >= MOST_BYTES or len(central) + 1 >= MOST_MEMBERS:
            raise ArchiveRefusedError("the skill is too large for a .zip of 65,534 files and 4 GiB")
        central.append(CENTRAL_HEAD.pack(CENTRAL, UNIX << 8 | 20, *shared, 0, 0, 0, mode << 16, offset) + name)
        parts += [LOCAL_HEAD.pack(LOCAL, *shared) + name, raw]
        offset += LOCAL_HEAD.size + len(name) + len(raw)
    size = sum(map(len, central))
    end = END_RECORD.pack(END, 0, 0, len(central), len(central), size, offset, 0)
    return b"".join((*parts, *central, end))
