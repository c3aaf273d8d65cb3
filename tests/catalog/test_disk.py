"""The boundary to the disk: a read gives the scanned bytes or nothing, and no link is followed."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from catalog.forest import loaded, plant, skill_md, whole
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SkillFile
from tables import each_row
from wire import write_skill


def walk(top: Path, *, depth: int = 6, most_files: int = 512) -> tree.Directory:
    with disk.open_directory(str(top), "") as handle:
        return whole(tree.Walk(0, most_files).read_directory(handle, "", depth))


def file_at(top: Path, location: str) -> SkillFile:
    return disk.file_from(os.lstat(top / location), 0, location, time.time_ns())


@pytest.mark.requirement("X-5")
def test_no_link_is_followed_on_the_way_to_a_directory(tmp_path: Path) -> None:
    plant(tmp_path / "outside", {"b/file.md": "x"})
    plant(tmp_path / "root", {"real/b/file.md": "x"})
    (tmp_path / "root/a").symlink_to(tmp_path / "outside")
    for path in ("a", "a/b"):
        with pytest.raises(OSError, match="Not a directory"), disk.open_directory(str(tmp_path / "root"), path):
            pass
    with disk.open_directory(str(tmp_path / "root"), "real/b") as handle:
        assert os.listdir(handle) == ["file.md"]


@pytest.mark.requirement("X-3")
@each_row("raw", [b"", b"a\r\nb\r\n", b"\xef\xbb\xbf# hi\n", bytes(range(256)), b"\0" * 10, b"x" * 3_000_001])
def test_read_gives_the_exact_bytes(tmp_path: Path, raw: bytes) -> None:
    plant(tmp_path, {"d/file": raw})
    assert disk.read(str(tmp_path / "d/file"), len(raw))[0] == raw


def test_read_goes_on_when_the_system_gives_less_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"file": "hello"})
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 2)))
    assert disk.read(str(tmp_path / "file"), 5)[0] == b"hello"


def test_a_file_that_grows_while_it_is_read_has_the_digest_of_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"file": "hello"})
    file, real = file_at(tmp_path, "file"), os.read

    def read(descriptor: int, size: int) -> bytes:
        with (tmp_path / "file").open("ab") as other:
            other.write(b"more")
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    assert disk.ingest(str(tmp_path), "file", file, 100) == b"hello"
    assert (file.size, file.digest) == (5, disk.digest_of(b"hello"))


def test_a_file_on_a_failing_disk_is_stale_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"a/SKILL.md": skill_md("a")})
    registry = loaded(tmp_path)

    def read(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(StaleFileError, match="Input/output error"):
        registry.read(registry.snapshot.skills["a"].files["SKILL.md"])


def replaced_by_link(top: Path) -> None:
    (top / "d/file").unlink()
    (top / "d/file").symlink_to(top.parent / "secret")


def directory_replaced_by_link(top: Path) -> None:
    shutil.rmtree(top / "d")
    (top / "d").symlink_to(top.parent / "outside")


def replaced_by_fifo(top: Path) -> None:
    (top / "d/file").unlink()
    os.mkfifo(top / "d/file")


def replaced_by_directory(top: Path) -> None:
    (top / "d/file").unlink()
    (top / "d/file").mkdir()


def saved_by_an_editor(top: Path) -> None:
    found = (top / "d/file").stat()
    (top / "d/new").write_text("other")
    os.utime(top / "d/new", ns=(found.st_atime_ns, found.st_mtime_ns))
    (top / "d/new").rename(top / "d/file")


@pytest.mark.requirement("X-5")
@each_row(
    ("change", "scanned"),
    [
        (lambda top: (top / "d/file").unlink(), None),
        (lambda top: (top / "d/file").write_text("longer than before"), b"longer than before"),
        (shutil.rmtree, None),
        (saved_by_an_editor, b"other"),
        (replaced_by_link, None),
        (directory_replaced_by_link, None),
        (replaced_by_fifo, None),
        (replaced_by_directory, None),
    ],
)
def test_whatever_is_no_longer_the_scanned_file_is_stale(
    tmp_path: Path, change: Callable[[Path], None], scanned: bytes | None
) -> None:
    """A foreign file is never read, not even one of the same size behind a link; a fifo never blocks.

    A scan that comes to it now has the file of now, if there is one.
    """
    plant(tmp_path / "outside", {"file": "alien"})
    plant(tmp_path, {"secret": "alien", "root/a/SKILL.md": skill_md("a"), "root/a/d/file": "hello"})
    root = tmp_path / "root/a"
    registry, walked = loaded(tmp_path / "root"), file_at(root, "d/file")
    file = registry.snapshot.skills["a"].files["d/file"]
    assert registry.read(file) == b"hello"
    change(root)
    with pytest.raises(StaleFileError):
        registry.read(file)
    if scanned is not None:
        assert disk.ingest(str(root), "d/file", walked, 100) == scanned
        assert (walked.size, walked.digest) == (len(scanned), disk.digest_of(scanned))
        return
    with pytest.raises(OSError, match=r"keeps changing|too large|Not a directory"):
        disk.ingest(str(root), "d/file", walked, 100)
    assert not walked.digest


def test_a_rewrite_that_keeps_size_and_time_has_another_signature(tmp_path: Path) -> None:
    plant(tmp_path, {"file": "hello"})
    os.utime(tmp_path / "file", (1e9, 1e9))
    before = file_at(tmp_path, "file")
    (tmp_path / "file").write_text("other")
    os.utime(tmp_path / "file", (1e9, 1e9))
    after = file_at(tmp_path, "file")
    assert before.size == after.size and os.stat(tmp_path / "file").st_mtime_ns == 1e18
    assert before.signature != after.signature


def test_only_a_file_that_has_been_quiet_is_settled(tmp_path: Path) -> None:
    plant(tmp_path, {"file": "hello"})
    found = os.lstat(tmp_path / "file")
    assert not disk.file_from(found, 0, "file", found.st_ctime_ns + 1_000_000).mtime_reliable
    assert disk.file_from(found, 0, "file", found.st_ctime_ns + 2_000_000_001).mtime_reliable
    os.utime(tmp_path / "file", (4e9, 4e9))
    assert not disk.file_from(os.lstat(tmp_path / "file"), 0, "file", found.st_ctime_ns + 2_000_000_001).mtime_reliable
    os.utime(tmp_path / "file", (1, 1))  # who rewrites a file may set this time back, but not that of the change
    changed = os.lstat(tmp_path / "file")
    assert not disk.file_from(changed, 0, "file", changed.st_ctime_ns + 2_000_000_000).mtime_reliable
    assert disk.file_from(changed, 0, "file", changed.st_ctime_ns + 2_000_000_001).mtime_reliable
    os.utime(tmp_path / "file", ns=(0, ahead := changed.st_ctime_ns + 60_000_000_000))
    changed = os.lstat(tmp_path / "file")
    assert not disk.file_from(changed, 0, "file", ahead + 2_000_000_000).mtime_reliable
    assert disk.file_from(changed, 0, "file", ahead + 2_000_000_001).mtime_reliable


@pytest.mark.requirement("X-5")
@each_row(
    ("target", "found"),
    [
        ("file", "s/file"),
        ("sub/deep", "s/sub/deep"),
        ("../other/file", "other/file"),
        ("again", "s/file"),
        ("through/deep", "s/sub/deep"),
        ("nowhere", None),
        ("link", None),
        ("round", None),
        ("sub", None),
        (".", None),
        ("..", None),
        ("fifo", None),
        (".hidden", None),
        ("../node_modules/file", None),
        ("../../root-evil/file", None),
        ("/etc/passwd", None),
        (b"sub/\xff", None),
    ],
)
def test_a_link_stands_for_a_regular_file_inside_the_root_or_for_nothing(
    tmp_path: Path, target: str | bytes, found: str | None
) -> None:
    files = {"s/file": "x", "s/sub/deep": "x", "other/file": "x", "s/.hidden": "x", "node_modules/file": "x"}
    root = plant(tmp_path / "root", files)
    plant(tmp_path, {"root-evil/file": "x"})
    os.mkfifo(root / "s/fifo")
    (root / "s/again").symlink_to("file")
    (root / "s/through").symlink_to("sub")
    (root / "s/round").symlink_to("link")
    Path(os.fsdecode(os.fsencode(root) + b"/s/sub/\xff")).write_text("x")
    os.symlink(target, os.fsencode(root / "s/link") if isinstance(target, bytes) else root / "s/link")
    resolved = disk.resolve_link(str(root), 0, "s", "link")
    assert (resolved and resolved.location) == found


def test_names_can_be_spelled_whatever_their_bytes() -> None:
    assert disk.to_utf8("grün") == "grün" and disk.is_utf8("grün")
    assert disk.to_utf8(os.fsdecode(b"a\xff")) == "a\\xff" and not disk.is_utf8(os.fsdecode(b"a\xff"))


def test_where_nothing_can_be_opened_by_descriptor_paths_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: the same walk and the same refusals."""
    plant(tmp_path, {"root/a/b/file.md": "x", "outside/file.md": "x"})
    (tmp_path / "root/link").symlink_to("a/b/file.md")
    (tmp_path / "root/away").symlink_to(tmp_path / "outside")
    monkeypatch.setattr(disk, "_BY_DESCRIPTOR", False)
    root = str(tmp_path / "root")
    with disk.open_directory(root, "") as handle:
        found = whole(tree.Walk(0, 9).read_directory(handle, "", 6))
    (inner,) = found.directories
    (deeper,) = inner.directories
    file = deeper.files["file.md"]
    assert disk.read(f"{root}/{file.location}", file.size)[0] == b"x"
    linked = disk.resolve_link(root, 0, "", "link")
    assert linked is not None and linked.signature == file.signature
    with pytest.raises(NotADirectoryError), disk.open_directory(root, "away"):
        pass


AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")


@AS_ROOT
@pytest.mark.parametrize("name", ["SKILL.md", "notes.md"])
def test_a_hard_link_to_a_file_of_another_user_is_neither_served_nor_read(tmp_path: Path, name: str) -> None:
    """Whoever owns the folder, but not the file, made the link; a symbolic link to it gains nothing."""
    (tmp_path / "secret").write_text("---\nname: a\ndescription: Root's.\n---\n")
    write_skill(tmp_path / "root" / "a")
    place = tmp_path / "root" / "a"
    (place / name).unlink(missing_ok=True)
    os.link(tmp_path / "secret", place / name)
    (place / "other.md").symlink_to(name)
    for each in (tmp_path / "root", place):
        os.chown(each, 65534, 65534)
    registry = Registry([tmp_path / "root"])
    registry.load()
    skill = registry.snapshot.skills["a"]
    assert name not in skill.files and "other.md" not in skill.files
    assert ("skill-md-irregular" if name == "SKILL.md" else "hard-link") in {each.code for each in skill.problems}
    assert disk.lstat_below(str(tmp_path / "root"), f"a/{name}") is None
    os.chown(tmp_path / "secret", 65534, 65534)
    registry.refresh()
    assert {name, "other.md"} <= registry.snapshot.skills["a"].files.keys()


@AS_ROOT
def test_a_file_of_another_user_that_has_no_other_name_is_served(tmp_path: Path) -> None:
    write_skill(tmp_path / "root" / "a", notes_md="notes")
    (tmp_path / "root" / "a" / "other.md").symlink_to("notes.md")
    os.chown(tmp_path / "root" / "a", 65534, 65534)
    registry = Registry([tmp_path / "root"])
    registry.load()
    assert {"notes.md", "other.md"} <= registry.snapshot.skills["a"].files.keys()


def test_hard_links_among_the_files_of_one_user_are_served(tmp_path: Path) -> None:
    """As package stores and backups have them."""
    (tmp_path / "store").write_text("a")
    write_skill(tmp_path / "root" / "a")
    os.link(tmp_path / "store", tmp_path / "root" / "a" / "notes.md")
    registry = Registry([tmp_path / "root"])
    registry.load()
    assert "notes.md" in registry.snapshot.skills["a"].files and not registry.snapshot.skills["a"].problems
