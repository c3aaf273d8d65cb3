"""Limits of runs: turns with a share for each owner, memory and disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.runtime.scripts import limits
from mcp_skills_server.runtime.scripts.limits import ResourceUsage, RunSlots
from mcp_skills_server.runtime.scripts.processes import with_descendants

LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")
PATIENCE_S = 60.0
GIB, MIB = 1 << 30, 1 << 20


def tree_of(*pids: int) -> Any:
    return SimpleNamespace(processes=lambda: pids)


def test_slow_tree_walk_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.18: at a look in two seconds, a run reached 716 MiB against 256."""
    now, walks, cost = 0.0, 0, 0.0

    def walk(_tops: Any, _most: int) -> bool:
        nonlocal walks, now
        walks += 1
        now += cost
        return False

    monkeypatch.setattr(limits, "exceeds", walk)
    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    for length, most in ((0, 70), (1, 7)):
        cost = length
        run, walks = ResourceUsage(["/x"], 256 * MIB, GIB), 0
        for _ in range(70):
            assert run.exceeded(tree_of()) is None
            now += 1
        assert walks == most


HOLD = """
import ctypes, sys
file = open(sys.argv[1], "rb")
if sys.argv[2] == "mapped":  # the module `mmap` keeps a descriptor
    ctypes.CDLL(None).mmap(None, ctypes.c_size_t(3 << 20), 1, 2, file.fileno(), ctypes.c_long(0))
    file.close()
print(flush=True)
sys.stdin.read()
"""


@LINUX
@pytest.mark.parametrize("way", ["open", "mapped"])
def test_deleted_files_held_open_or_mapped_are_counted(tmp_path: Path, way: str) -> None:
    def said(*pids: int, more: int = MIB) -> str:
        return str(ResourceUsage([str(tmp_path)], 3 * MIB + more, GIB).exceeded(tree_of(*pids)))

    for name in ("held", "other"):
        (tmp_path / name).write_bytes(b"x" * (3 * MIB))
    command = [sys.executable, "-c", HOLD, str(tmp_path / "held"), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        (tmp_path / "held").unlink()
        assert "its files took more than 4,194,304 bytes" in said(holder.pid)
        assert said() == "None"
        (tmp_path / "other").unlink()
        assert said(holder.pid, more=0) == "None"
        assert "its files took more than 3,145,727 bytes" in said(holder.pid, more=-1)


@LINUX
def test_shared_memory_is_counted_once(tmp_path: Path) -> None:
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
        pids = list(with_descendants(started.pid))
        assert len(pids) == 8
        mine = [str(tmp_path)]
        assert ResourceUsage(mine, GIB, 256 * MIB).exceeded(tree_of(*pids)) is None
        said = str(ResourceUsage(mine, GIB, 48 * MIB).exceeded(tree_of(*pids)))
        assert said == f"its processes took more than {54 * MIB:,} bytes of memory"  # an eighth more than of one
        os.killpg(started.pid, 9)


@pytest.mark.anyio
async def test_slot_timeout_names_own_limit_or_that_of_server() -> None:
    turns = RunSlots(2)
    async with turns.slot("a", 0):
        with pytest.raises(QuotaError, match=r"1 of your scripts .* \(quota runs\)"):
            async with turns.slot("a", 0):
                pass
        async with turns.slot("b", 0):
            with pytest.raises(RequestError, match=r"^2 scripts are running already") as found:
                async with turns.slot("c", 0):
                    pass
            assert not isinstance(found.value, QuotaError)
    async with turns.slot(None, 0), turns.slot(None, 0):  # of a pipe
        pass
    for total, share, may in ((1, None, 1), (2, None, 1), (4, None, 3), (4, 9, 4), (4, 2, 2)):
        assert RunSlots(total, share).share == may


@pytest.mark.anyio
async def test_cancelled_waiting_call_takes_no_slot() -> None:
    turns = RunSlots(1)

    async def wait() -> None:
        async with turns.slot("b", PATIENCE_S):
            raise AssertionError("it is not its turn")

    async with turns.slot("a", 0), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with turns.slot("c", 0):
        pass


@given(st.lists(st.sampled_from("aaab"), min_size=1, max_size=12), st.integers(1, 4), st.none() | st.integers(1, 4))
def test_slots_are_never_exceeded_nor_left_idle(owners: list[str], total: int, share: int | None) -> None:
    async def all_of_them() -> None:
        turns = RunSlots(total, share)
        running, waiting = Counter[str](), Counter(owners)

        async def one(owner: str) -> None:
            async with turns.slot(owner, PATIENCE_S):
                waiting[owner] -= 1
                running[owner] += 1
                assert running.total() <= total and running[owner] <= turns.share
                await anyio.wait_all_tasks_blocked()
                if running.total() < total:  # what is free is of use to nobody who waits
                    assert all(running[each] >= turns.share for each in waiting if waiting[each])
                running[owner] -= 1

        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(one, owner)
        assert not +waiting and not +running

    anyio.run(all_of_them)


@pytest.mark.anyio
async def test_owner_with_fewest_runs_is_served_first() -> None:
    turns = RunSlots(2, 2)
    order: list[str] = []

    async def one(owner: str) -> None:
        async with turns.slot(owner, PATIENCE_S):
            order.append(owner)

    async with anyio.create_task_group() as tasks, turns.slot("hog", 0), turns.slot("hog", 0):
        for owner in ("hog", "hog", "other"):
            tasks.start_soon(one, owner)
            await anyio.wait_all_tasks_blocked()
    assert order[0] == "other"
