"""Archives as an enemy, or a careless tool, would make them: each with the words of its refusal.

Headers are laid out here byte by byte, because no writer of the standard library makes most of these.
"""

from __future__ import annotations

import gzip
import io
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
    """One tar member: header, content and padding. `size` and `checksum` may lie."""
    raw_name = name.encode() if isinstance(name, str) else name
    size = len(content) if size is None else size
    digits = b"%011o\0" % size if isinstance(size, int) else size
    fields = (raw_name, b"%07o" % mode, b"0000000", b"0000000", digits, b"%011o" % 0, b" " * 8, kind, link, magic)
    head = struct.pack("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x", *fields, b"", b"", b"", b"", prefix)
    total = sum(head) if checksum is None else checksum
    return head[:148] + b"%06o\0 " % total + head[156:] + content + bytes(-len(content) % 512)


def pax(kind: bytes = b"x", **fields: str) -> bytes:
    """A PAX header with these records."""
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
    """A `.tar.gz` of these blocks."""
    return gzip.compress(b"".join(blocks) + end, level, mtime=0)


@dataclass
class Zipped:
    """One zip member; what is given lies where it differs from the content."""

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
    """A `.zip` of these members."""
    out, central = b"", b""
    for each in members:
        out += each.before
        offset = len(out) if each.offset is None else each.offset
        name = each.name if each.local_name is None else each.local_name
        assert isinstance(name, bytes) and isinstance(each.name, bytes)
        seen = (0, 0, 0) if each.flags & 8 else (each.crc, len(each.packed), each.size)
        if each.local_size is not None:
            seen = (0 if each.flags & 8 else each.crc, len(each.packed), each.local_size)
        shared = (20, each.flags, each.method, 0, 33)
        if not each.listed_only:
            head = struct.pack("<4s5H3L2H", b"PK\3\4", *shared, *seen, len(name), 0)
            out += head + name + each.packed + each.descriptor
        sizes = (each.crc, len(each.packed), each.size, len(each.name), 0, 0, 0, 0, each.mode << 16, offset)
        central += struct.pack("<4s6H3L5H2L", b"PK\1\2", each.system << 8 | 20, *shared, *sizes) + each.name
    out += gap
    number = len(members) if count is None else count
    end = (disk, disk, number, number, len(central), len(out) + shift, len(comment))
    return out + central + struct.pack("<4s4H2LH", b"PK\5\6", *end) + comment


Z_GOOD = Zipped("SKILL.md", SKILL_MD)


