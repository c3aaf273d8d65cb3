"""Zip archives: read strictly, without a gap or overlap between members; written uncompressed."""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.format.archive.tree import (
    ArchiveRefusedError,
    Tree,
    UnpackLimits,
    check_ratio,
    decode_name,
)
from mcp_skills_server.format.excerpts import quoted

LOCAL: Final = b"PK\3\4"
_CENTRAL: Final = b"PK\1\2"
END: Final = b"PK\5\6"
_DESCRIPTOR: Final = b"PK\7\10"
# signature, version, flags, method, time, date, crc, packed, size, lengths of name and extra
_LOCAL_HEAD: Final = struct.Struct("<4s5H3L2H")
# signature, made by, version, flags, method, time, date, crc, packed, size, lengths of name, extra
# and comment, disk, internal and external attributes, offset of the local head
_CENTRAL_HEAD: Final = struct.Struct("<4s6H3L5H2L")
_END_RECORD: Final = struct.Struct("<4s4H2LH")
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_STREAMED: Final = 0x8
_UTF8: Final = 0x800
_1980: Final = 1 << 5 | 1
_STORED: Final = 0
_DEFLATED: Final = 8
_UNIX: Final = 3
_DARWIN: Final = 19
_MAX_MEMBERS: Final = 0xFFFF
_MAX_BYTES: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of a zip as its central directory describes it."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    offset: int

    @property
    def shown(self) -> str:
        return quoted(self.name.decode("utf-8", "backslashreplace"))


def read_zip(raw: bytes, limits: UnpackLimits, tree: Tree) -> None:
    """Add the files of a `.zip` to the tree.

    Raises:
        ArchiveRefusedError: as for `unpack`.
    """
    directory_at, members = _central_directory(raw, tree)
    check_ratio(sum(member.size for member in members), len(raw), limits)
    contents = _contents(raw, directory_at, members)
    for member, (begin, end) in zip(members, contents, strict=True):
        path, is_directory = tree.parse_name(decode_name(member.name))
        kind = stat.S_IFMT(member.mode)
        if kind == stat.S_IFLNK:
            raise ArchiveRefusedError(f"{member.shown} is a symbolic link")
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            raise ArchiveRefusedError(f"{member.shown} is a device or a named pipe")
        expected = stat.S_IFDIR if is_directory else stat.S_IFREG
        if kind not in {0, expected}:
            raise ArchiveRefusedError(f"{member.shown} is both a file and a directory")
        if not is_directory:
            tree.reserve(path, member.size)
            tree.store(path, _extract(raw, member, begin, end), bool(member.mode & stat.S_IXUSR))
        elif member.size:
            raise ArchiveRefusedError(f"the directory {member.shown} has content")
        elif path:
            tree.add_directory(path)


def _central_directory(raw: bytes, tree: Tree) -> tuple[int, list[_Member]]:
    """Return (offset, members) of the central directory, which must end at the end record."""
    at = _end_record(raw)
    _, disk, first_disk, here, count, size, directory_at, _ = _END_RECORD.unpack_from(raw, at)
    if disk or first_disk or here != count:
        raise ArchiveRefusedError("the archive is one part of several")
    if count == _MAX_MEMBERS or _MAX_BYTES in {size, directory_at}:
        raise ArchiveRefusedError("the archive is in the zip64 format, which no skill needs")
    if directory_at + size != at:
        raise ArchiveRefusedError(
            "the archive is damaged, or there are bytes before or between its members"
        )
    members: list[_Member] = []
    offset = directory_at
    while offset < at:
        tree.count()
        if at - offset < _CENTRAL_HEAD.size or raw[offset : offset + 4] != _CENTRAL:
            raise ArchiveRefusedError("the archive is damaged: its directory cannot be read")
        head = _CENTRAL_HEAD.unpack_from(raw, offset)
        made, flags, method, crc, packed, full, name_size = head[1], *head[3:5], *head[7:11]
        offset += _CENTRAL_HEAD.size
        system, attributes = made >> 8, head[15]
        mode = attributes >> 16
        # The symlink bits count on every system, other mode bits on Unix and macOS alone.
        if not (system in {_UNIX, _DARWIN} or stat.S_ISLNK(mode)):
            mode = 0
        member = _Member(
            raw[offset : offset + name_size], flags, method, crc, packed, full, mode, head[16]
        )
        _check_member(member)
        members.append(member)
        offset += name_size + head[11] + head[12]
    if offset != at or len(members) != count:
        raise ArchiveRefusedError("the archive is damaged: the size of its directory is wrong")
    return directory_at, members


def _end_record(raw: bytes) -> int:
    """Return the offset of the only end record whose comment ends with the archive."""
    offsets: list[int] = []
    at = len(raw)
    while (at := raw.rfind(END, max(0, len(raw) - _END_RECORD.size - 0xFFFF), at)) >= 0:
        if len(raw) - at >= _END_RECORD.size and at + _END_RECORD.size + _END_RECORD.unpack_from(
            raw, at
        )[7] == len(raw):
            offsets.append(at)
    if not offsets:
        raise ArchiveRefusedError("the archive is truncated, or data follows its end")
    if len(offsets) > 1:
        raise ArchiveRefusedError("the archive has two end records")
    return offsets[0]


