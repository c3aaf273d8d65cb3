"""Limits of runs: concurrency slots per owner, memory and disk."""

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

from mcp_skills_server.access.quota import Owner, QuotaError
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts import limits
from mcp_skills_server.runtime.scripts.limits import ResourceUsage, RunSlots
from mcp_skills_server.runtime.scripts.processes import with_descendants
from tables import each_row

LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")
TIMEOUT_S = 60.0
GIB, MIB = 1 << 30, 1 << 20


def tree_of(*pids: int) -> Any:
    return SimpleNamespace(processes=lambda: pids)


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
@pytest.mark.parametrize("kind", ["open", "mapped"])
def test_deleted_files_held_open_or_mapped_are_counted(tmp_path: Path, kind: str) -> None:
    def reason(most: int, *pids: int) -> str:
        return str(ResourceUsage([str(tmp_path)], most, GIB).exceeded(tree_of(*pids)))

    for name in ("held", "other"):
        (tmp_path / name).write_bytes(b"x" * (3 * MIB))
    command = [sys.executable, "-c", HOLD, str(tmp_path / "held"), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        assert reason(7 * MIB, holder.pid) == "None", "files are counted once"
        (tmp_path / "held").unlink()
        assert "its files took more than 4,194,304 bytes" in reason(4 * MIB, holder.pid)
        assert reason(4 * MIB) == "None"
        (tmp_path / "other").unlink()
        assert reason(3 * MIB, holder.pid) == "None"
        assert "its files took more than 3,145,727 bytes" in reason(3 * MIB - 1, holder.pid)


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
        started.stdout.read(8)
        pids = list(with_descendants(started.pid))
        assert len(pids) == 8
        assert ResourceUsage([str(tmp_path)], GIB, 256 * MIB).exceeded(tree_of(*pids)) is None
        reason = ResourceUsage([str(tmp_path)], GIB, 48 * MIB).exceeded(tree_of(*pids))
        # The limit of all processes is an eighth above that of one.
        assert reason == f"its processes took more than {54 * MIB:,} bytes of memory"
        os.killpg(started.pid, 9)


@LINUX
def test_memory_counts_without_exact_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact sum of a process may be unreadable for this user; its page tables never are."""
    read = limits.lines
    monkeypatch.setattr(limits, "lines", lambda path: [] if path.endswith("smaps_rollup") else read(path))
    usage = ResourceUsage([str(tmp_path)], GIB, 16 * MIB)
    assert "bytes of memory" in str(usage.exceeded(tree_of(os.getpid())))


@pytest.mark.anyio
async def test_slot_timeout_names_own_limit_or_that_of_server() -> None:
    slots = RunSlots(2)
    async with slots.slot(Owner("a"), 0):
        with pytest.raises(QuotaError, match=r"1 of your scripts .* \(quota runs\)"):
            async with slots.slot(Owner("a"), 0):
                pass
        async with slots.slot(Owner("b"), 0):
            with pytest.raises(RequestError, match=r"^2 scripts are running already") as caught:
                async with slots.slot(Owner("c"), 0):
                    pass
            assert not isinstance(caught.value, QuotaError)
    async with slots.slot(None, 0), slots.slot(None, 0):  # over stdio
        pass


@each_row(("total", "limits", "expected"), [
    (1, {}, 1), (2, {}, 1), (4, {}, 3), (4, {"runs": 9}, 4), (4, {"runs": 2}, 2),
])  # fmt: skip
def test_share_of_an_owner_leaves_a_slot_by_default(total: int, limits: dict[str, int], expected: int) -> None:
    assert RunSlots(total).limit(Owner("a", limits)) == expected


@pytest.mark.anyio
async def test_cancelled_waiting_call_takes_no_slot() -> None:
    slots = RunSlots(1)

    async def wait() -> None:
        async with slots.slot(Owner("b"), TIMEOUT_S):
            raise AssertionError("the only slot is taken")

    async with slots.slot(Owner("a"), 0), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with slots.slot(Owner("c"), 0):
        pass


LIMITS = st.fixed_dictionaries({}, optional={"runs": st.integers(1, 4)})


@given(st.lists(st.sampled_from("aaab"), min_size=1, max_size=12), st.integers(1, 4), LIMITS)
def test_slots_are_never_exceeded_nor_left_idle(names: list[str], total: int, limits: dict[str, int]) -> None:
    owners = [Owner(name, limits) for name in names]

    async def run_all() -> None:
        slots = RunSlots(total)
        share = slots.limit(owners[0])
        running, waiting = Counter[Owner](), Counter(owners)

        async def run_one(owner: Owner) -> None:
            async with slots.slot(owner, TIMEOUT_S):
                waiting[owner] -= 1
                running[owner] += 1
                assert running.total() <= total and running[owner] <= share
                await anyio.wait_all_tasks_blocked()
                if running.total() < total:  # every waiting owner has its share
                    assert all(running[each] >= share for each in waiting if waiting[each])
                running[owner] -= 1

        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(run_one, owner)
        assert not +waiting and not +running

    anyio.run(run_all)


@pytest.mark.anyio
async def test_owner_with_fewest_runs_is_served_first() -> None:
    slots, hog = RunSlots(2), Owner("hog", {"runs": 2})
    order: list[Owner | None] = []

    async def run_one(owner: Owner) -> None:
        async with slots.slot(owner, TIMEOUT_S):
            order.append(owner)

    async with anyio.create_task_group() as tasks, slots.slot(hog, 0), slots.slot(hog, 0):
        for owner in (hog, hog, Owner("other")):
            tasks.start_soon(run_one, owner)
            await anyio.wait_all_tasks_blocked()
    assert order[0] == Owner("other")
