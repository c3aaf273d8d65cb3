"""The boundary to the disk: what a walk brings, and that a read gives the scanned bytes or nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import plant
from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import ignored
from mcp_skills_server.model import SkillFile
from wire import write_skill


def walk(top: Path, *, depth: int = 6, most_files: int = 512) -> tree.Directory:
    with tree.open_directory(str(top), "") as handle:
        return tree.walk(handle, "", 0, depth=depth, most_files=most_files)


def file_at(top: Path, location: str) -> SkillFile:
    return tree.file_from(os.lstat(top / location), 0, location, time.time_ns())


@pytest.mark.requirement("ASG-5")
@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".hidden.md",
        "node_modules",
        "__pycache__",
        "a.swp",
        ".a.swo",
        "a.swx",
        "a.md~",
        "~$a.doc",
        "#a#",
        "4913",
    ],
)
def test_names_of_tools_and_editors_are_ignored(name: str) -> None:
    assert tree.is_ignored(name)


@pytest.mark.parametrize("name", ["SKILL.md", "a.git", "node_modules2", "swp", "notes..md", "a b", "ä", "git"])
def test_other_names_are_not_ignored(name: str) -> None:
    assert not tree.is_ignored(name)


def test_a_walk_sorts_what_it_finds_by_kind(tmp_path: Path) -> None:
    plant(tmp_path, {"a/b/file.md": "x", "a/.hidden": "x", "node_modules/m.md": "x", "top.md~": "x"})
    os.mkfifo(tmp_path / "a/fifo")
    os.mknod(tmp_path / "a/socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "a/link").symlink_to("b/file.md")
    (tmp_path / "a/dangling").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/\xff.md")).write_text("x")
    found = walk(tmp_path)
    assert list(found.files) == [] and [each.path for each in found.directories] == ["a"]
    inner = found.directories[0]
    assert sorted(inner.links) == ["dangling", "link"]
    assert sorted(inner.irregular) == ["fifo", "socket"]
    assert list(inner.unnamed) == ["\\xff.md"]
    assert inner.directories[0].files["file.md"].location == "a/b/file.md"


def test_a_walk_says_where_it_stopped(tmp_path: Path) -> None:
    plant(tmp_path, {"a/b/c/file.md": "x"})
    assert walk(tmp_path, depth=1).directories[0].cut
    assert not walk(tmp_path, depth=2).directories[0].cut


def test_of_an_overfull_directory_a_walk_keeps_some_files_and_always_the_skill_md(tmp_path: Path) -> None:
    plant(tmp_path, {f"a{number}": "x" for number in range(200)})
    plant(tmp_path, {"SKILL.md": "x"})
    found = walk(tmp_path, most_files=3)
    assert found.overfull
    assert "SKILL.md" in found.files
    assert len(found.files) <= 5


def refusing(number: int, name: str) -> Callable[..., int]:
    """`os.open` for which this name fails with this error."""
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.basename(path) == name:
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **options)

    return refuse


def test_a_directory_that_cannot_be_opened_is_told_and_its_neighbours_are_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"a/file.md": "x", "b/file.md": "x"})
    monkeypatch.setattr(os, "open", refusing(errno.EACCES, "a"))
    found = {each.path: each for each in walk(tmp_path).directories}
    assert found["a"].unreadable and not found["b"].unreadable
    assert "file.md" in found["b"].files


def test_a_directory_that_vanishes_during_the_walk_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"a/file.md": "x"})
    monkeypatch.setattr(os, "open", refusing(errno.ENOENT, "a"))
    assert walk(tmp_path).directories == []


def test_a_directory_whose_entries_cannot_be_read_does_not_end_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"a/file.md": "x", "b/file.md": "x"})
    real, broken = os.scandir, os.stat(tmp_path / "a").st_ino

    def scandir(handle: Any) -> Any:
        if os.stat(handle).st_ino == broken:
            raise OSError(errno.EIO, "Input/output error")
        return real(handle)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "supports_fd", {*os.supports_fd, scandir})
    found = {each.path: each for each in walk(tmp_path).directories}
    assert found["a"].unreadable
    assert "file.md" in found["b"].files


def test_a_walk_that_runs_out_of_descriptors_fails_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"a/file.md": "x"})
    monkeypatch.setattr(os, "open", refusing(errno.EMFILE, "a"))
    with pytest.raises(OSError, match="Too many open files"):
        walk(tmp_path)


@pytest.mark.requirement("X-5")
def test_no_link_is_followed_on_the_way_to_a_directory(tmp_path: Path) -> None:
    plant(tmp_path / "outside", {"b/file.md": "x"})
    plant(tmp_path / "root", {"real/b/file.md": "x"})
    (tmp_path / "root/a").symlink_to(tmp_path / "outside")
    for path in ("a", "a/b"):
        with pytest.raises(OSError, match="Not a directory"), tree.open_directory(str(tmp_path / "root"), path):
            pass
    with tree.open_directory(str(tmp_path / "root"), "real/b") as handle:
        assert os.listdir(handle) == ["file.md"]


def test_walking_leaves_no_descriptor_open(tmp_path: Path) -> None:
    plant(tmp_path, {"a/b/c/file.md": "x"})
    before = len(os.listdir("/proc/self/fd"))
    walk(tmp_path)
    with pytest.raises(OSError, match="No such file"), tree.open_directory(str(tmp_path), "a/nowhere/c"):
        pass
    with pytest.raises(StaleFileError):
        tree.read(str(tmp_path), SkillFile(0, "a/b/c/file.md", 1, (), True))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.requirement("X-3")
@pytest.mark.parametrize(
    "raw",
    [b"", b"a\r\nb\r\n", b"\xef\xbb\xbf# hi\n", bytes(range(256)), b"\0" * 10, b"x" * 3_000_001],
    ids=["empty", "crlf", "bom", "binary", "nul", "large"],
)
def test_read_gives_the_exact_bytes(tmp_path: Path, raw: bytes) -> None:
    plant(tmp_path, {"d/file": raw})
    assert tree.read(str(tmp_path), file_at(tmp_path, "d/file")) == raw


def test_read_goes_on_when_the_system_gives_less_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"file": "hello"})
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 2)))
    assert tree.read(str(tmp_path), file_at(tmp_path, "file")) == b"hello"


def test_a_file_that_grows_while_it_is_read_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"file": "hello"})
    file, real = file_at(tmp_path, "file"), os.read

    def read(descriptor: int, size: int) -> bytes:
        with (tmp_path / "file").open("ab") as other:
            other.write(b"more")
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(StaleFileError):
        tree.read(str(tmp_path), file)


def test_a_file_on_a_failing_disk_is_stale_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"file": "hello"})

    def read(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(StaleFileError, match="Input/output error"):
        tree.read(str(tmp_path), file_at(tmp_path, "file"))


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
@pytest.mark.parametrize(
    "change",
    [
        lambda top: (top / "d/file").unlink(),
        lambda top: (top / "d/file").write_text("longer than before"),
        shutil.rmtree,
        saved_by_an_editor,
        replaced_by_link,
        directory_replaced_by_link,
        replaced_by_fifo,
        replaced_by_directory,
    ],
)
def test_whatever_is_no_longer_the_scanned_file_is_stale(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """A foreign file is never read, not even one of the same size behind a link; a fifo never blocks."""
    plant(tmp_path / "outside", {"file": "hello"})
    plant(tmp_path, {"secret": "hello", "root/d/file": "hello"})
    file = file_at(tmp_path / "root", "d/file")
    assert tree.is_fresh(str(tmp_path / "root"), file)
    change(tmp_path / "root")
    with pytest.raises(StaleFileError):
        tree.read(str(tmp_path / "root"), file)
    assert not tree.is_fresh(str(tmp_path / "root"), file)


def test_a_rewrite_that_keeps_size_and_time_has_another_signature(tmp_path: Path) -> None:
    plant(tmp_path, {"file": "hello"})
    os.utime(tmp_path / "file", (1e9, 1e9))
    before = file_at(tmp_path, "file")
    (tmp_path / "file").write_text("other")
    os.utime(tmp_path / "file", (1e9, 1e9))
    after = file_at(tmp_path, "file")
    assert before.size == after.size and before.signature[1] == after.signature[1]
    assert before.signature != after.signature


def test_only_a_file_that_has_been_quiet_is_settled(tmp_path: Path) -> None:
    plant(tmp_path, {"file": "hello"})
    found = os.lstat(tmp_path / "file")
    assert not tree.file_from(found, 0, "file", found.st_ctime_ns + 1_000_000).mtime_reliable
    assert tree.file_from(found, 0, "file", found.st_ctime_ns + 2_000_000_001).mtime_reliable
    os.utime(tmp_path / "file", (4e9, 4e9))
    assert not tree.file_from(os.lstat(tmp_path / "file"), 0, "file", found.st_ctime_ns + 2_000_000_001).mtime_reliable
    os.utime(tmp_path / "file", (1, 1))  # who rewrites a file may set this time back, but not that of the change
    changed = os.lstat(tmp_path / "file")
    assert not tree.file_from(changed, 0, "file", changed.st_ctime_ns + 2_000_000_000).mtime_reliable
    assert tree.file_from(changed, 0, "file", changed.st_ctime_ns + 2_000_000_001).mtime_reliable
    os.utime(tmp_path / "file", ns=(0, ahead := changed.st_ctime_ns + 60_000_000_000))
    changed = os.lstat(tmp_path / "file")
    assert not tree.file_from(changed, 0, "file", ahead + 2_000_000_000).mtime_reliable
    assert tree.file_from(changed, 0, "file", ahead + 2_000_000_001).mtime_reliable


def test_looking_again_finds_what_now_lies_there_but_nothing_behind_a_link(tmp_path: Path) -> None:
    plant(tmp_path / "outside", {"file": "foreign"})
    root = plant(tmp_path / "root", {"d/file": "hello"})
    file = file_at(root, "d/file")
    (root / "d/file").write_text("hello again")
    again = tree.look_again(str(root), file)
    assert again is not None and again.size == 11 and again.location == "d/file"
    (root / "d").rename(root / "e")
    assert tree.look_again(str(root), file) is None
    (root / "d").symlink_to(tmp_path / "outside")
    assert tree.look_again(str(root), file) is None
    assert stat.S_ISLNK(tree.look(str(root), "d").st_mode)  # type: ignore[union-attr]


@pytest.mark.requirement("X-5")
@pytest.mark.parametrize(
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
    resolved = tree.resolve_link(str(root), 0, "s", "link")
    assert (resolved and resolved.location) == found


def test_names_can_be_spelled_whatever_their_bytes() -> None:
    assert tree.spelled("grün") == "grün" and tree.is_utf8("grün")
    assert tree.spelled(os.fsdecode(b"a\xff")) == "a\\xff" and not tree.is_utf8(os.fsdecode(b"a\xff"))


def test_where_nothing_can_be_opened_by_descriptor_paths_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: the same walk and the same refusals."""
    plant(tmp_path, {"root/a/b/file.md": "x", "outside/file.md": "x"})
    (tmp_path / "root/link").symlink_to("a/b/file.md")
    (tmp_path / "root/away").symlink_to(tmp_path / "outside")
    monkeypatch.setattr(tree, "_BY_DESCRIPTOR", False)
    root = str(tmp_path / "root")
    with tree.open_directory(root, "") as handle:
        found = tree.walk(handle, "", 0, depth=6, most_files=9)
    file = found.directories[0].directories[0].files["file.md"]
    assert tree.read(root, file) == b"x"
    linked = tree.resolve_link(root, 0, "", "link")
    assert linked is not None and linked.signature == file.signature
    with pytest.raises(NotADirectoryError), tree.open_directory(root, "away"):
        pass


