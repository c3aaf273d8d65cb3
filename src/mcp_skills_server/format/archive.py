"""A skill's files to one archive and back: the same tree gives the same bytes anywhere, and no archive is trusted.

Bytes in, bytes out; nothing is ever written here. Both formats are written and read by hand: the standard library's
writers leave marks of the machine (PAX headers, versions of zlib), and its readers pass over what an attacker adds
(bytes before, between and behind the members, members that overlap, names that are no names). Reading takes memory
for what the limits allow and no more.

What `pack` writes is stored, not compressed. Different builds of zlib (zlib-ng, Apple's, hardware) compress the same
input to different bytes, and a digest in an index must not depend on who computed it. A deflate stream of stored
blocks has one spelling. It costs transfer: 148 public skills came to three and a half times their compressed size, the
median one to 60 KiB.
"""

from __future__ import annotations

import re
import stat
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import file_names
from mcp_skills_server.model import printable

Files: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""By path in the skill: the bytes, and whether the file may be executed."""

TAR_GZ: Final = ".tar.gz"
ZIP: Final = ".zip"
MEDIA_TYPES: Final[Mapping[str, str]] = {TAR_GZ: "application/gzip", ZIP: "application/zip"}
"""By suffix (WK-33, WK-34)."""

_MAX_SEGMENT: Final = 255
_MAX_PATH: Final = 1024
_MAX_DEPTH: Final = 32
"""Bytes of a name, bytes of a path, levels: what common file systems hold, and no tree is deeper for a good reason."""


class ArchiveRefusedError(SkillsServerError, ValueError):
    """An archive that is not unpacked, or a name that no archive may hold. The message is one line for people."""


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What an archive may unpack to (WK-30). The defaults are those of the most used consumer (WKO-9).

    Attributes:
        files: files; four times as many members of any kind, and as many directories; 1 KiB of tar's own headers for
            each, and 1 MiB at least.
        bytes: bytes of all files.
        file: bytes of one file.
        ratio: unpacked bytes for each byte of the archive; the first MiB is free, since it does no harm.
    """

    files: int = 1000
    bytes: int = 50 << 20
    file: int = 16 << 20
    ratio: int = 200


def is_archive(name: str) -> bool:
    """Whether a file is called like an archive that `unpack` reads."""
    return name.lower().endswith((ZIP, TAR_GZ, ".tgz"))


def pack(files: Files) -> tuple[str, bytes]:
    """The archive of a skill as (suffix, bytes): `.tar.gz`, or `.zip` where ustar cannot hold a name (X-4).

    Files stand at the root, sorted by path, with mode 0644 or 0755 and nothing else of the machine they came from: no
    owner, no time, no directories, no links, no `./` (WK-23, WK-24, WKO-5...9). A zip is taken when a name is not
    ASCII or does not fit 100 bytes and a prefix of 155. The bytes are the same on every machine (see above).

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or the files are too large for the format.
    """
    members = sorted(files.items())
    for path, _ in members:
        _check_name(path)
    heads = [_ustar_head(path, len(raw), executable) for path, (raw, executable) in members]
    if None in heads:
        return ZIP, _zip(members)
    blocks = [
        part for head, (_, (raw, _)) in zip(heads, members, strict=True) if head for part in (head, *_padded(raw))
    ]
    return TAR_GZ, _gzip(b"".join((*blocks, _ZEROS, _ZEROS)))


def unpack(raw: bytes, limits: UnpackLimits | None = None) -> dict[str, tuple[bytes, bool]]:
    """The files of a `.tar.gz` or `.zip` by path, in path order (WK-25, WK-28...30, WK-61).

    The first bytes tell the format, so a wrong Content-Type or suffix does no harm (WK-26). Names are given as they
    are, but for a leading `./`; directories without files are left out. No name leads anywhere but below the place
    where the caller puts it, on any platform. Whether it is a skill is for others to say.

    Raises:
        ArchiveRefusedError: it is damaged, over a limit, or holds what no skill needs: links, devices, encrypted
            members, names that a platform cannot hold or tell apart, bytes that belong to no member.
    """
    limits = limits or UnpackLimits()
    tree = _Tree(limits)
    if raw[:2] == b"\x1f\x8b":
        _read_tar(_Inflated(raw, _most(raw, limits), limits), tree)
    elif raw[:4] in {_LOCAL, _END}:
        _read_zip(raw, _most(raw, limits), limits, tree)
    else:
        raise ArchiveRefusedError("the archive is neither a .tar.gz nor a .zip")
    return tree.checked()


