"""Archive source: unpacking, change detection, and failures that keep the last copy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import anyio
import pytest

from mcp_skills_server.format import archive
from mcp_skills_server.sources import archive as module
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import SourceError
from sources.fetching import fetch_to_cache
from tables import each_row

FORMS = {".tar": "tar", "gz": "gztar", "xz": "xztar"}
"""Formats of `shutil.make_archive` by the end of a suffix; others are zips."""


def write_archive(path: Path, text: str, folder: str = "a/", *, executable: bool = False) -> None:
    """Replace an archive by one with a SKILL.md."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(archive.pack({f"{folder}SKILL.md": (text.encode(), executable)})[1])
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_archive(tmp_path / "x.zip", "one")
    return tmp_path / "x.zip"


@pytest.fixture
def follower(path: Path, tmp_path: Path) -> Follower:
    return fetch_to_cache(str(path), tmp_path / "cache")


def text_of(follower: Follower) -> str:
    return (follower.path / "a" / "SKILL.md").read_text()


@each_row("name", ["a.skill", "a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.TXZ", "a.zip"])
def test_archive_of_each_suffix_is_a_root(tmp_path: Path, name: str) -> None:
    form = next((form for end, form in FORMS.items() if name.lower().endswith(end)), "zip")
    (tmp_path / "files" / "name").mkdir(parents=True)
    (tmp_path / "files" / "name" / "SKILL.md").write_text("---\nname: name\n---\n")
    made = shutil.make_archive(str(tmp_path / "made"), form, tmp_path / "files")
    os.rename(made, tmp_path / name)
    follower = fetch_to_cache(str(tmp_path / name), tmp_path / "cache")
    assert (follower.path / "name" / "SKILL.md").read_text() == "---\nname: name\n---\n"


def test_archive_is_unpacked_only_when_its_bytes_change(
    path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack = Mock(wraps=archive.unpack)
    monkeypatch.setattr(module.archive, "unpack", unpack)
    assert anyio.run(follower.refresh) == 1.0
    os.utime(path, ns=(1, 1))
    anyio.run(follower.refresh)
    assert not unpack.called
    assert text_of(follower) == "one"
    write_archive(path, "two")
    anyio.run(follower.refresh)
    assert unpack.call_count == 1
    assert text_of(follower) == "two"


def replace_with_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(("damage", "reason"), [
    (lambda path: path.write_bytes(b"no archive at all"), "cannot be unpacked"),
    (replace_with_fifo, "not a regular file"),
])  # fmt: skip
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
def test_unreadable_archive_is_tried_once_and_last_copy_stays(
    path: Path, follower: Follower, damage: Callable[[Path], object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)
    for _ in range(2):
        with pytest.raises(SourceError, match=reason):
            anyio.run(follower.refresh)
        monkeypatch.setattr(module.archive, "unpack", None)  # a second attempt would fail
    monkeypatch.undo()
    assert text_of(follower) == "one"
    path.unlink(missing_ok=True)
    write_archive(path, "two")
    anyio.run(follower.refresh)
    assert text_of(follower) == "two"
    assert follower.state.trouble is None


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_changed_executable_bit_is_fetched(path: Path, follower: Follower) -> None:
    write_archive(path, "one", executable=True)
    anyio.run(follower.refresh)
    assert (follower.path / "a" / "SKILL.md").stat().st_mode & 0o100


def test_skill_at_archive_root_gets_folder_of_its_name(path: Path, follower: Follower) -> None:
    write_archive(path, "---\nname: docx\ndescription: One.\n---\n", "")
    anyio.run(follower.refresh)
    assert (follower.path / "docx" / "SKILL.md").is_file()
