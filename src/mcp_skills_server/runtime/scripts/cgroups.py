"""Memory cgroups (version 2): the kernel limits all memory that it allocates for a run.

They need a cgroup that this process may divide and does not share: that of a systemd unit with
`Delegate=memory`, or of a container with a writable /sys/fs/cgroup.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mcp_skills_server.runtime.scripts.processes import with_descendants

_LEAF: Final = "mcp-skills-server"


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
        if pids and {*map(int, pids)} <= {*with_descendants(os.getpid())}:
            (top / _LEAF).mkdir(exist_ok=True)
            for pid in pids:
                (top / _LEAF / "cgroup.procs").write_text(pid)
        (top / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return None
    return top


@contextmanager
def limited(top: Path, memory_bytes: int) -> Generator[Path]:
    """Create a cgroup whose processes are killed together beyond the limit, and remove it."""
    made = top / f"run-{secrets.token_hex(8)}"
    made.mkdir()
    try:
        (made / "memory.max").write_text(str(memory_bytes))
        (made / "memory.oom.group").write_text("1")
        with suppress(OSError):  # a kernel without swap
            (made / "memory.swap.max").write_text("0")
        yield made
    finally:
        for _ in range(20):
            with suppress(OSError):  # killed processes are in it for a moment
                made.rmdir()
                break
            time.sleep(0.005)


def is_exceeded(cgroup: Path) -> bool:
    """Return True if processes were killed because of the limit."""
    return "\noom_kill 0\n" not in (cgroup / "memory.events").read_text()