def by_tarfile(files: Iterable[tuple[str, bytes]], form: int) -> bytes:
    """A `.tar.gz` as Python's tarfile writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=form) as tar:
        for name, raw in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(raw), 1.5
            tar.addfile(info, io.BytesIO(raw))
    return out.getvalue()


def by_zipfile(files: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A `.zip` as Python's zipfile writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, raw in files:
            made.writestr(name, raw)
    return out.getvalue()


def _overlapping() -> bytes:
    """Two members over one content, the trick of the best zip bombs."""
    return zipped(Z_GOOD, Zipped("b", SKILL_MD, offset=0, local_name=b""))


_DAMAGED = bytearray(tar_gz(GOOD))
_DAMAGED[20] ^= 0xFF
_BAD_NAMES = {
    "traversal": ("../evil", "leads out of the skill"),
    "traversal-inside": ("a/../../evil", "leads out of the skill"),
    "traversal-harmless": ("a/../b", "leads out of the skill"),
    "traversal-last": ("a/..", "leads out of the skill"),
    "absolute": ("/etc/passwd", "is absolute"),
    "network": ("//host/share", "is absolute"),
    "drive": ("C:/evil", "begins with a drive letter"),
    "drive-relative": ("c:evil", "begins with a drive letter"),
    "backslash": ("..\\evil", "holds a backslash"),
    "newline": ("a\nb", "holds a control character"),
    "escape": ("\x1b[31mred", "holds a control character"),
    "delete": ("a\x7f", "holds a control character"),
    "c1-control": ("a\x85b", "holds a control character"),
    "line-separator": ("a\u2028b", "holds a control character"),
    "dot-inside": ("a/./b", "is not a plain path"),
    "two-slashes": ("a//b", "is not a plain path"),
    "two-dots-before": ("././a", "is not a plain path"),
    "empty": ("", "is not a plain path"),
    "long-segment": ("x" * 256, "is too long"),
    "long-path": ("/".join(["x" * 250] * 5), "is too long"),
    "deep": ("/".join("x" * 33), "levels deep"),
    "windows-device": ("scripts/NUL.txt", "Windows cannot hold the name"),
    "windows-character": ("what?.md", "Windows cannot hold the name"),
    "windows-stream": ("notes.md:hidden", "Windows cannot hold the name"),
    "windows-dot": ("notes.", "Windows cannot hold the name"),
    "windows-space": ("notes /a.md", "Windows cannot hold the name"),
}


def _named(name: str) -> bytes:
    return tar_gz(GOOD, pax(path=name), block("x", b"!"))


HOSTILE: dict[str, tuple[bytes, str]] = {
    # Neither format
    "nothing": (b"", "neither a .tar.gz nor a .zip"),
    "html": (b"<!doctype html><title>Not found</title>", "neither a .tar.gz nor a .zip"),
    "plain-tar": (GOOD + END, "neither a .tar.gz nor a .zip"),
    "bzip2": (b"BZh91AY&SY", "neither a .tar.gz nor a .zip"),
    "zip-behind-a-program": (b"MZ" + zipped(Z_GOOD), "neither a .tar.gz nor a .zip"),
    # Names
    **{f"tar-{key}": (_named(name), said) for key, (name, said) in _BAD_NAMES.items()},
    **{f"zip-{key}": (zipped(Z_GOOD, Zipped(name)), said) for key, (name, said) in _BAD_NAMES.items()},
    "tar-nul": (_named("a\0b"), "holds a control character"),
    "zip-nul": (zipped(Zipped("a\0.txt", b"!")), "holds a control character"),
    "tar-latin-1": (tar_gz(block(b"caf\xe9", b"!")), "is not UTF-8"),
    "zip-latin-1": (zipped(Zipped(b"caf\xe9", b"!", flags=0)), "is not UTF-8"),
    "tar-prefix-traversal": (tar_gz(block("evil", b"!", prefix=b"..")), "leads out of the skill"),
    "tar-prefix-absolute": (tar_gz(block("passwd", b"!", prefix=b"/etc")), "is absolute"),
    "tar-long-name-traversal": (
        tar_gz(block("././@LongLink", b"../evil\0", b"L", magic=b"ustar  \0"), block("x", b"!")),
        "leads out of the skill",
    ),
    "tar-directory-traversal": (tar_gz(block("../evil/", kind=b"5")), "leads out of the skill"),
    "zip-directory-traversal": (zipped(Zipped("../evil/", mode=0o40755)), "leads out of the skill"),
    "tar-root-slash": (tar_gz(block("/", kind=b"5")), "is absolute"),
    "tar-twice": (tar_gz(GOOD, GOOD), "'SKILL.md' appears twice"),
    "tar-twice-by-dot": (tar_gz(GOOD, block("./SKILL.md", b"!")), "'SKILL.md' appears twice"),
    "zip-twice": (zipped(Z_GOOD, Zipped("SKILL.md", b"!")), "'SKILL.md' appears twice"),
    "tar-case": (tar_gz(GOOD, block("skill.md", b"!")), "cannot tell it from"),
    "zip-case": (zipped(Z_GOOD, Zipped("Skill.md", b"!")), "cannot tell it from"),
    "tar-directory-case": (tar_gz(block("A/x", b"!"), block("a/y", b"!")), "cannot tell it from"),
    "tar-normalisation": (tar_gz(block("\u00e9", b"!"), block("e\u0301", b"!")), "cannot tell it from"),
    "tar-file-then-directory": (tar_gz(block("a", b"!"), block("a/b", b"!")), "both a file and a directory"),
    "tar-directory-then-file": (tar_gz(block("a/b", b"!"), block("a", b"!")), "both a file and a directory"),
    "tar-file-then-empty-directory": (tar_gz(block("a", b"!"), block("a/", kind=b"5")), "both a file and a directory"),
    "zip-file-then-directory": (zipped(Zipped("a", b"!"), Zipped("a/b", b"!")), "both a file and a directory"),
    "zip-file-that-says-directory": (zipped(Zipped("a", b"!", mode=0o40755)), "both a file and a directory"),
    "zip-directory-that-says-file": (zipped(Zipped("a/", mode=0o100644)), "both a file and a directory"),
    "tar-file-with-slash": (tar_gz(block("a/", b"!")), "has the name of a directory"),
    "tar-directory-with-content": (tar_gz(block("a/", b"!", b"5")), "has content"),
    "zip-directory-with-content": (zipped(Zipped("a/", b"!", mode=0o40755)), "has content"),
    # Kinds
    "tar-symbolic-link": (tar_gz(GOOD, block("a", kind=b"2", link=b"/etc/passwd")), "'a' is a symbolic link"),
    "tar-symbolic-link-inside": (tar_gz(GOOD, block("a", kind=b"2", link=b"SKILL.md")), "'a' is a symbolic link"),
    "tar-hard-link": (tar_gz(GOOD, block("a", kind=b"1", link=b"SKILL.md")), "'a' is a hard link"),
    "tar-long-link": (tar_gz(block("././@LongLink", b"../x\0", b"K")), "is a link"),
    "tar-character-device": (tar_gz(block("a", kind=b"3")), "'a' is a device"),
    "tar-block-device": (tar_gz(block("a", kind=b"4")), "'a' is a device"),
    "tar-named-pipe": (tar_gz(block("a", kind=b"6")), "'a' is a named pipe"),
    "tar-sparse": (tar_gz(block("a", kind=b"S")), "of a kind that no skill needs"),
    "tar-sparse-by-pax": (tar_gz(pax(GNU__sparse__major="1"), block("a", b"!")), "a sparse file"),
    "tar-volume": (tar_gz(block("a", kind=b"V")), "of a kind that no skill needs"),
    "tar-unknown-kind": (tar_gz(block("a", kind=b"\x1b")), "of a kind that no skill needs"),
    "zip-symbolic-link": (zipped(Z_GOOD, Zipped("a", b"/etc", mode=0o120777)), "'a' is a symbolic link"),
    "zip-symbolic-link-from-dos": (zipped(Zipped("a", b"/etc", mode=0o120777, system=0)), "'a' is a symbolic link"),
    "zip-device": (zipped(Zipped("a", mode=0o020666)), "a device or a named pipe"),
    "zip-named-pipe": (zipped(Zipped("a", mode=0o010666)), "a device or a named pipe"),
    "zip-encrypted": (zipped(Zipped("a", b"!", flags=0x801)), "'a' is encrypted"),
    "zip-strongly-encrypted": (zipped(Zipped("a", b"!", flags=0x841)), "'a' is encrypted"),
    "zip-masked": (zipped(Zipped("a", b"!", flags=0x2800)), "'a' is encrypted"),
    "zip-lzma": (by_zipfile([("a", b"!")], zipfile.ZIP_LZMA), "a method other than deflate"),
    # Bombs
    "tar-bomb-ratio": (tar_gz(block("a", bytes(15 << 20))), "more than 200 times its size"),
    "zip-bomb-ratio": (zipped(Zipped("a", bytes(15 << 20), method=8)), "more than 200 times its size"),
    "zip-bomb-that-lies": (zipped(Zipped("a", bytes(15 << 20), method=8, size=10)), "not what its size or checksum"),
    "tar-bomb-behind-the-end": (tar_gz(GOOD, end=END + bytes(15 << 20)), "data follows the end of the tar"),
    "tar-one-large-file": (tar_gz(block("a", size=(16 << 20) + 1)), "at most 16777216 are unpacked"),
    "zip-one-large-file": (zipped(Zipped("a", b"!" * 100_000, size=(16 << 20) + 1)), "at most 16777216 are unpacked"),
    "tar-huge-size": (tar_gz(block("a", size=8**11 - 1)), "at most 16777216 are unpacked"),
    "tar-many-files": (tar_gz(*(block(f"{n}", b"") for n in range(1001))), "more than 1000 files"),
    "zip-many-files": (zipped(*(Zipped(f"{n}") for n in range(1001))), "more than 1000 files"),
    "tar-many-directories": (tar_gz(*(block(f"{n}/", kind=b"5") for n in range(4005))), "more than 4004 members"),
    "zip-many-directories": (zipped(*(Zipped(f"{n}/", mode=0o40755) for n in range(4005))), "more than 4004 members"),
    "tar-many-headers": (tar_gz(*([pax(comment="x")] * 4005), level=0), "more than 4004 members"),
    "tar-large-header": (tar_gz(pax(comment="x" * 70_000), GOOD), "a header of"),
    "tar-large-headers-together": (
        tar_gz(*([pax(comment="x" * 60_000)] * 18), GOOD, level=0),
        "headers of more than 1048576 bytes",
    ),
    "tar-large-headers-for-all": (
        tar_gz(*([pax(b"g", comment="x" * 60_000)] * 18), GOOD, level=0),
        "headers of more than 1048576 bytes",
    ),
    "tar-large-long-names": (
        tar_gz(*([block("././@LongLink", b"x" * 60_000, b"L", magic=b"ustar  \0")] * 18), GOOD, level=0),
        "headers of more than 1048576 bytes",
    ),
    "tar-deep-directories": (
        tar_gz(*(block(f"{'d/' * 20}e", kind=b"5", prefix=b"%d" % n) for n in range(200))),
        "more than 4004 directories",
    ),
    "zip-deep-files": (zipped(*(Zipped(f"{n}/{'d/' * 20}f") for n in range(200))), "more than 4004 directories"),
    # Damage
    "gzip-alone": (b"\x1f\x8b", "truncated"),
    "gzip-of-text": (gzip.compress(b"Read on.\n"), "truncated"),
    "gzip-damaged": (bytes(_DAMAGED), "damaged"),
    "gzip-checksum": (tar_gz(GOOD)[:-8] + bytes(8), "damaged"),
    "tar-without-an-end": (tar_gz(GOOD, end=b""), "truncated"),
    "tar-with-half-an-end": (tar_gz(GOOD, end=bytes(512)), "truncated"),
    "tar-cut-content": (gzip.compress(GOOD[:600]), "truncated"),
    "tar-data-behind-the-end": (tar_gz(GOOD, end=END + GOOD + END), "data follows the end of the tar"),
    "tar-data-behind-half-the-end": (tar_gz(GOOD, end=bytes(512) + GOOD), "data follows the end of the tar"),
    "gzip-data-behind-the-end": (tar_gz(GOOD) + b"!", "data follows the end of the gzip stream"),
    "gzip-zeros-behind-the-end": (tar_gz(GOOD) + bytes(512), "data follows the end of the gzip stream"),
    "gzip-two-streams": (tar_gz(GOOD) + tar_gz(GOOD), "data follows the end of the gzip stream"),
    "gzip-then-zip": (tar_gz(GOOD) + zipped(Z_GOOD), "data follows the end of the gzip stream"),
    "tar-checksum": (tar_gz(block("a", b"!", checksum=1)), "checksum of a tar header"),
    "tar-size-in-words": (tar_gz(block("a", size=b"many")), "a number is not octal"),
    "tar-size-in-binary": (tar_gz(block("a", size=b"\x80" + bytes(10) + b"\x05")), "a number is not octal"),
    "tar-two-sizes": (tar_gz(pax(size="3"), block("a", b"12345")), "has two sizes"),
    "tar-pax-size-negative": (tar_gz(pax(size="-3"), block("a")), "is not a number"),
    "tar-pax-damaged": (tar_gz(block("x", b"no record", b"x"), GOOD), "a PAX header cannot be read"),
    "tar-pax-length-zero": (tar_gz(block("x", b"0 path=a\n", b"x"), GOOD), "a PAX header cannot be read"),
    "tar-pax-length-too-great": (tar_gz(block("x", b"99 path=a\n", b"x"), GOOD), "a PAX header cannot be read"),
    "tar-pax-for-all": (tar_gz(pax(b"g", path="SKILL.md"), block("a", b"!")), "gives all members one name"),
    "tar-pax-for-none": (tar_gz(GOOD, pax(path="a")), "no member follows a header"),
    "zip-overlapping": (_overlapping(), "overlaps another member"),
    "zip-bytes-between": (zipped(Z_GOOD, Zipped("a", b"!", before=b"hidden")), "belong to no member"),
    "zip-bytes-before-the-directory": (zipped(Z_GOOD, gap=b"hidden"), "belong to no member"),
    "zip-bytes-at-the-start": (zipped(Zipped("SKILL.md", SKILL_MD, before=b"PK\3\4hidden")), "belong to no member"),
    "zip-shifted": (zipped(Z_GOOD, shift=-4), "bytes before or between"),
    "zip-data-behind-the-end": (zipped(Z_GOOD) + b"!", "data follows its end"),
    "zip-two-ends": (zipped(Z_GOOD, comment=zipped(Z_GOOD)), "two end records"),
    "zip-two-names": (zipped(Zipped("a", b"!", local_name=b"b")), "described in two ways"),
    "zip-two-sizes": (zipped(Zipped("a", b"!", local_size=5)), "described in two ways"),
    "zip-no-descriptor": (zipped(Zipped("a", b"!", flags=0x808)), "described in two ways"),
    "zip-wrong-descriptor": (zipped(Zipped("a", b"!", flags=0x808, descriptor=bytes(12))), "described in two ways"),
    "zip-checksum": (zipped(Zipped("a", b"!", crc=1)), "not what its size or checksum"),
    "zip-stored-size": (zipped(Zipped("a", b"!", size=2)), "not what its size or checksum"),
    "zip-deflated-size": (zipped(Zipped("a", b"!" * 9, method=8, size=10)), "not what its size or checksum"),
    "zip-no-member-there": (zipped(Zipped("a", b"!", offset=10**6)), "belong to no member"),
    "zip-listed-only": (zipped(Z_GOOD, Zipped("a", b"!", listed_only=True)), "has no header of its own"),
    "zip-count": (zipped(Z_GOOD, count=2), "size of its directory is wrong"),
    "zip-parts": (zipped(Z_GOOD, disk=1), "one part of several"),
    "zip64": (zipped(Z_GOOD, count=0xFFFF), "zip64"),
    "zip64-member": (zipped(Zipped("a", b"!", size=0xFFFFFFFF)), "zip64"),
}
"""What is refused, by a name, with words of the reason."""
