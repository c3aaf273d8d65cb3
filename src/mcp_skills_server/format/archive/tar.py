"""Tar archives: read plain or packed, as ustar, v7, GNU or PAX; written as gzipped ustar or PAX."""

from __future__ import annotations

import re
import stat
import struct
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from mcp_skills_server.format.archive.tree import (
    ArchiveRefusedError,
    Tree,
    UnpackLimits,
    check_ratio,
    decode_name,
)
from mcp_skills_server.format.excerpts import quoted

GZIP: Final = b"\x1f\x8b"
XZ: Final = b"\xfd7zXZ\0"
_XZ_MEMORY: Final = 128 << 20
"""Bytes that unpacking may take for its dictionary; `xz -9` writes for 65 MiB."""
_FIELDS: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_BLOCK: Final = _FIELDS.size
_ZEROS: Final = bytes(_BLOCK)
_MAX_PADDING: Final = 1 << 20
_PIECE: Final = 1 << 16
_MAX_OCTAL: Final = 8**11
_NO_CHECKSUM: Final = b" " * 8
"""What stands in place of the checksum while it is computed."""
_LINKS: Final = {b"1": "hard link", b"2": "symbolic link", b"K": "link"}
_DEVICES: Final = {b"3": "device", b"4": "device", b"6": "named pipe"}


