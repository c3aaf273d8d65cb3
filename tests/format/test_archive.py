"""Packing of skill files to an archive, and unpacking of untrusted archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format.archive import (
    TAR_GZ,
    ZIP,
    ArchiveRefusedError,
    UnpackLimits,
    check_paths,
    pack,
    pack_tar,
    unpack,
)
from mcp_skills_server.format.archive import zip as zip_format
from mcp_skills_server.format.archive.tar import fits_ustar
from mcp_skills_server.format.archive.tree import Tree
from tables import each_row

from .archives import (
    END,
    GOOD,
    HOSTILE,
    SKILL_MD,
    Z_GOOD,
    Zipped,
    block,
    by_tarfile,
    by_zipfile,
    pax,
    tar_gz,
    tar_xz,
    zipped,
)

TREE = {
    "SKILL.md": (b"---\nname: a\ndescription: b\n---\n", False),
    "scripts/run.sh": (b"#!/bin/sh\necho done\n", True),
    "assets/empty": (b"", False),
    "assets/large": (bytes(range(256)) * 600, False),
}
UNICODE_TREE = {**TREE, "references/Grüße.md": ("Grüß Gott\n".encode(), False), "日本語.md": (b"", True)}
TREE_BYTES = sum(len(content) for content, _ in TREE.values())
_CHARACTER = st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters='/\\<>:"|?*')
_NAME = st.text(_CHARACTER, min_size=1, max_size=60).filter(lambda name: name[-1] not in " .")
_PATH = st.lists(_NAME, min_size=1, max_size=6).map("/".join)
_ASCII = st.lists(st.text("abc-_0", min_size=1, max_size=90), min_size=1, max_size=4).map("/".join)
_FILE = st.tuples(st.binary(max_size=2000) | st.just(bytes(70_000)), st.booleans())
DESCRIPTOR = zlib.crc32(b"!").to_bytes(4, "little") + b"\1\0\0\0" * 2


def is_portable(paths: Any) -> bool:
    try:
        check_paths(paths)
    except ArchiveRefusedError:
        return False
    return True


_TREES = st.dictionaries(_PATH | _ASCII, _FILE, max_size=8).filter(is_portable)


def open_tar(raw: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz")


def unpack_with_python(raw: bytes) -> dict[str, tuple[bytes, bool]]:
    """Return content and executable bit of each file, read with the standard library."""
    if raw.startswith(b"PK"):  # is_zipfile also accepts a mark inside a file
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            return {each.filename: (archive.read(each), bool(each.external_attr >> 16 & 0o100)) for each in members}
    with open_tar(raw) as tar:
        return {each.name: (tar.extractfile(each).read(), bool(each.mode & 0o100)) for each in tar.getmembers()}  # pyright: ignore[reportOptionalMemberAccess]


@example({"0": (b"PK\5\6", False)})
@given(_TREES)
def test_packed_files_are_unpacked_again_and_by_python(files: dict[str, tuple[bytes, bool]]):
    shuffled = dict(reversed(files.items()))
    (suffix, packed), tar = pack(files), pack_tar(files)
    assert pack(shuffled) == (suffix, packed)
    assert pack_tar(shuffled) == tar
    assert suffix == ZIP or packed == tar
    for raw in {packed, tar}:
        assert list(unpack(raw).items()) == sorted(files.items())
        assert unpack_with_python(raw) == files


@pytest.mark.requirement("X-4", "WK-15")
@each_row(("files", "suffix", "digest"), [
    (TREE, TAR_GZ, "13fe719a5b6fef905016eaddcabd546f6d607ac4d1c951b9a91aa8be88de2a8b"),
    (UNICODE_TREE, ZIP, "f8ab36af34c757f63dfbf756be517f331230f4ea063de07d61797826031a0db5"),
])  # fmt: skip
def test_packed_bytes_do_not_depend_on_zlib(files: Any, suffix: str, digest: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("compress", "compressobj"):
        monkeypatch.delattr(zlib, name)
    packed_suffix, raw = pack(files)
    assert (packed_suffix, hashlib.sha256(raw).hexdigest()) == (suffix, digest)


@pytest.mark.requirement("X-4", "WK-21", "WK-23", "WK-24", "WKO-5", "WKO-6", "WKO-7", "WKO-9")
def test_tar_has_sorted_plain_files_and_no_host_metadata():
    raw = pack(TREE)[1]
    assert raw[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    with open_tar(raw) as tar:
        members = tar.getmembers()
        assert tar.pax_headers == {}
    assert [each.name for each in members] == sorted(TREE)
    for each in members:
        assert each.isreg() and each.mode == (0o755 if each.name.endswith(".sh") else 0o644)
        assert (each.uid, each.gid, each.uname, each.gname, each.mtime, each.linkname) == (0, 0, "", "", 0, "")
        assert each.pax_headers == {}
    plain = gzip.decompress(raw)
    assert plain[257:265] == b"ustar\x0000" and plain[-1024:] == bytes(1024)


@pytest.mark.requirement("WKO-9", "X-4")
@each_row(("path", "suffix"), [
    ("a" * 100, TAR_GZ), ("a" * 101, ZIP), ("a" * 155 + "/" + "b" * 100, TAR_GZ),
    ("a" * 156 + "/" + "b" * 100, ZIP), ("a" * 155 + "/" + "b" * 101, ZIP),
    ("a" * 54 + "/" + "b" * 100 + "/" + "c" * 100, TAR_GZ), ("a" * 55 + "/" + "b" * 100 + "/" + "c" * 100, ZIP),
    ("a/" + "b" * 100, TAR_GZ), ("/".join(["ab"] * 30), TAR_GZ), ("with blanks (and) signs.md", TAR_GZ), ("é.md", ZIP),
])  # fmt: skip
def test_path_that_ustar_cannot_hold_is_packed_as_a_zip(path: str, suffix: str):
    packed_suffix, raw = pack({path: (b"!", False)})
    assert (packed_suffix, list(unpack(raw))) == (suffix, [path])


@pytest.mark.requirement("WK-24")
@each_row("path", ["../a", "a/../b", "/a", "C:/a", "a\\b", "a\nb", "a\0b", "", "a//b", "./a", "a/", ".", "\ud800"])
def test_pack_refuses_paths_that_are_not_plain(path: str):
    with pytest.raises(ArchiveRefusedError) as caught:
        pack({path: (b"", False)})
    assert str(caught.value).isprintable()


@each_row(("limit", "value", "reduced"), [("_MAX_MEMBERS", 0xFFFF, 9), ("_MAX_BYTES", 0xFFFFFFFF, 9 * 33)])
def test_pack_refuses_more_than_a_zip_can_hold(limit: str, value: int, reduced: int, monkeypatch: pytest.MonkeyPatch):
    assert getattr(zip_format, limit) == value
    monkeypatch.setattr(zip_format, limit, reduced)
    files = {f"é{number}": (b"", False) for number in range(9)}
    with pytest.raises(ArchiveRefusedError, match="too large"):
        pack(files)
    files.popitem()
    assert len(zipfile.ZipFile(io.BytesIO(pack(files)[1])).namelist()) == 8


def test_ustar_file_and_unpacked_tree_have_size_limits() -> None:
    assert fits_ustar("a", 8**11 - 1) and not fits_ustar("a", 8**11)
    tree = Tree(UnpackLimits())
    for name, size in (("a", 16), ("b", 16), ("c", 16), ("d", 2)):
        tree.reserve(name, size << 20)
    with pytest.raises(ArchiveRefusedError, match="more than 52428800 bytes"):
        tree.reserve("e", 1)


@pytest.mark.parametrize(("command", "files"), [
    pytest.param("tar -xpzf packed --no-same-owner", TREE, marks=pytest.mark.needs_program("tar")),
    pytest.param("unzip -q packed", UNICODE_TREE, marks=pytest.mark.needs_program("unzip")),
])  # fmt: skip
def test_packed_files_are_unpacked_by_tar_and_unzip(tmp_path: Path, command: str, files: dict[str, tuple[bytes, bool]]):
    (tmp_path / "packed").write_bytes(pack(files)[1])
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True, env=environment)
    assert done.stderr == b""
    for path, (raw, executable) in files.items():
        assert (tmp_path / path).read_bytes() == raw
        assert bool((tmp_path / path).stat().st_mode & 0o100) is executable


@pytest.fixture
def skill_folder(tmp_path: Path) -> Path:
    """Return a folder with `ON_DISK` and an empty directory."""
    for folder in ("scripts", "empty"):
        (tmp_path / "skill" / folder).mkdir(parents=True)
    for path, (raw, executable) in ON_DISK.items():
        (tmp_path / "skill" / path).write_bytes(raw)
        (tmp_path / "skill" / path).chmod(0o755 if executable else 0o644)
    return tmp_path / "skill"


ON_DISK = {
    "Grüße.md": (b"ascii\n", False), "SKILL.md": (SKILL_MD, False), "long-" * 21: (b"long\n", False),
    "scripts/run.sh": (b"echo done\n", True),
}  # fmt: skip


@pytest.mark.requirement("WK-25")
@pytest.mark.needs_program("tar")
@pytest.mark.parametrize("form", ["gnu", "pax", "posix"])
def test_archive_written_by_tar_is_unpacked(skill_folder: Path, form: str):
    command = ["tar", "-cz", f"--format={form}", "."]
    done = subprocess.run(command, cwd=skill_folder, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this tar does not support {form}")
    assert unpack(done.stdout) == ON_DISK


@pytest.mark.requirement("WK-25")
@pytest.mark.needs_program("zip")
@pytest.mark.parametrize("options", ["-9", "-0", "-X", ""])
def test_archive_written_or_streamed_by_zip_is_unpacked(skill_folder: Path, options: str):
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    target = "../packed.zip" if options else "-"
    command = ["zip", "-q", "-r", *options.split(), target, "."]
    done = subprocess.run(command, cwd=skill_folder, capture_output=True, check=True, env=environment)
    raw = (skill_folder.parent / "packed.zip").read_bytes() if options else done.stdout
    assert unpack(raw) == ON_DISK


@pytest.mark.requirement("WK-25", "WK-26")
@each_row("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archive_written_by_python_is_unpacked(form: int):
    long_name = "x" * (99 if form == tarfile.USTAR_FORMAT else 150)
    files = {"SKILL.md": SKILL_MD, "scripts/a.sh": b"", long_name: b"!" * 600}
    for archive in (by_tarfile(files.items(), form), by_zipfile(files.items())):
        assert {path: raw for path, (raw, _) in unpack(archive).items()} == files


LONG_NAME = block("././@LongLink", b"a/b\0", b"L", magic=b"ustar  \0")


@each_row("raw", [
    *(tar_gz(*blocks) for blocks in (
        (block("./", kind=b"5"), block("./a/", kind=b"5", mode=0o755), block("./a/b", b"!")),
        (block("a/", kind=b"\0", magic=b""), block("a/b", b"!", b"\0", magic=b"")), (block("a/b", b"!", b"7"),),
        (block("b", b"!", prefix=b"a"),), (LONG_NAME, block("x", b"!", magic=b"ustar  \0")),
        (pax(b"g", comment="0123"), pax(mtime="1.5", path="a/b", size="1"), block("x", b"!")),
        (pax(path="a/b"), block(b"caf\xc3", b"!")))),
    tar_gz(block("a/b", b"!"), end=bytes(10240)), tar_gz(block("a/b", b"!"), level=0),
    block("a/b", b"!") + bytes(10240), tar_xz(block("a/b", b"!")),
    zipped(Zipped("a/", mode=0o40755), Zipped("a/b", b"!")),
    zipped(Zipped("a/", mode=0o40755, method=8), Zipped("a/b", b"!", method=8)),
    zipped(Zipped("a/b", b"!"), comment=b"x" * 0xFFFF),
    *(zipped(member) for member in (
        Zipped("a/b", b"!", flags=0), Zipped("a/b", b"!", system=0, mode=0), Zipped("./a/b", b"!"),
        Zipped("a/b", b"!", flags=8, descriptor=b"PK\7\10" + DESCRIPTOR),
        Zipped("a/b", b"!", flags=8, descriptor=DESCRIPTOR),
        Zipped("a/b", b"!", flags=8, descriptor=DESCRIPTOR, local_size=1))),
])  # fmt: skip
def test_every_valid_encoding_of_a_file_is_unpacked(raw: bytes):
    assert unpack(raw) == {"a/b": (b"!", False)}


def headers(*sizes: int) -> list[bytes]:
    """Return PAX headers of these sizes in bytes."""
    return [pax(comment="x" * (size - len(f"{size} comment=\n"))) for size in sizes]


def archives_of(*names: str) -> tuple[bytes, bytes]:
    """Return a tar and a zip of these members; a name that ends in a slash is a directory."""
    kinds = [(name, b"5", 0o40755) if name.endswith("/") else (name, b"0", 0o644) for name in names]
    tar = tar_gz(*(block(name, kind=kind) for name, kind, _ in kinds))
    return tar, zipped(*(Zipped(name, mode=mode) for name, _, mode in kinds))


def padded_zip(size: int, total: int) -> bytes:
    """Return a zip of `total` bytes with a file of `size` zeros."""
    member = Zipped("a", bytes(size), method=8)
    return zipped(member, comment=b"-" * (total - len(zipped(member))))


_MEMBER = block("a", b"!")
_DEEP = "/".join("x" * 31)


@pytest.mark.requirement("WK-30", "WKO-9")
@each_row(("fits", "exceeds", "reason"), [
    *((pack({path: (b"", False)})[1], tar_gz(pax(path=path + more), _MEMBER), reason) for path, more, reason in (
        ("x" * 255, "x", "too long"), ("é" * 127 + "x", "x", "too long"),
        ("/".join(["x" * 250] * 4 + ["x" * 20]), "x", "too long"),
        (f"{_DEEP}/{'x' * 255}", "/x", "more than 32 levels"))),
    *((fits, exceeds, f"more than {reason}") for names, one_more, reason in (
        ([f"{n}" for n in range(1000)], "x", "1000 files"),
        ([*(f"{n}/" for n in range(4003)), "x"], "y", "4004 members"),
        (["/".join((f"{n}", *"d" * 22)) for n in range(182)], "e/f", "4004 directories"),
    ) for fits, exceeds in zip(archives_of(*names), archives_of(*names, one_more), strict=True)),
    (tar_gz(*headers(1 << 16), _MEMBER), tar_gz(*headers((1 << 16) + 1), _MEMBER), "a header of 65537 bytes"),
    (tar_gz(*headers(*[1 << 16] * 16), _MEMBER, level=0), tar_gz(*headers(*[1 << 16] * 16, 20), _MEMBER, level=0),
     "headers of more than 1048576 bytes"),
    (tar_gz(_MEMBER, end=END + bytes(1 << 20), level=0), tar_gz(_MEMBER, end=END + bytes((1 << 20) + 1), level=0),
     "data follows the end"),
    (tar_gz(block("a", bytes((1 << 20) - 1536))), tar_gz(block("a", bytes((1 << 20) - 1536)), end=END + b"\0"),
     "more than 200 times its size"),
    (padded_zip(1 << 20, 2_000), padded_zip((1 << 20) + 1, 2_000), "more than 200 times its size"),
    (padded_zip(2_000_000, 10_000), padded_zip(2_000_001, 10_000), "more than 200 times its size"),
])  # fmt: skip
def test_unpack_limit_is_exact(fits: bytes, exceeds: bytes, reason: str) -> None:
    assert unpack(fits)
    with pytest.raises(ArchiveRefusedError, match=reason):
        unpack(exceeds)


@pytest.mark.requirement("WK-28", "WK-29", "WK-30", "WK-61")
@each_row(("raw", "reason"), HOSTILE)
def test_hostile_archive_is_refused_with_its_reason(raw: bytes, reason: str):
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveRefusedError) as caught:
            unpack(raw)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert reason in message and message.isprintable() and len(message) < 200


@pytest.mark.requirement("WK-30", "WKN-2")
@each_row(("limits", "reason"), [
    (UnpackLimits(files=3), "more than 3 files"), (UnpackLimits(file=153_599), "has 153600 bytes, at most 153599"),
    (UnpackLimits(bytes=TREE_BYTES - 1), f"unpacks to more than {TREE_BYTES - 1} bytes"),
])  # fmt: skip
@each_row("raw", [pack(TREE)[1], by_zipfile((path, raw) for path, (raw, _) in TREE.items())])
def test_custom_unpack_limit_is_exact(limits: UnpackLimits, reason: str, raw: bytes):
    with pytest.raises(ArchiveRefusedError, match=reason):
        unpack(raw, limits)
    assert len(unpack(raw, UnpackLimits(files=4, bytes=TREE_BYTES, file=153_600))) == 4


def test_header_limit_grows_with_the_file_limit():
    files = tar_gz(*(pax(comment="x" * 30_000) + block(f"{n}", b"!") for n in range(40)), level=0)
    with pytest.raises(ArchiveRefusedError, match="headers of more than 1048576 bytes"):
        unpack(files)
    assert len(unpack(files, UnpackLimits(files=2000))) == 40


def test_archive_without_files_is_unpacked_to_nothing():
    assert unpack(zipped()) == {}
    assert unpack(zipped(Zipped("a/", mode=0o40755))) == {}


def test_tar_of_only_full_stored_blocks_is_complete():
    whole = pack_tar({"a": (bytes(512 * 0xFFFF - 1536), False)})
    assert len(gzip.decompress(whole)) == 512 * 0xFFFF


def unpack_or_refuse(raw: bytes) -> None:
    """Unpack; any exception but a refusal fails the test."""
    with suppress(ArchiveRefusedError):
        check_paths(unpack(raw))


SMALL = [
    pack({"SKILL.md": (SKILL_MD, False)})[1],
    pack({"é": (SKILL_MD, True)})[1],
    tar_gz(pax(path="a"), GOOD, block("b/", kind=b"5")),
    by_zipfile([("SKILL.md", SKILL_MD), ("a/b", b"!" * 50)]),
    zipped(Zipped("a", b"!", flags=8, descriptor=DESCRIPTOR), Z_GOOD),
]


@each_row("raw", SMALL)
def test_truncated_or_damaged_archive_is_refused_or_unpacked(raw: bytes):
    unpack(raw)
    for place, byte in enumerate(raw):
        with pytest.raises(ArchiveRefusedError):
            unpack(raw[:place])
        for bits in (0x01, 0x80, 0xFF):
            unpack_or_refuse(raw[:place] + bytes([byte ^ bits]) + raw[place + 1 :])


_STARTS = st.sampled_from([*SMALL, b"\x1f\x8b\x08\0", b"PK\3\4", b"PK\5\6", b""])


@given(_STARTS, st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=300)), max_size=4))
def test_edited_archive_is_refused_or_unpacked(raw: bytes, edits: list[tuple[int, bytes]]):
    for position, inserted in edits:
        raw = raw[:position] + inserted + raw[position + len(inserted) // 2 :]
    unpack_or_refuse(raw)


@given(st.binary(max_size=1500), st.integers(0, 511), st.binary(max_size=40))
def test_tar_with_any_header_is_refused_or_unpacked(body: bytes, position: int, field: bytes):
    head = bytearray(block("a"))
    head[position : position + len(field)] = field
    head = head[:512]
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    for blocks in ((bytes(head) + body,), (block("x", body, b"x"), GOOD), (block("x", body, b"L"), GOOD)):
        unpack_or_refuse(tar_gz(*blocks))


@pytest.mark.requirement("WK1-8")
@each_row("paths", [["../a"], ["a", "A"], ["a", "a"], ["a", "a/b"], ["aux"], ["a/"]])
def test_check_paths_refuses_paths_that_are_not_portable(paths: list[str]):
    with pytest.raises(ArchiveRefusedError):
        check_paths(paths)
    check_paths(["SKILL.md", "a/b", "a/c", "b/a", ".hidden", "é"])
