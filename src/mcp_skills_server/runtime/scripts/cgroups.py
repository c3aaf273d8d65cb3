"""Memory cgroups (version 2): the kernel limits all memory that it allocates for a run.

They need a cgroup that this process may divide and does not share: that of a systemd unit with
`Delegate=memory`, or of a container with a writable /sys/fs/cgroup.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.runtime.scripts.processes import with_descendants

_LEAF: Final = "mcp-skills-server"
_REMOVALS: Final = 20
_PAUSE_S: Final = 0.005


def delegated(mount: str = "/sys/fs/cgroup") -> Path | None:
    """Return the cgroup of this process if it can have limited children, or None.

    The kernel allows that only to a cgroup without processes, so this process moves to a leaf.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
        top = Path(mount, *own)
        if top.name == _LEAF:
            top = top.parent
        if "memory" not in (top / "cgroup.controllers").read_text().split():
            return None
        pids = (top / "cgroup.procs").read_text().split()
        # processes of others in it stay where they are; the write below then fails
        if pids and {*map(int, pids)} <= {*with_descendants(os.getpid())}:
            (top / _LEAF).mkdir(exist_ok=True)
            for pid in pids:
                (top / _LEAF / "cgroup.procs").write_text(pid)
        (top / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return None
    return top


@asynccontextmanager
async def limited(top: Path | None, memory_bytes: int) -> AsyncGenerator[Path | None]:
    """Create a cgroup below `top`, and remove it after its processes were killed.

    Beyond the limit the kernel kills them together. None yields None.
    """
    if top is None:
        yield None
        return
    cgroup = top / f"run-{secrets.token_hex(8)}"
    try:
        await to_thread.run_sync(_create, cgroup, memory_bytes)
        yield cgroup
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_remove, cgroup)


def is_exceeded(cgroup: Path) -> bool:
    """Return True if processes were killed because of the limit."""
    return "\noom_kill 0\n" not in (cgroup / "memory.events").read_text()


def _create(cgroup: Path, memory_bytes: int) -> None:
    cgroup.mkdir()
    (cgroup / "memory.max").write_text(str(memory_bytes))
    (cgroup / "memory.oom.group").write_text("1")
    with suppress(OSError):  # a kernel without swap
        (cgroup / "memory.swap.max").write_text("0")


def _remove(cgroup: Path) -> None:
    for _ in range(_REMOVALS):
        with suppress(OSError):  # the kernel needs a moment to end killed processes
            cgroup.rmdir()
        if not cgroup.exists():
            return
        time.sleep(_PAUSE_S)