class _Inflated:
    """A packed stream that is decompressed on demand, at most one piece of 64 KiB ahead."""

    def __init__(self, raw: bytes, limits: UnpackLimits) -> None:
        self._raw = memoryview(raw)
        self._next = 0
        self._limits = limits
        self._given = 0
        # A memoryview: reading part of a piece does not copy its rest.
        self._left = memoryview(b"")
        self._errors: tuple[type[Exception], ...] = (zlib.error,)
        self._inflate: Any = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: with a gzip header
        if raw.startswith(XZ):
            try:
                import lzma  # some builds of Python lack it
            except ImportError:
                text = "this Python cannot read .tar.xz; pack it as .tar.gz"
                raise ArchiveRefusedError(text) from None
            self._errors = (lzma.LZMAError,)
            self._inflate = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)

    def _piece(self) -> bytes:
        """Decompress and return the next piece, or b"" at the end of the stream."""
        while not self._inflate.eof:
            # xz keeps what it did not consume
            feed: bytes | memoryview = getattr(self._inflate, "unconsumed_tail", b"")
            if not feed:
                feed = self._raw[self._next : self._next + _PIECE]
                self._next += len(feed)
            try:
                piece = self._inflate.decompress(feed, _PIECE)
            except self._errors:
                raise ArchiveRefusedError(
                    "the archive is damaged: its packed stream cannot be read"
                ) from None
            if piece:
                self._given += len(piece)
                check_ratio(self._given, len(self._raw), self._limits)
                return piece
            if not feed and not self._inflate.eof:
                raise ArchiveRefusedError("the archive is truncated: its packed stream never ends")
        return b""

    def read(self, size: int) -> bytes:
        """Return exactly the next `size` bytes."""
        parts: list[memoryview] = []
        missing = size
        while missing:
            piece = self._left or memoryview(self._piece())
            if not piece:
                raise ArchiveRefusedError("the archive is truncated: its tar never ends")
            parts.append(piece[:missing])
            self._left = piece[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def finish(self) -> None:
        """Check that only zero padding follows, up to 1 MiB, nothing after the packed stream."""
        padding = 0
        while piece := bytes(self._left) or self._piece():
            self._left = memoryview(b"")
            padding += len(piece)
            if piece.strip(b"\0") or padding > _MAX_PADDING:
                raise ArchiveRefusedError("data follows the end of the tar")
        if self._inflate.unused_data or self._next < len(self._raw):
            raise ArchiveRefusedError("data follows the end of the packed stream")


def is_tar(raw: bytes) -> bool:
    """Tell whether this is a tar that is not packed."""
    return raw[257:262] == b"ustar"  # the field `magic` of the first header


def read_tar(raw: bytes, limits: UnpackLimits, tree: Tree) -> None:
    """Add the files of a `.tar`, `.tar.gz` or `.tar.xz` to the tree.

    Raises:
        ArchiveRefusedError: as for `unpack`.
    """
    if is_tar(raw) and not raw.startswith((GZIP, XZ)):
        raw = _gzip(raw)  # one reader with one set of rules sees all
    stream = _Inflated(raw, limits)
    name: str | None = None  # from an extension header, for the next member
    size: int | None = None
    while (head := stream.read(_BLOCK)) != _ZEROS:
        tree.count()
        own = _parse_head(head)
        kind, shown = own.kind, name or own.name
        if kind in {b"x", b"g", b"L"}:
            tree.count_header(own.size)
            content = stream.read(own.size + -own.size % _BLOCK)[: own.size]
            if kind == b"L":
                name = decode_name(content.rstrip(b"\0"))
                continue
            fields = _pax_fields(content)
            if kind == b"g" and fields:
                raise ArchiveRefusedError("the archive gives all members one name or size")
            name, size = fields.get("path", name), _decimal(fields.get("size"), size)
            continue
        if kind in _LINKS:  # what is left of `kind` after these three: a file, or a directory
            raise ArchiveRefusedError(f"{quoted(shown)} is a {_LINKS[kind]}")
        if kind in _DEVICES:
            raise ArchiveRefusedError(f"{quoted(shown)} is a {_DEVICES[kind]}")
        if kind not in {b"0", b"\0", b"7", b"5"}:
            raise ArchiveRefusedError(
                f"{quoted(shown)} is of a kind that no skill needs (type "
                f"{quoted(kind.decode('latin-1'))})"
            )
        if size is not None and own.size not in {0, size}:
            raise ArchiveRefusedError(f"{quoted(shown)} has two sizes")
        path, slash = tree.parse_name(own.name if name is None else name)
        length = own.size if size is None else size
        name = size = None
        if kind == b"5" or (slash and kind == b"\0"):
            if length:
                raise ArchiveRefusedError(f"the directory {quoted(shown)} has content")
            if path:
                tree.add_directory(path)
            continue
        if slash:
            raise ArchiveRefusedError(f"the file {quoted(shown)} has the name of a directory")
        tree.reserve(path, length)
        content = stream.read(length)
        stream.read(-length % _BLOCK)
        tree.store(path, content, bool(own.mode & stat.S_IXUSR))
    if name is not None or size is not None:
        raise ArchiveRefusedError("the archive is damaged: no member follows a header")
    if stream.read(_BLOCK) != _ZEROS:
        raise ArchiveRefusedError("data follows the end of the tar")
    stream.finish()


class _Head(NamedTuple):
    """A header block: the type flag of the member, its name, size in bytes and mode."""

    kind: bytes
    name: str
    size: int
    mode: int


def _parse_head(head: bytes) -> _Head:
    """Parse a header block after verifying its checksum."""
    name, mode, _, _, size, _, checksum, kind, _, magic, *_, prefix = _FIELDS.unpack(head)
    if _octal(checksum) != sum(head) - sum(checksum) + sum(_NO_CHECKSUM):
        raise ArchiveRefusedError("the archive is damaged: the checksum of a tar header is wrong")
    name, prefix = name.partition(b"\0")[0], prefix.partition(b"\0")[0]
    if magic.startswith(b"ustar\0") and prefix:  # GNU's variant has other fields in its place
        name = b"%s/%s" % (prefix, name)
    # Invalid UTF-8 passes here: a name that an extension header replaces may be cut in a character.
    return _Head(kind, name.decode("utf-8", "surrogateescape"), _octal(size), _octal(mode))


def _octal(field: bytes) -> int:
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise ArchiveRefusedError(
            "the archive is damaged, or holds a file larger than tar allows: a number is not octal"
        )
    return int(digits or b"0", 8)


def _decimal(text: str | None, otherwise: int | None) -> int | None:
    if text is None:
        return otherwise
    if not re.fullmatch("[0-9]{1,15}", text):
        raise ArchiveRefusedError("the archive is damaged: a size in a PAX header is not a number")
    return int(text)


def _pax_fields(raw: bytes) -> dict[str, str]:
    """Return `path` and `size` of a PAX header, and ignore times, owners and comments."""
    fields: dict[str, str] = {}
    at = 0
    while at < len(raw):
        digits, space, _ = raw[at : at + 8].partition(b" ")
        # Without a length, or with one too small, the record below is empty and has no "=".
        end = at + int(digits) if space and digits.isdigit() else at
        key, equals, value = raw[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(raw) or raw[end - 1 : end] != b"\n":
            raise ArchiveRefusedError("the archive is damaged: a PAX header cannot be read")
        if key.startswith(b"GNU.sparse."):
            raise ArchiveRefusedError("the archive holds a sparse file")
        if key in {b"path", b"size"}:
            fields[key.decode()] = decode_name(value)
        at = end
    return fields


# Writing


def fits_ustar(path: str, size: int) -> bool:
    """Tell whether a ustar header can hold this path and size."""
    return _ustar_head(path, size, executable=False) is not None


def write_tar(members: Iterable[tuple[str, tuple[bytes, bool]]]) -> bytes:
    """Return these files as a `.tar.gz`, with PAX headers for the names that ustar cannot hold.

    Raises:
        ArchiveRefusedError: a file is too large for the format.
    """
    parts: list[bytes] = []
    for path, (raw, executable) in members:
        head = _ustar_head(path, len(raw), executable)
        if head is None:
            record = _pax_record("path", path)
            extended = _ustar_head("PaxHeader", len(record), executable=False, kind=b"x")
            head = _ustar_head("named-before", len(raw), executable)
            if head is None or extended is None:
                raise ArchiveRefusedError(f"a file of {len(raw)} bytes is too large for a .tar.gz")
            parts += [extended, *_padded(record)]
        parts += [head, *_padded(raw)]
    return _gzip(b"".join((*parts, _ZEROS, _ZEROS)))


def _pax_record(key: str, value: str) -> bytes:
    """Return a record of a PAX header, which begins with its own length."""
    rest = f" {key}={value}\n".encode()
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _ustar_head(path: str, size: int, executable: bool, kind: bytes = b"0") -> bytes | None:
    """Return the ustar header block of a member, or None if ustar cannot hold its path or size."""
    if not path.isascii() or size >= _MAX_OCTAL:
        return None
    prefix, name = b"", path.encode("ascii")
    if len(name) > 100:
        cut = name.find(b"/", len(name) - 101)
        if not 0 < cut <= 155:
            return None
        prefix, name = name[:cut], name[cut + 1 :]
    head = _FIELDS.pack(
        *(name, b"%07o" % (0o755 if executable else 0o644), b"0000000", b"0000000"),
        *(b"%011o" % size, b"%011o" % 0, _NO_CHECKSUM, kind, b"", b"ustar\x0000"),
        *(b"", b"", b"0000000", b"0000000", prefix),
    )
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]  # with the checksum in its field


def _padded(raw: bytes) -> tuple[bytes, bytes]:
    return raw, bytes(-len(raw) % _BLOCK)


def _gzip(raw: bytes) -> bytes:
    """Return a gzip member of stored blocks, without a time or a file name."""
    view = memoryview(raw)
    parts: list[bytes | memoryview] = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
    for start in range(0, len(raw), 0xFFFF):
        block = view[start : start + 0xFFFF]
        last = start + 0xFFFF >= len(raw)
        parts += [struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF), block]
    parts.append(struct.pack("<LL", zlib.crc32(raw), len(raw) & 0xFFFFFFFF))
    return b"".join(parts)
