"""Limits of runs: a concurrency limit with fair shares, and polled memory and disk limits.

The kernel's resource limits are per process and ignore shared memory. So the memory and disk of a
whole run are polled. A run can exceed a limit by its growth between two measurements.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import anyio

from mcp_skills_server.access.quota import Owner, QuotaError, limit_of
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts.processes import ProcessTree, entries, lines
from mcp_skills_server.runtime.scripts.trees import MAX_FILES, exceeds

_PAUSE_FACTOR: Final = 10
"""The pause after a disk measurement as a factor of its duration, which bounds the cost of large
trees."""
_SPARE_DIVISOR: Final = 8
"""The divisor of the memory limit that gives the allowance for the programs around a script."""
_MAPPED: Final = 1 << 20
"""The assumed size of a deleted file of which a page is mapped, such as a semaphore, in bytes."""
_SOCKET: Final = 256 << 10
_TCP_SOCKET: Final = 64 << 20
"""What the buffers of a socket can hold by default, in bytes."""
_BUFFER_DEFAULTS: Final = (
    "/proc/sys/net/core/rmem_default", "/proc/sys/net/core/wmem_default",
)  # fmt: skip
"""What the operator may have set instead. A container may lack these files."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A run that waits for a slot, until `granted` is set."""

    owner: Owner | None
    granted: anyio.Event = field(default_factory=anyio.Event)


class RunSlots:
    """A fair concurrency limit of runs: the waiting owner with the fewest runs is next.

    Use it on one event loop.
    """

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self._held = Counter[Owner | None]()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def slot(self, owner: Owner | None, timeout_s: float) -> AsyncGenerator[None]:
        """Wait up to `timeout_s` seconds for a slot, and hold it inside the `with` block.

        Only `total` limits the owner None.

        Raises:
            QuotaError: the wait timed out because of the owner's own runs.
            RequestError: the wait timed out because of other owners' runs.
        """
        waiter = _Waiter(owner)
        self._waiting.append(waiter)
        self._grant()
        try:
            with anyio.move_on_after(timeout_s):
                await waiter.granted.wait()
            if not waiter.granted.is_set():
                raise self._refusal(owner)
            yield
        finally:
            if waiter.granted.is_set():
                self._held[owner] -= 1
                self._held += Counter()  # drops owners without runs
                self._grant()
            else:
                self._waiting.remove(waiter)

    def _refusal(self, owner: Owner | None) -> RequestError:
        words = "running already, the most that {} may run at once; try again in a moment"
        if not self._may_start(owner):
            return QuotaError(
                f"{self.limit(owner)} of your scripts are {words.format('one client')}", "runs"
            )
        return RequestError(f"{self.total} scripts are {words.format('all clients')}")

    def limit(self, owner: Owner | None) -> int:
        """Return how many runs an owner may have; by default one slot is left for others."""
        return min(self.total, limit_of(owner, "runs") or max(1, self.total - 1))

    def _may_start(self, owner: Owner | None) -> bool:
        return owner is None or self._held[owner] < self.limit(owner)

    def _grant(self) -> None:
        """Grant free slots: first to the owner with the fewest runs, ties in order of arrival."""
        while self._held.total() < self.total:
            able = [waiter for waiter in self._waiting if self._may_start(waiter.owner)]
            if not able:
                return
            first = min(able, key=lambda waiter: self._held[waiter.owner])
            self._waiting.remove(first)
            self._held[first.owner] += 1
            first.granted.set()


