"""An archive as a source: unpacked when its bytes are others, and never read without need."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.format import archive
from mcp_skills_server.sources import archive as module
from mcp_skills_server.sources import folder
from mcp_skills_server.sources.archive import Archive
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import SourceSettings, UnacceptableError, UnreachableError


def pack(path: Path, body: str) -> None:
    fresh = path.with_name("fresh")
    fresh.write_bytes(archive.pack({"a/SKILL.md": (body.encode(), False)})[1])
    fresh.replace(path)


def opened(path: Path, tmp_path: Path) -> Follower:
    return Follower(Archive(str(path), SourceSettings(tmp_path / "cache")))


def body(follower: Follower) -> str:
    return (follower.path / "a" / "SKILL.md").read_text()


def test_it_is_unpacked_when_its_bytes_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, unpack, times = tmp_path / "x.tar.gz", archive.unpack, list[int]()
    monkeypatch.setattr(module.archive, "unpack", lambda *given: times.append(1) or unpack(*given))
    pack(path, "one")
    follower = opened(path, tmp_path)
    for _ in range(2):
        assert anyio.run(follower.refresh) == 1.0 and body(follower) == "one"
    os.utime(path, ns=(1, 1))
    anyio.run(follower.refresh)
    assert len(times) == 1
    pack(path, "two")
    anyio.run(follower.refresh)
    assert len(times) == 2 and body(follower) == "two"


def test_what_is_refused_is_unpacked_once_and_the_last_good_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.zip"
    pack(path, "one")
    follower = opened(path, tmp_path)
    anyio.run(follower.refresh)
    path.write_bytes(b"no archive at all")
    with pytest.raises(UnacceptableError, match="cannot be unpacked"):
        anyio.run(follower.refresh)
    monkeypatch.setattr(module.archive, "unpack", None)
    with pytest.raises(UnacceptableError, match="cannot be unpacked"):
        anyio.run(follower.refresh)
    monkeypatch.undo()
    assert body(follower) == "one"
    pack(path, "two")
    anyio.run(follower.refresh)
    assert body(follower) == "two" and follower.state.trouble is None


def test_one_that_is_gone_may_come_again(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    pack(path, "one")
    follower = opened(path, tmp_path)
    anyio.run(follower.refresh)
    path.rename(tmp_path / "away")
    with pytest.raises(UnreachableError, match="No such file"):
        anyio.run(follower.refresh)
    assert body(follower) == "one"
    (tmp_path / "away").rename(path)
    anyio.run(follower.refresh)
    assert body(follower) == "one" and follower.state.trouble is None


def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.zip"
    pack(path, "one")
    follower = opened(path, tmp_path)
    anyio.run(follower.refresh)
    pack(path, "two")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr(folder, "write_tree", full)
        with pytest.raises(UnreachableError, match=r"cannot be kept: No space left on device"):
            anyio.run(follower.refresh)
        assert body(follower) == "one"
    anyio.run(follower.refresh)
    assert body(follower) == "two"


def test_a_private_folder_that_was_cleared_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    pack(path, "one")
    follower = opened(path, tmp_path)
    anyio.run(follower.refresh)
    shutil.rmtree(follower.path)
    anyio.run(follower.refresh)
    assert body(follower) == "one"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
def test_a_fifo_in_the_place_of_an_archive_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    pack(path, "one")
    follower = opened(path, tmp_path)
    anyio.run(follower.refresh)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UnreachableError, match="not a regular file"):
        anyio.run(follower.refresh)
    path.unlink()
    pack(path, "two")
    anyio.run(follower.refresh)
    assert body(follower) == "two"


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_a_script_that_may_be_executed_now_is_brought(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    follower = opened(path, tmp_path)
    for executable in (False, True):
        files = {"a/SKILL.md": (b"one", False), "a/run.sh": (b"exit 0\n", executable)}
        path.write_bytes(archive.pack(files)[1])
        anyio.run(follower.refresh)
        assert bool((follower.path / "a/run.sh").stat().st_mode & 0o100) == executable


def test_a_skill_at_the_root_has_the_folder_that_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(archive.pack({"SKILL.md": (b"---\nname: docx\ndescription: One.\n---\n", False)})[1])
    follower = opened(path, tmp_path)
    anyio.run(follower.refresh)
    assert (follower.path / "docx" / "SKILL.md").is_file()
