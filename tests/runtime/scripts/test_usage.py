"""What a run takes of memory and disk while it runs."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.runtime.scripts import usage
from mcp_skills_server.runtime.scripts.proc import family
from mcp_skills_server.runtime.scripts.usage import Usage

LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")
GIB, MIB = 1 << 30, 1 << 20


class Disk:
    """Stands for the clock, the room on the disk and the walk over a tree, and counts the walks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.free, self.walks, self.cost = 0.0, 100 * GIB, 0, 0.0
        monkeypatch.setattr(usage, "_free", lambda _: self.free)
        monkeypatch.setattr(usage, "exceeds", self.walk)
        monkeypatch.setattr(usage.time, "monotonic", lambda: self.now)

    def walk(self, tops: Any, most: int) -> bool:
        self.walks += 1
        self.now += self.cost
        return False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def looks(disk: Disk, run: Usage, count: int, grown: int) -> int:
    """How many walks so many looks lead to, at which the disk has lost `grown` bytes each."""
    before = disk.walks
    for _ in range(count):
        disk.now += 0.05
        disk.free -= grown
        assert run.over([]) is None
    return disk.walks - before


def test_the_disk_is_looked_at_more_often_the_faster_it_fills(disk: Disk) -> None:
    """11.18: at a look in two seconds, a run reached 716 MiB against 256."""
    run = Usage(["/x"], 256 * MIB, GIB)
    looks(disk, run, 1, 0)
    assert looks(disk, run, 200, 0) <= 11  # ten seconds
    assert looks(disk, run, 200, MIB) in range(10, 14)
    assert looks(disk, run, 100, 17 * MIB) == 100


def test_a_tree_that_takes_long_to_walk_is_not_walked_all_the_time(disk: Disk) -> None:
    run = Usage(["/x"], 256 * MIB, GIB)
    disk.cost = 0.1
    assert looks(disk, run, 70, 17 * MIB) in range(8, 16)


@LINUX
def test_removed_files_that_are_open_or_mapped_count(tmp_path: Path) -> None:
    def run() -> Usage:
        return Usage([str(tmp_path)], 4 * MIB, GIB)

    for name in ("open", "mapped"):
        (tmp_path / name).write_bytes(b"x" * (3 * MIB))
    with open(tmp_path / "open", "rb") as held:
        os.unlink(tmp_path / "open")
        said = run().over([os.getpid()])
        assert said is not None and "its files took more than 4,194,304 bytes" in said
        (tmp_path / "mapped").unlink()
        assert run().over([os.getpid()]) is None
        assert run().over([]) is None
        held.read(1)
    (tmp_path / "mapped").write_bytes(b"x" * (5 * MIB))
    with open(tmp_path / "mapped", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        os.unlink(tmp_path / "mapped")
        file.close()
        assert "its files took more" in str(run().over([os.getpid()]))
    assert run().over([os.getpid()]) is None


@LINUX
def test_memory_that_processes_share_is_counted_and_once(tmp_path: Path) -> None:
    code = (
        "import mmap, os, sys, time\n"
        "held = mmap.mmap(-1, 64 << 20)\n"
        "held.write(bytes(64 << 20))\n"
        "pids = [os.fork() for _ in range(3)]\n"
        "for place in range(0, 64 << 20, 4096): held[place]\n"
        "os.write(1, b'x')\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        seen = b""
        while len(seen) < 8:
            seen += os.read(started.stdout.fileno(), 1)
        pids = list(family(started.pid))
        assert len(pids) == 8
        mine = [str(tmp_path)]
        assert Usage(mine, GIB, 256 * MIB).over(pids) is None
        assert "of memory" in str(Usage(mine, GIB, 48 * MIB).over(pids))
        os.killpg(started.pid, 9)
