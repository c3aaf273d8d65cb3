"""The boundary to the disk: a read gives the scanned bytes or nothing, and no link is followed."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import Patch, codes, loaded, plant, skill_md, skills, whole
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import ignored
from mcp_skills_server.model import SkillFile
from tables import each_row


def file_at(top: Path, location: str) -> SkillFile:
    return disk.file_from(os.lstat(top / location), 0, location, time.time_ns())


@pytest.mark.requirement("X-5")
def test_no_link_is_followed_on_the_way_to_a_directory(tmp_path: Path) -> None:
    plant(tmp_path, {"outside/b/file.md": "x", "root/real/b/file.md": "x"})
    (tmp_path / "root/a").symlink_to(tmp_path / "outside")
    for path in ("a", "a/b"):
        with pytest.raises(OSError, match="Not a directory"), disk.open_directory(str(tmp_path / "root"), path):
            pass
    with disk.open_directory(str(tmp_path / "root"), "real/b") as handle:
        assert os.listdir(handle) == ["file.md"]


def test_read_goes_on_when_the_system_gives_less_at_once(tmp_path: Path, monkeypatch: Patch) -> None:
    plant(tmp_path, {"file": "hello"})
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 2)))
    assert disk.read(str(tmp_path / "file"), 5)[0] == b"hello"


def test_a_file_that_grows_while_it_is_read_has_the_digest_of_that(tmp_path: Path, monkeypatch: Patch) -> None:
    plant(tmp_path, {"file": "hello"})
    file, real = file_at(tmp_path, "file"), os.read

    def read(descriptor: int, size: int) -> bytes:
        plant(tmp_path, {"file": "hello and more"})
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    assert disk.ingest(str(tmp_path), "file", file, 100) == b"hello"
    assert (file.size, file.digest) == (5, disk.digest_of(b"hello"))


def test_a_file_on_a_failing_disk_is_stale_and_says_why(tmp_path: Path, monkeypatch: Patch) -> None:
    registry = loaded(plant(tmp_path, skills("a")))

    def read(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(StaleFileError, match="Input/output error"):
        registry.read(registry.snapshot.skills["a"].files["SKILL.md"])


def replaced(by: Callable[[Path], object], place: str = "d/file") -> Callable[[Path], None]:

    def change(top: Path) -> None:
        (top / place).rename(top.parent / "before")
        by(top / place)

    return change


def saved_by_an_editor(top: Path) -> None:
    found = (top / "d/file").stat()
    (top / "d/new").write_text("other")
    os.utime(top / "d/new", ns=(found.st_atime_ns, found.st_mtime_ns))
    (top / "d/new").rename(top / "d/file")


@pytest.mark.requirement("X-5")
@each_row(("change", "scanned"), [
    (lambda top: (top / "d/file").unlink(), None),
    (lambda top: (top / "d/file").write_text("longer than before"), b"longer than before"), (shutil.rmtree, None),
    (saved_by_an_editor, b"other"), (replaced(lambda file: file.symlink_to("../../../secret")), None),
    (replaced(lambda folder: folder.symlink_to("../../outside"), "d"), None), (replaced(os.mkfifo), None),
    (replaced(os.mkdir), None),
])  # fmt: skip
def test_whatever_is_no_longer_the_scanned_file_is_stale(
    tmp_path: Path, change: Callable[[Path], None], scanned: bytes | None
) -> None:
    """A foreign file is never read, not even one of the same size behind a link; a fifo never blocks.

    A scan that comes to it now has the file of now, if there is one.
    """
    plant(tmp_path, {"outside/file": "alien", "secret": "alien", "root/a/SKILL.md": skill_md("a")})
    root = plant(tmp_path / "root/a", {"d/file": "hello"})
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


def test_only_a_file_that_has_been_quiet_is_settled(tmp_path: Path) -> None:
    """Whoever rewrites a file may set its time back or ahead, but not that of the change."""
    file = plant(tmp_path, {"file": "hello"}) / "file"
    for modified_ns in (file.stat().st_mtime_ns, 10**9, time.time_ns() + 60 * 10**9):
        os.utime(file, ns=(0, modified_ns))
        found = file.stat()
        quiet = max(found.st_mtime_ns, found.st_ctime_ns) + 2_000_000_000
        assert not disk.file_from(found, 0, "file", quiet).mtime_reliable
        assert disk.file_from(found, 0, "file", quiet + 1).mtime_reliable


@pytest.mark.requirement("X-5")
@each_row(("target", "found"), [
    ("file", "s/file"), ("sub/deep", "s/sub/deep"), ("../other/file", "other/file"), ("again", "s/file"),
    ("through/deep", "s/sub/deep"),
    *((each, None) for each in ("nowhere", "link", "round", "sub", ".", "..", "fifo", ".hidden")),
    *((each, None) for each in ("../node_modules/file", "../../root-evil/file", "/etc/passwd", b"sub/\xff")),
])  # fmt: skip
def test_a_link_stands_for_a_regular_file_inside_the_root_or_for_nothing(
    tmp_path: Path, target: str | bytes, found: str | None
) -> None:
    names = ("s/file", "s/sub/deep", "other/file", "s/.hidden", "node_modules/file", "../root-evil/file")
    root = plant(tmp_path / "root", dict.fromkeys(names, "x"))
    os.mkfifo(root / "s/fifo")
    for name, leads_to in (("again", "file"), ("through", "sub"), ("round", "link")):
        (root / "s" / name).symlink_to(leads_to)
    Path(os.fsdecode(os.fsencode(root) + b"/s/sub/\xff")).write_text("x")
    os.symlink(target, os.fsencode(root / "s/link") if isinstance(target, bytes) else root / "s/link")
    resolved = disk.resolve_link(str(root), 0, "s", "link")
    assert (resolved and resolved.location) == found


def test_where_nothing_can_be_opened_by_descriptor_paths_do(tmp_path: Path, monkeypatch: Patch) -> None:
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
@each_row("name", ["SKILL.md", "notes.md"])
def test_a_hard_link_to_a_file_of_another_user_is_neither_served_nor_read(tmp_path: Path, name: str) -> None:
    """Whoever owns the folder, but not the file, made the link; a symbolic link to it gains nothing."""
    secret, root = plant(tmp_path, {"secret": skill_md("a")}) / "secret", tmp_path / "root"
    place = plant(root, skills("a")) / "a" / name
    place.unlink(missing_ok=True)
    os.link(secret, place)
    (root / "a/other.md").symlink_to(name)
    for each in (root, root / "a"):
        os.chown(each, 65534, 65534)
    registry = loaded(root)
    skill = registry.snapshot.skills["a"]
    assert name not in skill.files and "other.md" not in skill.files
    assert ("skill-md-irregular" if name == "SKILL.md" else "hard-link") in codes(skill)
    assert disk.lstat_below(str(root), f"a/{name}") is None
    os.chown(secret, 65534, 65534)
    registry.refresh()
    assert {name, "other.md"} <= registry.snapshot.skills["a"].files.keys()


@AS_ROOT
def test_a_file_of_another_user_without_another_name_and_hard_links_of_one_user_are_served(tmp_path: Path) -> None:
    """As package stores and backups have them."""
    root = plant(tmp_path, {"store": "x"} | {f"root/{path}": text for path, text in skills("a", "b").items()}) / "root"
    plant(root, {"a/notes.md": "notes"})
    os.chown(root / "a", 65534, 65534)
    os.link(tmp_path / "store", root / "b/notes.md")
    for name in "ab":
        (root / name / "other.md").symlink_to("notes.md")
    for skill in loaded(root).snapshot.skills.values():
        assert {"notes.md", "other.md"} <= skill.files.keys() and not skill.problems


# The walk


def test_walking_leaves_no_descriptor_open(tmp_path: Path) -> None:
    plant(tmp_path, {"a/b/c/file.md": "x"})
    before = len(os.listdir("/proc/self/fd"))
    with disk.open_directory(str(tmp_path), "") as handle:
        whole(tree.Walk(0, 512).read_directory(handle, "", 6))
    with pytest.raises(OSError, match="No such file"), disk.open_directory(str(tmp_path), "a/nowhere/c"):
        pass
    with pytest.raises(OSError, match="too large"):
        disk.read(str(tmp_path / "a/b/c/file.md"), 0)
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.text(min_size=1, max_size=12) | st.sampled_from(["node_modules", "__pycache__", "4913", "a.swp", "~$x"]))
def test_the_quick_look_at_a_name_never_passes_an_ignored_one(name: str) -> None:
    if tree.is_ignored(name):
        assert name[0] in ignored.FIRST_CHARS or name[-1] in ignored.LAST_CHARS


def test_the_ignored_names_of_a_skill_are_told_without_what_lies_in_ignored_folders_and_skills(tmp_path: Path) -> None:
    names = ("a/.env", "a/.git/config", "a/b/c.swp", "a/b/d.md", "a/n/SKILL.md", "a/n/.hidden")
    plant(tmp_path, dict.fromkeys(names, "x"))
    assert tree.ignored_in(str(tmp_path), "a") == [".env", ".git/", "b/c.swp"]