def check_paths(paths: Iterable[str]) -> None:
    """Prove that a tree of files with these paths can be written on any platform, below one directory.

    Raises:
        ArchiveRefusedError: the first that cannot, as for `unpack`.
    """
    tree = _Tree(None)
    for path in paths:
        _check_name(path)
        tree.admit(path, 0)
    tree.checked()


# Names

_DRIVE: Final = re.compile(r"[A-Za-z]:")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _check_name(name: str) -> None:
    """Refuse what is no plain relative path (WK-24, WK-28)."""
    segments = name.split("/")
    said = ""
    if _CONTROL.search(name):
        said = "holds a control character"
    elif "\\" in name:
        said = "holds a backslash"
    elif name.startswith("/"):
        said = "is absolute"
    elif _DRIVE.match(name):
        said = "begins with a drive letter"
    elif ".." in segments:
        said = "leads out of the skill"
    elif "" in segments or "." in segments:
        said = "is not a plain path"
    else:
        try:
            lengths = [len(segment.encode()) for segment in segments]
        except UnicodeEncodeError:
            said = "is not UTF-8"
        else:
            if len(segments) > _MAX_DEPTH:
                said = f"is more than {_MAX_DEPTH} levels deep"
            elif max(lengths) > _MAX_SEGMENT or sum(lengths) + len(segments) - 1 > _MAX_PATH:
                said = "is too long"
    if said:
        raise ArchiveRefusedError(f"the name {_shown(name)} {said}")


def _shown(name: str) -> str:
    text = printable(name[:61])
    return f"'{text if len(text) <= 60 else text[:57] + '...'}'"


def _decoded(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise ArchiveRefusedError(f"the name {_shown(name.decode('latin-1'))} is not UTF-8") from None


class _Tree:
    """The files of an archive as they come, none admitted that could not be written beside the others."""

    def __init__(self, limits: UnpackLimits | None) -> None:
        self._limits = limits
        self._files: dict[str, tuple[bytes, bool]] = {}
        self._directories: set[str] = set()
        self._members = 0
        self._bytes = 0
        self._header_bytes = 0

    def count(self) -> None:
        """One more member of any kind."""
        self._members += 1
        self._check_number(self._members, "members")

    def count_header(self, size: int) -> None:
        """One more header that only says something of another member, asked for before it is unpacked."""
        if size > _MAX_HEADER:
            raise ArchiveRefusedError(f"the archive holds a header of {size} bytes")
        self._header_bytes += size
        most = max(_FREE_HEADERS, _HEADER_BYTES * self._limits.files) if self._limits else None
        if most is not None and self._header_bytes > most:
            raise ArchiveRefusedError(f"the archive holds headers of more than {most} bytes")

    def _check_number(self, number: int, what: str) -> None:
        if self._limits and number > 4 * self._limits.files + 4:
            raise ArchiveRefusedError(f"the archive holds more than {4 * self._limits.files + 4} {what}")

    def place(self, name: str) -> tuple[str, bool]:
        """(path, whether a directory) that a member's name stands for; "" for the root of the archive."""
        path = name.removeprefix("./")
        is_directory = path.endswith("/") or path in {"", "."}
        path = path.removesuffix("/")
        if name in {".", "./"}:
            return "", True
        _check_name(path or name)
        return path, is_directory

    def add_directory(self, path: str) -> None:
        """A directory and those above it."""
        if path in self._directories:  # and so are those above it
            return
        parts = path.split("/")
        for length in range(1, len(parts) + 1):
            above = "/".join(parts[:length])
            if above in self._files:
                raise ArchiveRefusedError(f"{_shown(above)} is both a file and a directory")
            self._directories.add(above)
        # Also those that no member stands for: each member could bring as many as it has levels.
        self._check_number(len(self._directories), "directories")

    def admit(self, path: str, size: int) -> None:
        """Room for a file of `size` bytes, asked for before they are unpacked."""
        if path in self._files:
            raise ArchiveRefusedError(f"the name {_shown(path)} stands twice")
        if path in self._directories:
            raise ArchiveRefusedError(f"{_shown(path)} is both a file and a directory")
        limits = self._limits
        self._bytes += size
        if limits and size > limits.file:
            raise ArchiveRefusedError(f"{_shown(path)} has {size} bytes, at most {limits.file} are unpacked")
        if limits and self._bytes > limits.bytes:
            raise ArchiveRefusedError(f"the archive unpacks to more than {limits.bytes} bytes")
        if limits and len(self._files) >= limits.files:
            raise ArchiveRefusedError(f"the archive holds more than {limits.files} files")
        directory = path.rpartition("/")[0]
        if directory:
            self.add_directory(directory)
        self._files[path] = (b"", False)

    def fill(self, path: str, raw: bytes, executable: bool) -> None:
        """The content of an admitted file."""
        self._files[path] = (raw, executable)

    def checked(self) -> dict[str, tuple[bytes, bool]]:
        """All files in path order, when any platform can hold and tell apart their names."""
        for fault in file_names.faults(sorted(self._directories | self._files.keys())):
            raise ArchiveRefusedError(f"{_shown(fault.path)}: {fault.message}")
        return dict(sorted(self._files.items()))


def _most(raw: bytes, limits: UnpackLimits) -> int:
    return max(1 << 20, limits.ratio * len(raw))


def _check_ratio(size: int, most: int, limits: UnpackLimits) -> None:
    if size > most:
        raise ArchiveRefusedError(f"the archive unpacks to more than {limits.ratio} times its size")


# Tar: POSIX ustar is written; ustar, v7, GNU long names and PAX names are read

_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_MAX_HEADER: Final = 1 << 16
_FREE_HEADERS: Final = 1 << 20
_HEADER_BYTES: Final = 1 << 10
"""Of all headers together for each file. They are read record by record, and nothing else bounds what that takes."""
_MAX_PADDING: Final = 1 << 20
_PIECE: Final = 1 << 16
_MAX_OCTAL: Final = 8**11
_LINKS: Final = {b"1": "hard link", b"2": "symbolic link", b"K": "link"}
_DEVICES: Final = {b"3": "device", b"4": "device", b"6": "named pipe"}


def _ustar_head(path: str, size: int, executable: bool) -> bytes | None:
    """The header block of a regular file, or None where ustar cannot hold it."""
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
        *(b"%011o" % size, b"%011o" % 0, b" " * 8, b"0", b"", b"ustar\x0000"),
        *(b"", b"", b"0000000", b"0000000", prefix),
    )
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def _padded(raw: bytes) -> tuple[bytes, bytes]:
    return raw, bytes(-len(raw) % _BLOCK)