@given(st.text(min_size=1, max_size=12) | st.sampled_from(["node_modules", "__pycache__", "4913", "a.swp", "~$x"]))
def test_the_quick_look_at_a_name_never_passes_an_ignored_one(name: str) -> None:
    if tree.is_ignored(name):
        assert name[0] in ignored.FIRSTS or name[-1] in ignored.LASTS


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
    assert tree.look(str(tmp_path / "root"), f"a/{name}") is None
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


@pytest.mark.skipif(sys.platform == "win32", reason="links want a privilege there")
def test_what_is_noted_of_a_directory_costs_once_each(tmp_path: Path) -> None:
    """10.B: every link copied all that were noted before it; 40,000 links at the top of a root took 20 seconds."""
    for number in range(500):
        (tmp_path / f"link-{number}").symlink_to("nowhere")
    kept: list[int] = []

    def watch(frame: FrameType, event: str, _: object) -> object:
        if event == "line" and "here" in frame.f_locals:
            kept.append(id(frame.f_locals["here"].links))
        return watch

    sys.settrace(lambda frame, _, __: watch if frame.f_code is tree.walk.__code__ else None)
    try:
        assert len(walk(tmp_path).links) == 500
    finally:
        sys.settrace(None)
    assert len(set(kept)) <= 2  # the one that is there at first, and the one that grows


@pytest.mark.parametrize(("most", "expected"), [(2, (0, 2)), (3, (0, 3)), (4, (1, 4)), (5, (2, 4))])
def test_skills_are_counted_among_so_many_names(tmp_path: Path, most: int, expected: tuple[int, int]) -> None:
    plant(tmp_path, {".a/one/SKILL.md": "x", ".a/two/SKILL.md": "x"})
    assert tree.count_skills(str(tmp_path), ".a", most_names=most) == expected


@pytest.mark.parametrize(("most", "found"), [(1, 1), (4, 4), (5, 5), (6, 5)])
def test_ignored_names_are_looked_for_among_so_many_names(tmp_path: Path, most: int, found: int) -> None:
    plant(tmp_path, {f"a/.{number}": "x" for number in range(5)})
    assert len(tree.ignored_in(str(tmp_path), "a", most_names=most)) == found