def _check_member(member: _Member) -> None:
    if member.flags & _ENCRYPTED:
        raise ArchiveRefusedError(f"{member.shown} is encrypted")
    if member.method not in {_STORED, _DEFLATED}:
        raise ArchiveRefusedError(
            f"{member.shown} is compressed by a method other than deflate ({member.method})"
        )
    if _MAX_BYTES in {member.packed, member.size, member.offset}:
        raise ArchiveRefusedError("the archive is in the zip64 format, which no skill needs")


def _contents(raw: bytes, directory_at: int, members: list[_Member]) -> list[tuple[int, int]]:
    """Return (begin, end) of each member's content, after checking for gaps and overlaps."""
    out: dict[int, tuple[int, int]] = {}
    reached = 0
    for position, member in sorted(enumerate(members), key=lambda pair: pair[1].offset):
        if member.offset < reached:
            raise ArchiveRefusedError(f"{member.shown} overlaps another member")
        if member.offset > reached:
            raise ArchiveRefusedError(f"bytes that belong to no member precede {member.shown}")
        begin = _content_begin(raw, directory_at, member)
        out[position] = begin, begin + member.packed
        reached = (
            begin
            + member.packed
            + _descriptor_size(raw, directory_at, member, begin + member.packed)
        )
        if reached > directory_at:
            raise ArchiveRefusedError(
                f"the archive is damaged: {member.shown} reaches into its directory"
            )
    if reached != directory_at:
        raise ArchiveRefusedError("bytes that belong to no member follow the last one")
    return [out[position] for position in range(len(members))]


def _content_begin(raw: bytes, directory_at: int, member: _Member) -> int:
    """Return the offset of a member's content after comparing its local header to the directory."""
    if member.offset + _LOCAL_HEAD.size > directory_at:
        raise ArchiveRefusedError(
            f"the archive is damaged: {member.shown} has no header of its own"
        )
    head = _LOCAL_HEAD.unpack_from(raw, member.offset)
    name_at = member.offset + _LOCAL_HEAD.size
    same = head[0] == LOCAL and head[2:4] == (member.flags, member.method)
    same = same and raw[name_at : name_at + head[9]] == member.name
    described = (member.crc, member.packed, member.size)
    unknown = {0} if member.flags & _STREAMED else set[int]()  # a streaming writer leaves zeros
    if not same or any(
        own != other and own not in unknown for own, other in zip(head[6:9], described, strict=True)
    ):
        raise ArchiveRefusedError(
            f"the archive is damaged: {member.shown} is described in two ways"
        )
    return name_at + head[9] + head[10]


def _descriptor_size(raw: bytes, directory_at: int, member: _Member, at: int) -> int:
    """Return the size of the data descriptor, which a streaming writer puts behind the content."""
    if not member.flags & _STREAMED:
        return 0
    fields = struct.pack("<3L", member.crc, member.packed, member.size)
    for form in (_DESCRIPTOR + fields, fields):
        if raw[at : min(at + len(form), directory_at)] == form:
            return len(form)
    raise ArchiveRefusedError(f"the archive is damaged: {member.shown} is described in two ways")


def _extract(raw: bytes, member: _Member, begin: int, end: int) -> bytes:
    content = memoryview(raw)[begin:end]
    if member.method == _STORED:
        out = bytes(content)
        whole = True
    else:
        inflate = zlib.decompressobj(-15)
        try:
            out = inflate.decompress(content, member.size + 1)
        except zlib.error:
            raise ArchiveRefusedError(
                f"the archive is damaged: {member.shown} cannot be read"
            ) from None
        whole = inflate.eof and not inflate.unused_data
    if not whole or len(out) != member.size or zlib.crc32(out) != member.crc:
        raise ArchiveRefusedError(
            f"the archive is damaged: {member.shown} is not what its size or checksum says"
        )
    return out


# Writing


def write_zip(members: Iterable[tuple[str, tuple[bytes, bool]]]) -> bytes:
    """Return these files as a `.zip`.

    Raises:
        ArchiveRefusedError: the files are too large for the format.
    """
    parts: list[bytes] = []
    central: list[bytes] = []
    offset = 0
    for path, (raw, executable) in members:
        name = path.encode()
        mode = stat.S_IFREG | (0o755 if executable else 0o644)
        shared = (20, _UTF8, _STORED, 0, _1980, zlib.crc32(raw), len(raw), len(raw), len(name), 0)
        if (
            offset + len(raw) + len(name) + _LOCAL_HEAD.size >= _MAX_BYTES
            or len(central) + 1 >= _MAX_MEMBERS
        ):
            raise ArchiveRefusedError("the skill is too large for a .zip of 65,534 files and 4 GiB")
        central.append(
            _CENTRAL_HEAD.pack(_CENTRAL, _UNIX << 8 | 20, *shared, 0, 0, 0, mode << 16, offset)
            + name
        )
        parts += [_LOCAL_HEAD.pack(LOCAL, *shared) + name, raw]
        offset += _LOCAL_HEAD.size + len(name) + len(raw)
    size = sum(map(len, central))
    end = _END_RECORD.pack(END, 0, 0, len(central), len(central), size, offset, 0)
    return b"".join((*parts, *central, end))