def _gzip(raw: bytes) -> bytes:
    """A gzip member without time or name, of stored blocks."""
    view = memoryview(raw)
    parts: list[bytes | memoryview] = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]
    for start in range(0, len(raw), 0xFFFF):
        block = view[start : start + 0xFFFF]
        last = start + 0xFFFF >= len(raw)
        parts += [struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF), block]
    parts.append(struct.pack("<LL", zlib.crc32(raw), len(raw) & 0xFFFFFFFF))
    return b"".join(parts)


class _Inflated:
    """A gzip stream read piece by piece: no more is unpacked than was asked for, but for one piece."""

    def __init__(self, raw: bytes, most: int, limits: UnpackLimits) -> None:
        self._raw = memoryview(raw)
        self._next = 0
        self._most = most
        self._limits = limits
        self._given = 0
        self._left = memoryview(b"")  # so that to take a little of a piece is not to copy the rest of it
        self._inflate = zlib.decompressobj(31)

    def _piece(self) -> bytes:
        """Some more bytes, b"" at the end of the stream."""
        while not self._inflate.eof:
            feed: bytes | memoryview = self._inflate.unconsumed_tail
            if not feed:
                feed = self._raw[self._next : self._next + _PIECE]
                self._next += len(feed)
            try:
                piece = self._inflate.decompress(feed, _PIECE)
            except zlib.error:
                raise ArchiveRefusedError("the archive is damaged: its gzip stream cannot be read") from None
            if piece:
                self._given += len(piece)
                _check_ratio(self._given, self._most, self._limits)
                return piece
            if not feed and not self._inflate.eof:
                raise ArchiveRefusedError("the archive is truncated: its gzip stream never ends")
        return b""

    def read(self, size: int) -> bytes:
        """The next `size` bytes, all of them."""
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
        """Prove that only padding follows, and nothing behind the stream."""
        padding = 0
        while piece := bytes(self._left) or self._piece():
            self._left = memoryview(b"")
            padding += len(piece)
            if piece.strip(b"\0") or padding > _MAX_PADDING:
                raise ArchiveRefusedError("data follows the end of the tar")
        if self._inflate.unused_data or self._next < len(self._raw):
            raise ArchiveRefusedError("data follows the end of the gzip stream")


