"""An archive as a source: unpacked when its bytes are others, and never read without need."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.format import archive
from mcp_skills_server.sources import archive as module
from mcp_skills_server.sources import folder
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import SourceError, UnreachableError
from sources.fetching import fetched


def pack(path: Path, body: str, name: str = "a/", *, executable: bool = False) -> None:
    fresh = path.with_name("fresh")
    fresh.write_bytes(archive.pack({f"{name}SKILL.md": (body.encode(), executable)})[1])
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pack(tmp_path / "x.zip", "one")
    return tmp_path / "x.zip"


@pytest.fixture
def follower(path: Path, tmp_path: Path) -> Follower:
    return fetched(str(path), tmp_path / "cache")


def body(follower: Follower) -> str:
    return (follower.path / "a" / "SKILL.md").read_text()


def test_it_is_unpacked_when_its_bytes_change(path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack, times = archive.unpack, list[int]()
    monkeypatch.setattr(module.archive, "unpack", lambda *given: times.append(1) or unpack(*given))
    assert anyio.run(follower.refresh) == 1.0
    os.utime(path, ns=(1, 1))
    anyio.run(follower.refresh)
    assert not times and body(follower) == "one"
    pack(path, "two")
    anyio.run(follower.refresh)
    assert len(times) == 1 and body(follower) == "two"


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(("damage", "said"), [
    (lambda path: path.write_bytes(b"no archive at all"), "cannot be unpacked"), (Path.unlink, "No such file"),
    (replace_by_fifo, "not a regular file"),
])  # fmt: skip
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
def test_what_cannot_be_read_is_tried_once_and_the_last_good_one_stays(
    path: Path, follower: Follower, damage: Callable[[Path], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)
    for _ in range(2):
        with pytest.raises(SourceError, match=said):
            anyio.run(follower.refresh)
        monkeypatch.setattr(module.archive, "unpack", None)
    monkeypatch.undo()
    assert body(follower) == "one"
    path.unlink(missing_ok=True)
    pack(path, "two")
    anyio.run(follower.refresh)
    assert body(follower) == "two" and follower.state.trouble is None


def test_a_full_disk_leaves_the_last_good_one(path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    pack(path, "two")
    with monkeypatch.context() as while_full:
        while_full.setattr(folder, "write_tree", full)
        with pytest.raises(UnreachableError, match=r"cannot be kept: No space left on device"):
            anyio.run(follower.refresh)
        assert body(follower) == "one"
    anyio.run(follower.refresh)
    assert body(follower) == "two"


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_a_file_that_may_be_executed_now_is_brought(path: Path, follower: Follower) -> None:
    pack(path, "one", executable=True)
    anyio.run(follower.refresh)
    assert (follower.path / "a" / "SKILL.md").stat().st_mode & 0o100


def test_a_skill_at_the_root_has_the_folder_that_its_name_says(path: Path, follower: Follower) -> None:
    pack(path, "---\nname: docx\ndescription: One.\n---\n", "")
    anyio.run(follower.refresh)
    assert (follower.path / "docx" / "SKILL.md").is_file()
