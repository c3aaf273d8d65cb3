"""The directories that scripts work in: nothing leads out, anything can be measured and removed."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.forest import loaded, plant
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts import workspace
from mcp_skills_server.runtime.scripts.workspace import RunDirectory, Workspace, discard, exceeds, lay_out
from runtime.scripts import zoo

PARTS = st.sampled_from(["a", "b", "..", ".", "", "out", "loop", "file", "ä", "\n", "c:", "\\"])


@given(st.lists(PARTS, max_size=6).map("/".join))
def test_any_prepared_workdir_lies_inside(workdir: str) -> None:
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


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path / "session"), lambda _: None)


def test_work_directory_replaced_by_symlink_is_recreated(space: Workspace, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    os.rmdir(space.path)
    os.symlink(other, space.path)
    assert space.prepare("a") == f"{space.path}/a"
    assert not os.path.islink(space.path) and list(other.iterdir()) == []
    os.chmod(space.path, 0o500)
    for place in (space.prepare("a"), space.path):
        assert os.stat(place).st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="by descriptors")
def test_directory_is_not_created_through_late_symlink(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    space.prepare("a")
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
def test_created_and_filled_files_belong_to_script_user(tmp_path: Path) -> None:
    space = Workspace(str(tmp_path / "session"), lambda _: None, 65534)
    (tmp_path / "mine").touch()

    def put(work: str) -> None:
        plant(Path(work), {"in/file": ""})
        Path(work, "in", "link").symlink_to(tmp_path / "mine")

    space.fill(put)
    space.prepare("a/b")
    found = [tmp_path / "session", *(tmp_path / "session").rglob("*")]
    assert len(found) == 6 and {os.lstat(each).st_uid for each in found} == {65534}
    assert os.stat(tmp_path / "mine").st_uid == 0
    discard(space.path)
    space.prepare(".")
    assert os.stat(space.path).st_uid == 65534


def test_discard_follows_no_symlink(tmp_path: Path) -> None:
    precious = plant(tmp_path / "precious", {"file": "x"})
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    for place in (top, top / "a", top / "a" / "b"):
        (place / "link").symlink_to(precious)
        (place / "file link").symlink_to(precious / "file")
    discard(str(top))
    discard(str(top))
    assert not top.exists() and (precious / "file").read_text() == "x"


def test_failure_to_empty_or_remove_is_logged(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant(Path(space.path), {"a/file": "x"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=OSError(16, "busy")))
        space.begin_run()
        assert space.end_run(0)
        discard(space.path)
    assert caplog.messages == [f"{space.path} cannot be {done} (busy)" for done in ("emptied", "removed")]
    space.begin_run()
    assert not space.end_run(1 << 20)
    space.begin_run()
    assert space.end_run(0) and os.listdir(space.path) == []


def test_run_directory_is_private_and_lists_up_to_50_files(space: Workspace, tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    assert run.files_made(space.path) == ((), 0)
    run.make(None)
    modes = {
        place: os.stat(place).st_mode & 0o777 for place in (tmp_path / "run", run.skills, run.temporary, run.shared)
    }
    assert [*modes.values()] == [0o700, 0o755, 0o700, 0o700]
    plant(Path(space.path), {f"f{number:02}": "x" for number in range(51)})
    files, more = run.files_made(space.path)
    assert (len(files), more) == (50, 1)
    run.discard()
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="blocks are not told there")
def test_exceeds_counts_disk_blocks_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry counts, and each block of 512 bytes."""
    top = [str(tmp_path)]
    assert not exceeds([*top, str(tmp_path / "none")], 0)
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 30)
    file = plant(tmp_path, {"folder/file": b"x" * 100_000}) / "folder" / "file"
    taken = 3 * 1024 + file.stat().st_blocks * 512
    assert not exceeds(top, taken) and exceeds(top, taken - 1)
    os.link(file, tmp_path / "again")
    assert not exceeds(top, taken + 1024) and exceeds(top, taken + 1023)
    monkeypatch.setattr(workspace, "MOST_FILES", 4)
    assert not exceeds(top, 1 << 30)
    monkeypatch.setattr(workspace, "MOST_FILES", 3)
    assert exceeds(top, 1 << 30)


def test_lay_out_copies_scanned_files_read_only(tmp_path: Path) -> None:
    registry = loaded(zoo.write(tmp_path / "skills"))
    skill = registry.snapshot.skills["zoo"]
    top = tmp_path / "runs" / "zoo"
    lay_out(registry, skill, "SKILL.md", str(top))
    laid = {path.relative_to(top).as_posix(): path for path in top.rglob("*") if path.is_file()}
    assert laid.keys() == skill.files.keys()
    assert laid["scripts/junk"].read_bytes() == (tmp_path / "skills/zoo/scripts/junk").read_bytes()
    modes = {path: laid[path].stat().st_mode & 0o777 for path in ("SKILL.md", "scripts/plain", "data/table.csv")}
    assert modes == {"SKILL.md": 0o555, "scripts/plain": 0o555, "data/table.csv": 0o444}
    assert {each.stat().st_mode & 0o777 for each in (top, top / "scripts")} == {0o555}
    discard(str(top))
    assert not top.exists()
