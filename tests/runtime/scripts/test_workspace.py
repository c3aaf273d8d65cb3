"""The directories that scripts work in: nothing leads out, anything can be measured and removed."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.runtime.scripts import workspace
from mcp_skills_server.runtime.scripts.workspace import Workspace, discard, empty, exceeds, lay_out
from runtime.scripts import zoo

PARTS = st.sampled_from(["a", "b", "..", ".", "", "out", "loop", "file", "ä", "\n", "c:", "\\"])


@given(st.lists(PARTS, max_size=6).map("/".join))
def test_whatever_workdir_is_made_lies_inside(workdir: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        space = Workspace(os.path.join(os.path.realpath(top), "session"), lambda _: None)
        os.symlink(top, f"{space.path}/out")
        os.symlink("loop", f"{space.path}/loop")
        Path(space.path, "file").touch()
        with suppress(RequestError):
            made = space.prepare(workdir)
            assert os.path.isdir(made) and os.path.realpath(made) == made
            assert f"{made}/".startswith(f"{space.path}/")
        assert os.listdir(top) == ["session"]


def test_a_work_directory_that_was_replaced_by_a_link_is_made_again(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    space = Workspace(str(tmp_path / "session"), lambda _: None)
    os.rmdir(space.path)
    os.symlink(other, space.path)
    assert space.prepare("a") == f"{space.path}/a"
    assert not os.path.islink(space.path) and list(other.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="by descriptors")
def test_no_directory_is_made_through_a_link_that_was_swapped_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Workspace(str(tmp_path / "session"), lambda _: None)
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "session" / "a").mkdir()
    resolve = os.path.realpath

    def late(path: str) -> str:
        found = resolve(path)
        os.rmdir(tmp_path / "session" / "a")
        os.symlink(away, tmp_path / "session" / "a")
        return found

    monkeypatch.setattr(os.path, "realpath", late)
    with pytest.raises(RequestError, match="cannot be a directory"):
        space.prepare("a/b")
    assert list(away.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_what_is_made_and_put_in_is_the_owners(tmp_path: Path) -> None:
    space = Workspace(str(tmp_path / "session"), lambda _: None, 65534)
    (tmp_path / "mine").touch()

    def put(work: str) -> None:
        Path(work, "in").mkdir()
        Path(work, "in", "file").touch()
        Path(work, "in", "link").symlink_to(tmp_path / "mine")

    space.fill(put)
    space.prepare("a/b")
    found = [tmp_path / "session", *(tmp_path / "session").rglob("*")]
    assert len(found) == 6 and {os.lstat(each).st_uid for each in found} == {65534}
    assert os.stat(tmp_path / "mine").st_uid == 0
    os.rmdir(tmp_path / "session" / "a" / "b")
    discard(space.path)
    space.prepare(".")
    assert os.stat(space.path).st_uid == 65534


def test_a_closed_directory_stays_until_the_last_script_has_left(tmp_path: Path) -> None:
    gone: list[Workspace] = []
    space = Workspace(str(tmp_path / "session"), gone.append)
    (tmp_path / "session" / "full").write_bytes(b"x" * 10_000)
    space.begin_run()
    space.begin_run()
    assert not space.end_run(0) and os.listdir(space.path) == ["full"]
    assert space.end_run(0) and os.listdir(space.path) == []
    space.begin_run()
    space.close()
    space.close()
    assert gone == [space] and os.path.isdir(space.path)
    assert not space.end_run(0) and not os.path.exists(space.path)


def test_what_is_removed_is_never_reached_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    for place in (top, top / "a", top / "a" / "b"):
        (place / "link").symlink_to(precious)
        (place / "file link").symlink_to(precious / "file")
    discard(str(top))
    discard(str(top))
    assert not top.exists() and (precious / "file").read_text() == "x"


def test_a_tree_of_any_depth_and_mode_is_removed(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "locked" / "in").mkdir(parents=True)
    (tmp_path / "locked" / "in" / "file").touch()
    for _ in range(1100):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (tmp_path / "locked" / "in").chmod(0)
    (tmp_path / "locked").chmod(0)
    too_deep_to_be_measured = exceeds([str(tmp_path)], 1 << 40)
    empty(str(tmp_path))  # before anything is asserted: pytest could not remove it
    assert too_deep_to_be_measured
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="blocks are not told there")
def test_a_size_is_what_the_disk_gives(tmp_path: Path) -> None:
    assert not exceeds([str(tmp_path), str(tmp_path / "none")], 0)
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 30)
    assert not exceeds([str(tmp_path)], 1 << 20)
    (tmp_path / "full").write_bytes(b"x" * (1 << 20))
    assert exceeds([str(tmp_path)], 1 << 20)
    for each in range(20):
        os.link(tmp_path / "full", tmp_path / f"again{each}")
    assert not exceeds([str(tmp_path)], 3 << 20)
    os.makedirs(tmp_path / "many" / "empty")
    for each in range(3100):
        (tmp_path / "many" / str(each)).touch()
    assert exceeds([str(tmp_path)], 4 << 20)


@pytest.mark.skipif(sys.platform == "win32", reason="blocks are not told there")
def test_a_tree_may_have_exactly_so_many_bytes(tmp_path: Path) -> None:
    """Each entry counts, and each block of 512 bytes."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x" * 100_000)
    taken = 2 * 1024 + (tmp_path / "folder" / "file").stat().st_blocks * 512
    assert not exceeds([str(tmp_path)], taken) and exceeds([str(tmp_path)], taken - 1)


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_FILES", 10)
    for each in range(10):
        (tmp_path / str(each)).touch()
    assert not exceeds([str(tmp_path)], 1 << 30)
    (tmp_path / "one more").touch()
    assert exceeds([str(tmp_path)], 1 << 30)


def test_a_skill_is_laid_out_as_it_was_scanned(tmp_path: Path) -> None:
    registry = zoo.opened(zoo.build(tmp_path / "skills"))
    skill = registry.snapshot.skills["zoo"]
    top = tmp_path / "runs" / "zoo"
    lay_out(registry, skill, "scripts/plain", str(top))
    laid = {path.relative_to(top).as_posix(): path for path in top.rglob("*") if path.is_file()}
    assert laid.keys() == skill.files.keys()
    assert laid["scripts/junk"].read_bytes() == (tmp_path / "skills/zoo/scripts/junk").read_bytes()
    modes = {path: laid[path].stat().st_mode & 0o777 for path in ("SKILL.md", "scripts/plain", "scripts/direct")}
    assert modes == {"SKILL.md": 0o444, "scripts/plain": 0o555, "scripts/direct": 0o555}
    assert (top / "scripts").stat().st_mode & 0o777 == 0o555
    discard(str(top))
    (tmp_path / "skills/zoo/data/table.csv").write_text("changed")
    with pytest.raises(StaleFileError):
        lay_out(registry, skill, "scripts/plain", str(top))
    discard(str(top))
    assert not top.exists()
