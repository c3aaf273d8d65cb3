"""Hostile and damaged archives, each with the reason of its refusal.

Headers are built byte by byte, because the standard library cannot write most of these.
"""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

SKILL_MD = b"---\nname: crooked\ndescription: Shows what becomes of an archive that means harm.\n---\n\nRead on.\n"


def block(
    name: str | bytes,
    content: bytes = b"",
    kind: bytes = b"0",
    *,
    mode: int = 0o644,
    size: int | bytes | None = None,
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    """Return a tar member: header, content and padding. `size` and `checksum` may be wrong."""
    raw_name = name.encode() if isinstance(name, str) else name
    size = len(content) if size is None else size
    digits = b"%011o\0" % size if isinstance(size, int) else size
    fields = (raw_name, b"%07o" % mode, b"0000000", b"0000000", digits, b"%011o" % 0, b" " * 8, kind, link, magic)
    head = struct.pack("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x", *fields, b"", b"", b"", b"", prefix)
    total = sum(head) if checksum is None else checksum
    return head[:148] + b"%06o\0 " % total + head[156:] + content + bytes(-len(content) % 512)


def pax(kind: bytes = b"x", **fields: str) -> bytes:
    """Return a PAX header with these records; `__` in a key stands for a dot."""
    out = b""
    for key, value in fields.items():
        record = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(record) + 1
        while len(str(length)) + len(record) != length:
            length += 1
        out += str(length).encode() + record
    return block("PaxHeader/x", out, kind)


END = bytes(1024)
GOOD = block("SKILL.md", SKILL_MD)


def tar_gz(*blocks: bytes, end: bytes = END, level: int = 9) -> bytes:
    return gzip.compress(b"".join(blocks) + end, level, mtime=0)


def tar_xz(*blocks: bytes, end: bytes = END) -> bytes:
    """Return a `.tar.xz` of the smallest dictionary."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 16}]
    return lzma.compress(b"".join(blocks) + end, filters=filters)


def _with_dictionary(packed: bytes, size: int) -> bytes:
    """Return an xz stream whose first block asks for a dictionary of this code of a size."""
    head = packed[12:16] + bytes([size]) + packed[17:20]
    assert packed[12:16] == b"\2\0\x21\1"
    return packed[:12] + head + zlib.crc32(head).to_bytes(4, "little") + packed[24:]


XZ = tar_xz(GOOD)


@dataclass
class Zipped:
    """A zip member. Fields that differ from the content make its headers wrong."""

    name: str | bytes
    content: bytes = b""
    flags: int = 0x800
    method: int = 0
    mode: int = 0o100644
    system: int = 3
    size: int | None = None
    crc: int | None = None
    local_name: bytes | None = None
    local_size: int | None = None
    descriptor: bytes = b""
    before: bytes = b""
    offset: int | None = None
    listed_only: bool = False
    packed: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.name.encode() if isinstance(self.name, str) else self.name
        self.packed = self.content
        if self.method == 8:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            self.packed = deflate.compress(self.content) + deflate.flush()
        self.size = len(self.content) if self.size is None else self.size
        self.crc = zlib.crc32(self.content) if self.crc is None else self.crc


def zipped(
    *members: Zipped, count: int | None = None, comment: bytes = b"", gap: bytes = b"", disk: int = 0, shift: int = 0
) -> bytes:
    """Return a `.zip` of these members. Other arguments make its end record wrong."""
    out, central = b"", b""
    for each in members:
        out += each.before
        offset = len(out) if each.offset is None else each.offset
        name = each.name if each.local_name is None else each.local_name
        assert isinstance(name, bytes) and isinstance(each.name, bytes)
        has_descriptor = bool(each.flags & 8)
        local = (each.crc, len(each.packed), each.size)
        if each.local_size is not None:
            local = (0 if has_descriptor else each.crc, len(each.packed), each.local_size)
        elif has_descriptor:
            local = (0, 0, 0)
        shared = (20, each.flags, each.method, 0, 33)
        if not each.listed_only:
            head = struct.pack("<4s5H3L2H", b"PK\3\4", *shared, *local, len(name), 0)
            out += head + name + each.packed + each.descriptor
        sizes = (each.crc, len(each.packed), each.size, len(each.name), 0, 0, 0, 0, each.mode << 16, offset)
        central += struct.pack("<4s6H3L5H2L", b"PK\1\2", each.system << 8 | 20, *shared, *sizes) + each.name
    out += gap
    number = len(members) if count is None else count
    end = (disk, disk, number, number, len(central), len(out) + shift, len(comment))
    return out + central + struct.pack("<4s4H2LH", b"PK\5\6", *end) + comment


Z_GOOD = Zipped("SKILL.md", SKILL_MD)


def by_tarfile(files: Iterable[tuple[str, bytes]], form: int) -> bytes:
    """Return a `.tar.gz` written by Python's tarfile."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=form) as tar:
        for name, raw in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(raw), 1.5
            tar.addfile(info, io.BytesIO(raw))
    return out.getvalue()


def by_zipfile(files: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a `.zip` written by Python's zipfile."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, raw in files:
            archive.writestr(name, raw)
    return out.getvalue()


_DAMAGED = bytearray(tar_gz(GOOD))
_DAMAGED[20] ^= 0xFF
_TWO = zipped(Z_GOOD, Zipped("a", b"!"))
_LONG_NAME = {"name": "././@LongLink", "kind": b"L", "magic": b"ustar  \0"}
_NAMES = {
    "leads out of the skill": ("../evil", "a/../../evil", "a/../b", "a/.."),
    "is absolute": ("/etc/passwd", "//host/share"),
    "begins with a drive letter": ("C:/evil", "c:evil"),
    "holds a backslash": ("..\\evil",),
    "holds a control character": ("a\nb", "\x1b[31mred", "a\x7f", "a\x85b", "a\u2028b", "a\0b"),
    "is not a plain path": ("a/./b", "a//b", "././a", ""),
    "is too long": ("x" * 256, "/".join(["x" * 250] * 5)),
    "levels deep": ("/".join("x" * 33),),
    "Windows cannot hold the name": ("scripts/NUL.txt", "what?.md", "notes.md:hidden", "notes.", "notes /a.md"),
}
_REFUSED: dict[str, list[bytes]] = {
    # No format that is read
    "content is none of .zip, .skill, .tar, .tar.gz": [
        b"", b"<!doctype html><title>Not found</title>", b"BZh91AY&SY", b"MZ" + zipped(Z_GOOD), bytes(1024),
    ],
    # Names
    "is not UTF-8": [tar_gz(block(b"caf\xe9", b"!")), zipped(Zipped(b"caf\xe9", b"!", flags=0))],
    "leads out of the skill": [
        tar_gz(block("evil", b"!", prefix=b"..")), tar_gz(block("../evil/", kind=b"5")),
        tar_gz(block(content=b"../evil\0", **_LONG_NAME), block("x", b"!")), zipped(Zipped("../evil/", mode=0o40755)),
    ],
    "is absolute": [tar_gz(block("passwd", b"!", prefix=b"/etc")), tar_gz(block("/", kind=b"5"))],
    "'SKILL.md' appears twice": [
        tar_gz(GOOD, GOOD), tar_gz(GOOD, block("./SKILL.md", b"!")), zipped(Z_GOOD, Zipped("SKILL.md", b"!")),
    ],
    "cannot tell it from": [
        tar_gz(GOOD, block("skill.md", b"!")), tar_gz(block("A/x", b"!"), block("a/y", b"!")),
        tar_gz(block("\u00e9", b"!"), block("e\u0301", b"!")), zipped(Z_GOOD, Zipped("Skill.md", b"!")),
    ],
    "both a file and a directory": [
        tar_gz(block("a", b"!"), block("a/b", b"!")), tar_gz(block("a/b", b"!"), block("a", b"!")),
        tar_gz(block("a", b"!"), block("a/", kind=b"5")), zipped(Zipped("a", b"!"), Zipped("a/b", b"!")),
        zipped(Zipped("a", b"!", mode=0o40755)), zipped(Zipped("a/", mode=0o100644)),
    ],
    "has the name of a directory": [tar_gz(block("a/", b"!"))],
    "has content": [tar_gz(block("a/", b"!", b"5")), zipped(Zipped("a/", b"!", mode=0o40755))],
    # Kinds
    "'a' is a symbolic link": [
        tar_gz(GOOD, block("a", kind=b"2", link=b"/etc/passwd")), tar_gz(GOOD, block("a", kind=b"2", link=b"SKILL.md")),
        zipped(Z_GOOD, Zipped("a", b"/etc", mode=0o120777)), zipped(Zipped("a", b"/etc", mode=0o120777, system=0)),
    ],
    "'a' is a hard link": [tar_gz(GOOD, block("a", kind=b"1", link=b"SKILL.md"))],
    "is a link": [tar_gz(block("././@LongLink", b"../x\0", b"K"))],
    "'a' is a device": [tar_gz(block("a", kind=b"3")), tar_gz(block("a", kind=b"4"))],
    "'a' is a named pipe": [tar_gz(block("a", kind=b"6"))],
    "of a kind that no skill needs": [tar_gz(block("a", kind=kind)) for kind in (b"S", b"V", b"\x1b")],
    "a sparse file": [tar_gz(pax(GNU__sparse__major="1"), block("a", b"!"))],
    "a device or a named pipe": [
        zipped(Zipped("a", mode=mode, system=system)) for mode in (0o020666, 0o010666) for system in (3, 19)
    ],
    "'a' is encrypted": [zipped(Zipped("a", b"!", flags=flags)) for flags in (0x801, 0x840, 0x2800)],
    "a method other than deflate": [by_zipfile([("a", b"!")], zipfile.ZIP_LZMA)],
    # Bombs
    "more than 200 times its size": [
        tar_gz(block("a", bytes(6 << 20))), zipped(Zipped("a", bytes(15 << 20), method=8)),
        tar_xz(block("a", bytes(6 << 20))),
    ],
    "at most 16777216 are unpacked": [
        tar_gz(block("a", size=(16 << 20) + 1)), tar_gz(block("a", size=8**11 - 1)),
        zipped(Zipped("a", b"!" * 100_000, size=(16 << 20) + 1)),
    ],
    "headers of more than 1048576 bytes": [
        tar_gz(*([header] * 18), GOOD, level=0)
        for header in (
            pax(comment="x" * 60_000), pax(b"g", comment="x" * 60_000), block(content=b"x" * 60_000, **_LONG_NAME)
        )
    ],
    # Damage
    "truncated": [
        b"\x1f\x8b", gzip.compress(b"Read on.\n"), tar_gz(GOOD, end=b""), tar_gz(GOOD, end=bytes(512)),
        gzip.compress(GOOD[:600]), GOOD, GOOD[:600], XZ[:6], XZ[:-20], tar_xz(GOOD, end=b""),
    ],
    "packed stream cannot be read": [
        bytes(_DAMAGED), tar_gz(GOOD)[:-8] + bytes(8), XZ[:40] + b"!" + XZ[41:], _with_dictionary(XZ, 40),
    ],
    "data follows the end of the tar": [
        GOOD + END + b"!", GOOD + END + GOOD + END, tar_xz(GOOD, end=END + GOOD),
        tar_gz(GOOD, end=END + bytes(6 << 20)), tar_gz(GOOD, end=END + GOOD + END),
        tar_gz(GOOD, end=bytes(512) + GOOD),
    ],
    "data follows the end of the packed stream": [
        packed + more for packed in (tar_gz(GOOD), XZ) for more in (b"!", bytes(512), tar_gz(GOOD), XZ, zipped(Z_GOOD))
    ],
    "checksum of a tar header": [tar_gz(block("a", b"!", checksum=1))],
    "a number is not octal": [
        tar_gz(block("a", size=b"many")), tar_gz(block("a", size=b"\x80" + bytes(10) + b"\x05")),
    ],
    "has two sizes": [tar_gz(pax(size="3"), block("a", b"12345"))],
    "is not a number": [tar_gz(pax(size="-3"), block("a"))],
    "a PAX header cannot be read": [
        tar_gz(block("x", record, b"x"), GOOD) for record in (b"no record", b"0 path=a\n", b"99 path=a\n")
    ],
    "gives all members one name": [tar_gz(pax(b"g", path="SKILL.md"), block("a", b"!"))],
    "no member follows a header": [tar_gz(GOOD, pax(path="a"))],
    # Overlapping members are the technique of the strongest zip bombs.
    "overlaps another member": [zipped(Z_GOOD, Zipped("b", SKILL_MD, offset=0, local_name=b""))],
    "belong to no member": [
        zipped(Z_GOOD, Zipped("a", b"!", before=b"hidden")), zipped(Z_GOOD, gap=b"hidden"),
        zipped(Zipped("SKILL.md", SKILL_MD, before=b"PK\3\4hidden")), zipped(Zipped("a", b"!", offset=10**6)),
    ],
    "bytes before or between": [zipped(Z_GOOD, shift=-4)],
    "data follows its end": [zipped(Z_GOOD) + b"!"],
    "two end records": [zipped(Z_GOOD, comment=zipped(Z_GOOD))],
    "described in two ways": [
        zipped(Zipped("a", b"!", local_name=b"b")), zipped(Zipped("a", b"!", local_size=5)),
        zipped(Zipped("a", b"!", flags=0x808)), zipped(Zipped("a", b"!", flags=0x808, descriptor=bytes(12))),
        *(_TWO[:at] + wrong + _TWO[at + len(wrong) :] for at, wrong in (
            (6, b"\0\0"), (8, b"\10\0"), (_TWO.rindex(b"PK\3\4"), b"PK\3\5"))),
    ],
    "not what its size or checksum": [
        zipped(Zipped("a", bytes(6 << 20), method=8, size=10)), zipped(Zipped("a", b"!", crc=1)),
        zipped(Zipped("a", b"!", size=2)), zipped(Zipped("a", b"!" * 9, method=8, size=10)),
    ],
    "has no header of its own": [zipped(Z_GOOD, Zipped("a", b"!", listed_only=True))],
    "size of its directory is wrong": [zipped(Z_GOOD, count=2)],
    "one part of several": [zipped(Z_GOOD, disk=1)],
    "zip64": [zipped(Z_GOOD, count=0xFFFF), zipped(Zipped("a", b"!", size=0xFFFFFFFF))],
}  # fmt: skip
for _reason, _names in _NAMES.items():
    for _name in _names:
        _REFUSED.setdefault(_reason, []).append(tar_gz(GOOD, pax(path=_name), block("x", b"!")))
        _REFUSED[_reason].append(zipped(Z_GOOD, Zipped(_name)))
HOSTILE = [(raw, reason) for reason, archives in _REFUSED.items() for raw in archives]
"""Hostile archives, each with a part of the refusal's message."""