def _read_tar(stream: _Inflated, tree: _Tree) -> None:
    name: str | None = None  # what an extension header gives the member after it
    size: int | None = None
    while (head := stream.read(_BLOCK)) != _ZEROS:
        tree.count()
        kind, own_name, own_size, mode = _parse_head(head)
        shown = _shown(name or own_name)
        if kind in {b"x", b"g", b"L"}:
            tree.count_header(own_size)
            raw = stream.read(own_size + -own_size % _BLOCK)[:own_size]
            if kind == b"L":
                name = _decoded(raw.rstrip(b"\0"))
                continue
            fields = _pax_fields(raw)
            if kind == b"g" and fields:
                raise ArchiveRefusedError("the archive gives all members one name or size")
            name, size = fields.get("path", name), _decimal(fields.get("size"), size)
            continue
        if kind in _LINKS:
            raise ArchiveRefusedError(f"{shown} is a {_LINKS[kind]}")
        if kind in _DEVICES:
            raise ArchiveRefusedError(f"{shown} is a {_DEVICES[kind]}")
        if kind not in {b"0", b"\0", b"7", b"5"}:
            raise ArchiveRefusedError(
                f"{shown} is of a kind that no skill needs (type {_shown(kind.decode('latin-1'))})"
            )
        if size is not None and own_size not in {0, size}:
            raise ArchiveRefusedError(f"{shown} has two sizes")
        path, slash = tree.place(own_name if name is None else name)
        length = own_size if size is None else size
        name = size = None
        if kind == b"5" or (slash and kind == b"\0"):
            if length:
                raise ArchiveRefusedError(f"the directory {shown} has content")
            if path:
                tree.add_directory(path)
            continue
        if slash:
            raise ArchiveRefusedError(f"the file {shown} has the name of a directory")
        tree.admit(path, length)
        raw = stream.read(length)
        stream.read(-length % _BLOCK)
        tree.fill(path, raw, bool(mode & stat.S_IXUSR))
    if name is not None or size is not None:
        raise ArchiveRefusedError("the archive is damaged: a header stands before no member")
    if stream.read(_BLOCK) != _ZEROS:
        raise ArchiveRefusedError("data follows the end of the tar")
    stream.finish()


