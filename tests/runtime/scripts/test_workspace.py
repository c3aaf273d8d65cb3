"""Work directories and run directories: path traversal, size limits and removal."""

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

from catalog.forest import load_registry, write_files
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts import trees
from mcp_skills_server.runtime.scripts.trees import discard, exceeds
from mcp_skills_server.runtime.scripts.workspace import RunDirectory, Workspace, lay_out
from runtime.scripts import zoo

PARTS = st.sampled_from(["a", "b", "..", ".", "", "out", "loop", "file", "ä", "\n", "c:", "\\"])


@given(st.lists(PARTS, max_size=6).map("/".join))
def test_any_prepared_workdir_lies_inside(workdir: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        work = Workspace(os.path.join(os.path.realpath(top), "session"), lambda _: None)
        os.symlink(top, f"{work.path}/out")
        os.symlink("loop", f"{work.path}/loop")
        Path(work.path, "file").touch()
        with suppress(RequestError):
            prepared = work.prepare(workdir)
            assert os.path.isdir(prepared) and os.path.realpath(prepared) == prepared
            assert f"{prepared}/".startswith(f"{work.path}/")
        assert os.listdir(top) == ["session"]


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path / "session"), lambda _: None)


def test_work_directory_replaced_by_symlink_is_recreated(work: Workspace, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    os.rmdir(work.path)
    os.symlink(other, work.path)
    assert work.prepare("a") == f"{work.path}/a"
    assert not os.path.islink(work.path) and list(other.iterdir()) == []
    os.chmod(work.path, 0o500)
    for directory in (work.prepare("a"), work.path):
        assert os.stat(directory).st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of directories are POSIX")
def test_directory_is_not_created_through_late_symlink(
    work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    work.prepare("a")
    resolve = os.path.realpath

    def resolve_then_swap(path: str) -> str:
        resolved = resolve(path)
        os.rmdir(tmp_path / "session" / "a")
        os.symlink(away, tmp_path / "session" / "a")
        return resolved

    monkeypatch.setattr(os.path, "realpath", resolve_then_swap)
    with pytest.raises(RequestError, match="cannot be a directory"):
        work.prepare("a/b")
    assert list(away.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root changes owners")
def test_created_and_filled_files_belong_to_script_user(tmp_path: Path) -> None:
    work = Workspace(str(tmp_path / "session"), lambda _: None, 65534)
    (tmp_path / "mine").touch()

    def put(path: str) -> None:
        write_files(Path(path), {"in/file": ""})
        Path(path, "in", "link").symlink_to(tmp_path / "mine")

    work.fill(put)
    work.prepare("a/b")
    found = [tmp_path / "session", *(tmp_path / "session").rglob("*")]
    assert len(found) == 6 and {os.lstat(each).st_uid for each in found} == {65534}
    assert os.stat(tmp_path / "mine").st_uid == 0
    discard(work.path)
    work.prepare(".")
    assert os.stat(work.path).st_uid == 65534


def test_discard_follows_no_symlink(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside", {"file": "x"})
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    for directory in (top, top / "a", top / "a" / "b"):
        (directory / "link").symlink_to(outside)
        (directory / "file link").symlink_to(outside / "file")
    discard(str(top))
    discard(str(top))
    assert not top.exists()
    assert (outside / "file").read_text() == "x"


def test_tree_left_by_vanishing_entry_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(os, "rename", Mock(side_effect=FileNotFoundError(2, "gone")))
    discard(str(tmp_path / "top"))
    discard(str(tmp_path / "none"))
    assert caplog.messages == [f"{tmp_path / 'top'} cannot be removed (gone)"]


def test_failure_to_empty_or_remove_is_logged(
    work: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(Path(work.path), {"a/file": "x"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=OSError(16, "busy")))
        work.begin_run()
        assert work.end_run(0)
        discard(work.path)
    assert caplog.messages == [f"{work.path} cannot be {done} (busy)" for done in ("emptied", "removed")]
    work.begin_run()
    assert not work.end_run(1 << 20)
    work.begin_run()
    assert work.end_run(0) and os.listdir(work.path) == []


def test_run_directory_is_private_and_lists_up_to_50_files(work: Workspace, tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    assert run.files_made(work.path) == ((), 0)
    run.make(None)
    directories = (tmp_path / "run", run.skills, run.temporary, run.shared)
    assert [os.stat(each).st_mode & 0o777 for each in directories] == [0o700, 0o755, 0o700, 0o700]
    write_files(Path(work.path), {f"f{number:02}": "x" for number in range(51)})
    files, more = run.files_made(work.path)
    assert (len(files), more) == (50, 1)
    run.discard()
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="stat reports no blocks there")
def test_exceeds_counts_disk_blocks_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry costs 1 KiB, and each block 512 bytes. Hard links share their blocks; symlinks have their own."""
    top = [str(tmp_path)]
    assert not exceeds([*top, str(tmp_path / "none")], 0)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    file = write_files(tmp_path, {"folder/file": b"x" * 100_000}) / "folder" / "file"
    size = 3 * 1024 + file.stat().st_blocks * 512
    assert not exceeds(top, size)
    assert exceeds(top, size - 1)
    os.link(file, tmp_path / "again")
    (tmp_path / "symlink").symlink_to("folder/file")
    size += 2 * 1024 + (tmp_path / "symlink").lstat().st_blocks * 512
    assert not exceeds(top, size)
    assert exceeds(top, size - 1)
    monkeypatch.setattr(trees, "MAX_FILES", 5)
    assert not exceeds(top, 1 << 30)
    monkeypatch.setattr(trees, "MAX_FILES", 4)
    assert exceeds(top, 1 << 30)


def test_lay_out_copies_scanned_files_read_only(tmp_path: Path) -> None:
    registry = load_registry(zoo.write(tmp_path / "skills"))
    skill = registry.snapshot.skills["zoo"]
    top = tmp_path / "runs" / "zoo"
    lay_out(registry, skill, "SKILL.md", str(top))
    files = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
    assert files == skill.files.keys()
    junk = tmp_path / "skills/zoo/scripts/junk"
    assert (top / "scripts/junk").read_bytes() == junk.read_bytes()
    junk.write_bytes(b"changed")
    assert (top / "scripts/junk").read_bytes() != b"changed", "a running script is isolated from changes"
    for path, mode in (
        ("SKILL.md", 0o555), ("scripts/plain", 0o555), ("data/table.csv", 0o444), ("", 0o555), ("scripts", 0o555),
    ):  # fmt: skip
        assert (top / path).stat().st_mode & 0o777 == mode, path
    discard(str(top))
    assert not top.exists()
