"""Atomic writes of files and folders, and trust in files by owner and mode."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from mcp_skills_server.durable import (
    exchange,
    open_database,
    read_regular,
    replace_file,
    sync_paths,
    untrusted_reason,
    write_folder,
)
from tables import each_row


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
@each_row(("mode", "reason"), [
    (0o600, ""), (0o644, ""), (0o660, "is writable by other users"), (0o602, "is writable by other users"),
])  # fmt: skip
def test_file_writable_by_others_is_not_trusted(tmp_path: Path, mode: int, reason: str) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    assert untrusted_reason(path.stat()) == reason


@pytest.mark.skipif(sys.platform == "win32", reason="owners of POSIX")
@each_row(("owner", "reason"), [(0, ""), (1000, ""), (1001, "belongs to another user")])
def test_file_of_another_user_is_not_trusted(monkeypatch: pytest.MonkeyPatch, owner: int, reason: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert untrusted_reason(os.stat_result((0o100600, 1, 1, 1, owner, 0, 0, 0, 0, 0))) == reason


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
@each_row("mode", [None, 0o400, 0o600, 0o644])
def test_replaced_file_has_requested_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None) -> None:
    if mode in (None, 0o600):
        monkeypatch.setattr(os, "chmod", None)  # some file systems refuse chmod
    mask = os.umask(0)
    try:
        replace_file(tmp_path / "a", b"x", mode)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == (mode or 0o666)


def test_temporary_file_of_killed_process_is_removed_after_an_hour(tmp_path: Path) -> None:
    old, young, other = (tmp_path / f".{name}.new" for name in ("a-01234567", "a-89abcdef", "b-01234567"))
    for path, age in ((old, 3_700), (young, 3_500), (other, 3_700)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    replace_file(tmp_path / "a", b"x", 0o600)
    assert {*tmp_path.iterdir()} == {tmp_path / "a", young, other}


def test_folder_is_written_atomically(tmp_path: Path) -> None:
    place, before = tmp_path / "deep" / "er" / "a", os.umask(0o022)
    os.umask(before)
    files = {"a/b/x": (b"1", True), "a/b/y": (b"2", False)}
    write_folder(place, files)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place / "a" / "b").iterdir()}
    assert modes == {"x": 0o755, "y": 0o666 & ~before}
    for refused in (place, place / "a" / "b" / "x" / "z"):
        with pytest.raises(OSError, match=r"\[Errno"):
            write_folder(refused, files)
    assert os.listdir(place.parent) == ["a"]


def test_read_stops_at_limit_and_closes_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    opened = len(os.listdir("/dev/fd"))
    assert read_regular(tmp_path / "a", 5)[0] == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path, 3, wait=True)
    # Some file systems cannot sync a folder (EINVAL), which is no error.
    for number, fails in ((errno.EINVAL, False), (errno.EIO, True)):
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, "no")))
        with pytest.raises(OSError, match="no") if fails else nullcontext():
            sync_paths([str(tmp_path)])
    assert len(os.listdir("/dev/fd")) == opened


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2")
def test_database_is_committed_or_rolled_back_and_always_closed(tmp_path: Path) -> None:
    """Also one that turns out to be no database, from its first statement on."""
    opened: list[sqlite3.Connection] = []
    for number in range(3):
        with suppress(LookupError), open_database(tmp_path / "d.sqlite3", 1) as database:
            opened.append(database)
            database.execute("CREATE TABLE IF NOT EXISTS t (x)")
            database.execute("BEGIN")
            database.execute("INSERT INTO t VALUES (?)", (number,))
            if number == 1:
                raise LookupError
    with open_database(tmp_path / "d.sqlite3", 1) as database:
        assert database.execute("SELECT x FROM t").fetchall() == [(0,), (2,)]
    for database in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            database.execute("SELECT 1")


def test_file_that_is_no_database_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(b"text " * 1000)
    real = sqlite3.connect(tmp_path / "text")
    monkeypatch.setattr(sqlite3, "connect", Mock(return_value=real))
    with pytest.raises(sqlite3.DatabaseError), open_database(tmp_path / "text", 1):
        pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        real.execute("SELECT 1")


def test_folders_are_exchanged_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    exchange(Path("a"), Path("b"))
    assert os.listdir("a") == ["b"] and os.listdir("b") == ["a"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "none")


@pytest.mark.skipif(sys.platform != "linux", reason="fsync is recorded by the descriptor's path")
def test_exchange_flushes_the_parents_of_both_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one/a", "other/b"):
        (tmp_path / name).mkdir(parents=True)
    flushed = list[str]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    exchange(tmp_path / "one" / "a", tmp_path / "other" / "b")
    assert {*flushed} == {str(tmp_path / "one"), str(tmp_path / "other")}


@pytest.mark.skipif(sys.platform != "linux", reason="syncfs")
def test_many_files_flush_their_file_system_and_no_other_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One path of many is opened: that of the file system."""
    paths = [tmp_path / str(number) for number in range(100)]
    for path in paths:
        path.write_bytes(b"x")
    monkeypatch.setattr(os, "sync", Mock(side_effect=AssertionError("another disk may be slow")))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=AssertionError("one by one")))
    opened, real_open = list[str](), os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path) or real_open(path, flags))
    sync_paths([*map(str, paths)])
    assert opened == [str(paths[0])]
    with pytest.raises(FileNotFoundError):
        sync_paths([str(tmp_path / f"gone {number}") for number in range(100)])
