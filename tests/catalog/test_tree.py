"""The boundary to the disk: what a walk brings, and that a read gives the scanned bytes or nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import plant, whole
from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.format import ignored
from tables import each_row


def walk(top: Path, *, depth: int = 6, most_files: int = 512) -> tree.Directory:
    with disk.open_directory(str(top), "") as handle:
        return whole(tree.Walk(0, most_files).read_directory(handle, "", depth))


@pytest.mark.requirement("ASG-5")
@each_row(
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


@each_row("name", ["SKILL.md", "a.git", "node_modules2", "swp", "notes..md", "a b", "ä", "git"])
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
    assert sorted(inner.named("link")) == ["dangling", "link"]
    assert sorted(inner.named("irregular")) == ["fifo", "socket"]
    assert inner.named("unnamed") == ["\\xff.md"]
    assert inner.directories[0].files["file.md"].location == "a/b/file.md"


def test_a_walk_says_where_it_stopped(tmp_path: Path) -> None:
    plant(tmp_path, {"a/b/c/file.md": "x"})
    assert walk(tmp_path, depth=1).directories[0].is_truncated
    assert not walk(tmp_path, depth=2).directories[0].is_truncated


def test_of_an_overfull_directory_a_walk_keeps_some_files_and_always_the_skill_md(tmp_path: Path) -> None:
    plant(tmp_path, {f"a{number}": "x" for number in range(200)})
    plant(tmp_path, {"SKILL.md": "x"})
    found = walk(tmp_path, most_files=3)
    assert found.surplus
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


def test_walking_leaves_no_descriptor_open(tmp_path: Path) -> None:
    plant(tmp_path, {"a/b/c/file.md": "x"})
    before = len(os.listdir("/proc/self/fd"))
    walk(tmp_path)
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
    plant(tmp_path, {"a/.env": "x", "a/.git/config": "x", "a/b/c.swp": "x", "a/b/d.md": "x", "a/n/SKILL.md": "x"})
    plant(tmp_path, {"a/n/.hidden": "x"})
    assert tree.ignored_in(str(tmp_path), "a") == [".env", ".git/", "b/c.swp"]