def _parse_head(head: bytes) -> tuple[bytes, str, int, int]:
    """(type, name, size, mode) of a header block whose checksum is right."""
    if _octal(head[148:156]) != sum(head[:148]) + sum(head[156:]) + 8 * 32:
        raise ArchiveRefusedError("the archive is damaged: the checksum of a tar header is wrong")
    name = head[:100].split(b"\0", 1)[0]
    if head[257:263] == b"ustar\0":  # GNU's own variant keeps other things there
        prefix = head[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    kind = head[156:157]
    # Not refused yet where it is no UTF-8: beside a long name it is cut anywhere, also within a character.
    return kind, name.decode("utf-8", "surrogateescape"), _octal(head[124:136]), _octal(head[100:108])


def _octal(field: bytes) -> int:
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise ArchiveRefusedError(
            "the archive is damaged, or holds a file larger than tar allows: a number is not octal"
        )
    return int(digits or b"0", 8)


def _decimal(text: str | None, otherwise: int | None) -> int | None:
    if text is None:
        return otherwise
    if not re.fullmatch("[0-9]{1,15}", text):
        raise ArchiveRefusedError("the archive is damaged: a size in a PAX header is no number")
    return int(text)


def _pax_fields(raw: bytes) -> dict[str, str]:
    """`path` and `size` of a PAX header; times, owners and comments say nothing about the files."""
    fields: dict[str, str] = {}
    at = 0
    while at < len(raw):
        digits, space, _ = raw[at : at + 8].partition(b" ")
        end = at + int(digits) if space and digits.isdigit() else at
        key, equals, value = raw[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(raw) or raw[end - 1 : end] != b"\n":
            raise ArchiveRefusedError("the archive is damaged: a PAX header cannot be read")
        if key.startswith(b"GNU.sparse."):
            raise ArchiveRefusedError("the archive holds a sparse file")
        if key in {b"path", b"size"}:
            fields[key.decode()] = _decoded(value)
        at = end
    return fields


# Zip: stored members are written; stored and deflated ones are read

_LOCAL: Final = b"PK\3\4"
_CENTRAL: Final = b"PK\1\2"
_END: Final = b"PK\5\6"
_DESCRIPTOR: Final = b"PK\7\10"
_LOCAL_HEAD: Final = struct.Struct("<4s5H3L2H")
_CENTRAL_HEAD: Final = struct.Struct("<4s6H3L5H2L")
_END_RECORD: Final = struct.Struct("<4s4H2LH")
_UTF8: Final = 0x800
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_STREAMED: Final = 0x8
_STORED: Final = 0
_DEFLATED: Final = 8
_UNIX: Final = 3
_DARWIN: Final = 19
_1980: Final = 1 << 5 | 1
_MOST_MEMBERS: Final = 0xFFFF
_MOST_BYTES: Final = 0xFFFFFFFF


def _zip(members: list[tuple[str, tuple[bytes, bool]]]) -> bytes:
    parts: list[bytes] = []
    central: list[bytes] = []
    offset = 0
    for path, (raw, executable) in members:
        name = path.encode()
        mode = stat.S_IFREG | (0o755 if executable else 0o644)
        shared = (20, _UTF8, _STORED, 0, _1980, zlib.crc32(raw), len(raw), len(raw), len(name), 0)
        if offset + len(raw) + len(name) + _LOCAL_HEAD.size >= _MOST_BYTES or len(central) + 1 >= _MOST_MEMBERS:
            raise ArchiveRefusedError("the skill is too large for a .zip of 65,534 files and 4 GiB")
        central.append(_CENTRAL_HEAD.pack(_CENTRAL, _UNIX << 8 | 20, *shared, 0, 0, 0, mode << 16, offset) + name)
        parts += [_LOCAL_HEAD.pack(_LOCAL, *shared) + name, raw]
        offset += _LOCAL_HEAD.size + len(name) + len(raw)
    size = sum(map(len, central))
    end = _END_RECORD.pack(_END, 0, 0, len(central), len(central), size, offset, 0)
    return b"".join((*parts, *central, end))


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of a zip as its central directory tells it."""

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
        return _shown(self.name.decode("utf-8", "backslashreplace"))


def _read_zip(raw: bytes, most: int, limits: UnpackLimits, tree: _Tree) -> None:
    start, members = _central_directory(raw, tree)
    _check_ratio(sum(member.size for member in members), most, limits)
    contents = _contents(raw, start, members)
    for member, (begin, end) in zip(members, contents, strict=True):
        path, is_directory = tree.place(_decoded(member.name))
        kind = stat.S_IFMT(member.mode)
        if kind == stat.S_IFLNK:
            raise ArchiveRefusedError(f"{member.shown} is a symbolic link")
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            raise ArchiveRefusedError(f"{member.shown} is a device or a named pipe")
        if (kind == stat.S_IFDIR) > is_directory or (kind == stat.S_IFREG and is_directory):
            raise ArchiveRefusedError(f"{member.shown} is both a file and a directory")
        if not is_directory:
            tree.admit(path, member.size)
            tree.fill(path, _extract(raw, member, begin, end), bool(member.mode & stat.S_IXUSR))
        elif member.size:
            raise ArchiveRefusedError(f"the directory {member.shown} has content")
        elif path:
            tree.add_directory(path)


def _central_directory(raw: bytes, tree: _Tree) -> tuple[int, list[_Member]]:
    """Where the central directory begins, and its members. It must lie right before its end record."""
    at = _end_record(raw)
    _, disk, first_disk, here, count, size, start, _ = _END_RECORD.unpack_from(raw, at)
    if disk or first_disk or here != count:
        raise ArchiveRefusedError("the archive is one part of several")
    if count == _MOST_MEMBERS or _MOST_BYTES in {size, start}:
        raise ArchiveRefusedError("the archive is in the zip64 format, which no skill needs")
    if start + size != at:
        raise ArchiveRefusedError("the archive is damaged, or bytes stand before or between its members")
    members: list[_Member] = []
    place = start
    while place < at:
        tree.count()
        if at - place < _CENTRAL_HEAD.size or raw[place : place + 4] != _CENTRAL:
            raise ArchiveRefusedError("the archive is damaged: its directory cannot be read")
        head = _CENTRAL_HEAD.unpack_from(raw, place)
        made, flags, method, crc, packed, full, name_size = head[1], *head[3:5], *head[7:11]
        place += _CENTRAL_HEAD.size
        system, attributes = made >> 8, head[15]
        mode = attributes >> 16
        # A link is a link whatever system claims to have made it; the other bits count on systems that have them.
        mode = mode if system in {_UNIX, _DARWIN} or stat.S_ISLNK(mode) else 0
        member = _Member(raw[place : place + name_size], flags, method, crc, packed, full, mode, head[16])
        _check_member(member)
        members.append(member)
        place += name_size + head[11] + head[12]
    if place != at or len(members) != count:
        raise ArchiveRefusedError("the archive is damaged: its directory has another size than it says")
    return start, members


def _end_record(raw: bytes) -> int:
    """The offset of the end record, whose comment ends where the bytes end."""
    found: list[int] = []
    at = len(raw)
    while (at := raw.rfind(_END, max(0, len(raw) - _END_RECORD.size - 0xFFFF), at)) >= 0:
        if len(raw) - at >= _END_RECORD.size and at + _END_RECORD.size + _END_RECORD.unpack_from(raw, at)[7] == len(
            raw
        ):
            found.append(at)
    if not found:
        raise ArchiveRefusedError("the archive is truncated, or data follows its end")
    if len(found) > 1:
        raise ArchiveRefusedError("the archive has two ends")
    return found[0]


def _check_member(member: _Member) -> None:
    if member.flags & _ENCRYPTED:
        raise ArchiveRefusedError(f"{member.shown} is encrypted")
    if member.method not in {_STORED, _DEFLATED}:
        raise ArchiveRefusedError(f"{member.shown} is compressed by a method other than deflate ({member.method})")
    if _MOST_BYTES in {member.packed, member.size, member.offset}:
        raise ArchiveRefusedError("the archive is in the zip64 format, which no skill needs")


def _contents(raw: bytes, start: int, members: list[_Member]) -> list[tuple[int, int]]:
    """Where each member's content begins and ends. Together the members fill all that is before the directory."""
    out: dict[int, tuple[int, int]] = {}
    reached = 0
    for position, member in sorted(enumerate(members), key=lambda each: each[1].offset):
        if member.offset < reached:
            raise ArchiveRefusedError(f"{member.shown} overlaps another member")
        if member.offset > reached:
            raise ArchiveRefusedError(f"bytes that belong to no member stand before {member.shown}")
        begin = _content_begin(raw, start, member)
        out[position] = begin, begin + member.packed
        reached = begin + member.packed + _descriptor_size(raw, start, member, begin + member.packed)
        if reached > start:
            raise ArchiveRefusedError(f"the archive is damaged: {member.shown} reaches into its directory")
    if reached != start:
        raise ArchiveRefusedError("bytes that belong to no member stand behind the last one")
    return [out[position] for position in range(len(members))]


def _content_begin(raw: bytes, start: int, member: _Member) -> int:
    """Where the content begins, when the member's own header says what the directory says."""
    if member.offset + _LOCAL_HEAD.size > start:
        raise ArchiveRefusedError(f"the archive is damaged: {member.shown} has no header of its own")
    head = _LOCAL_HEAD.unpack_from(raw, member.offset)
    name_at = member.offset + _LOCAL_HEAD.size
    same = head[0] == _LOCAL and head[2:4] == (member.flags, member.method)
    same = same and raw[name_at : name_at + head[9]] == member.name
    told = (member.crc, member.packed, member.size)
    unsaid = {0} if member.flags & _STREAMED else set[int]()  # the writer did not know it yet
    if not same or any(own != said and own not in unsaid for own, said in zip(head[6:9], told, strict=True)):
        raise ArchiveRefusedError(f"the archive is damaged: {member.shown} is told in two ways")
    return name_at + head[9] + head[10]


def _descriptor_size(raw: bytes, start: int, member: _Member, at: int) -> int:
    """The size of what a writer that streams puts behind the content."""
    if not member.flags & _STREAMED:
        return 0
    told = struct.pack("<3L", member.crc, member.packed, member.size)
    for form in (_DESCRIPTOR + told, told):
        if raw[at : min(at + len(form), start)] == form:
            return len(form)
    raise ArchiveRefusedError(f"the archive is damaged: {member.shown} is told in two ways")


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
            raise ArchiveRefusedError(f"the archive is damaged: {member.shown} cannot be read") from None
        whole = inflate.eof and not inflate.unused_data
    if not whole or len(out) != member.size or zlib.crc32(out) != member.crc:
        raise ArchiveRefusedError(f"the archive is damaged: {member.shown} is not what its size or checksum says")
    return out