class ResourceUsage:
    """A meter of the memory and disk that one run uses. Not thread-safe.

    `disk_bytes` limits the files below `tops` together with deleted files that are still open.
    `memory_bytes` is the limit of one process; all processes together may use an eighth more.
    """

    def __init__(self, tops: Sequence[str], disk_bytes: int, memory_bytes: int) -> None:
        self._tops = tops
        self._disk_bytes = disk_bytes
        self.memory_bytes = memory_bytes + memory_bytes // _SPARE_DIVISOR
        self.too_much_memory = f"its processes took more than {self.memory_bytes:,} bytes of memory"
        self._due = time.monotonic()

    def exceeded(self, tree: ProcessTree) -> str | None:
        """Return a message about the limit that a run exceeds, or None. Blocks."""
        pids = tree.processes()
        left = self.memory_bytes - _sockets(pids)
        if _memory(pids, left) > left:
            return self.too_much_memory
        if time.monotonic() >= self._due and self._is_full(pids):
            return (
                f"its files took more than {self._disk_bytes:,} bytes, were more than "
                f"{MAX_FILES:,}, or could not be measured"
            )
        return None

    def _is_full(self, pids: Collection[int]) -> bool:
        begun = time.monotonic()
        left = self._disk_bytes - _nameless(pids, self._tops)
        full = left < 0 or exceeds(self._tops, left)
        ended = time.monotonic()
        self._due = ended + _PAUSE_FACTOR * (ended - begun)
        return full


def _memory(pids: Collection[int], most: int) -> int:
    """Return the memory of these processes in bytes; 0 without /proc.

    A quick sum counts shared memory once per process. Above `most` an exact sum counts it once.
    """
    tables = ("VmPTE:",)
    named = ("RssAnon:", "RssShmem:", "VmSwap:", *tables)
    quick = {pid: _bytes(f"/proc/{pid}/status", named) for pid in pids}
    if sum(quick.values()) <= most:
        return sum(quick.values())
    total = 0
    for pid in pids:
        exact = _bytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:", "SwapPss:"))
        if exact:
            total += exact + _bytes(f"/proc/{pid}/status", tables)
        else:  # it may not be readable
            total += quick[pid]
    return total


def _sockets(pids: Collection[int]) -> int:
    """Return the most that the sockets of these processes can hold, in bytes.

    It is 0 if they have no network namespace of their own. That counts all sockets, also those of
    connections that wait to be accepted, which belong to no process.
    """
    for pid in pids:
        with suppress(OSError):
            if not os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net"):
                files = f"/proc/{pid}/net/sockstat", f"/proc/{pid}/net/sockstat6"
                rows = {line.split()[0]: line.split() for file in files for line in lines(file)}
                # "sockets: used 5", "TCP: inuse 1 orphan 0 tw 0 alloc 3 mem 2", "TCP6: inuse 0";
                # `mem` is the memory of TCP on the whole machine, in pages
                total, tcp, tcp6 = (
                    rows.get(name, ["0"] * 3) for name in ("sockets:", "TCP:", "TCP6:")
                )
                held = int(tcp[-1]) * os.sysconf("SC_PAGE_SIZE")
                held = min(held, (int(tcp[2]) + int(tcp6[2])) * _TCP_SOCKET)
                defaults = (int(line) for path in _BUFFER_DEFAULTS for line in lines(path))
                return held + int(total[2]) * max([_SOCKET, *defaults])
    return 0


def _bytes(path: str, names: tuple[str, ...]) -> int:
    """Return the sum of these fields of a file of /proc, which has them in kibibytes."""
    return sum(1024 * int(line.split()[1]) for line in lines(path) if line.startswith(names))


def _nameless(pids: Collection[int], tops: Sequence[str]) -> int:
    """Return the bytes of deleted files on the disks of `tops` that processes keep open."""
    disks: set[int] = set()
    for top in tops:
        with suppress(OSError):
            disks.add(os.stat(top).st_dev)
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        for name in entries(f"/proc/{pid}/fd"):
            with suppress(OSError):
                file = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev in disks:
                    sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
        for line in lines(f"/proc/{pid}/maps"):
            if line.endswith(" (deleted)"):  # also files that are mapped and closed
                span, _, _, disk, inode = line.split()[:5]
                begin, end = (int(address, 16) for address in span.split("-"))
                device = os.makedev(*(int(number, 16) for number in disk.split(":")))
                if device in disks:
                    size = max(end - begin, _MAPPED)
                    with suppress(OSError):  # only root may look
                        path = f"/proc/{pid}/map_files/{begin:x}-{end:x}"
                        size = os.stat(path).st_blocks * 512
                    sizes.setdefault((device, int(inode)), size)
    return sum(sizes.values())
