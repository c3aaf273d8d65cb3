"""What a run takes of memory and disk while it runs: all of its processes together, and files that have no name.

The limits that the kernel sets for a process do not count memory that processes share, and none counts a whole run. So
it is looked at, often: memory at each look; the disk when it has lost space since the last look, and at least once in a
second. A run can go beyond a limit by what it takes between two looks.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from mcp_skills_server.runtime.scripts.proc import entries, lines
from mcp_skills_server.runtime.scripts.workspace import MOST_FILES, exceeds

_AT_LEAST_S: Final = 1.0
_SHARE: Final = 16
"""The disk is looked at when this part of what a run may take is gone."""
_PAUSE: Final = 3
"""A long look is followed by a pause of so many times its length."""
_SPARE: Final = 8
"""All processes together may have this part more than one: the programs around a script have some memory too."""


class Usage:
    """What one run takes. For one thread at a time.

    Args:
        tops: the directories that it may fill.
        disk_bytes: what their files, and those that it has removed and holds open, may take.
        memory_bytes: what its processes may take together.
    """

    def __init__(self, tops: Sequence[str], disk_bytes: int, memory_bytes: int) -> None:
        self._tops = tops
        self._disk_bytes = disk_bytes
        self._memory_bytes = memory_bytes + memory_bytes // _SPARE
        self._free = _free(tops)
        self._due = self._soonest = time.monotonic()

    def over(self, processes: Iterable[int]) -> str | None:
        """What it takes too much of, in words, or None.

        Args:
            processes: those of the run, as far as they are known.
        """
        pids = list(processes)
        if _memory(pids, self._memory_bytes) > self._memory_bytes:
            return f"its processes took more than {self._memory_bytes:,} bytes of memory"
        if self._should_look() and self._is_full(pids):
            return (
                f"its files took more than {self._disk_bytes:,} bytes, were more than {MOST_FILES:,}, or could not be "
                "measured"
            )
        return None

    def _should_look(self) -> bool:
        now = time.monotonic()
        if now >= self._due:
            return True
        return now >= self._soonest and self._free - _free(self._tops) > self._disk_bytes // _SHARE

    def _is_full(self, pids: Iterable[int]) -> bool:
        begun = time.monotonic()
        self._free = _free(self._tops)
        left = self._disk_bytes - _nameless(pids, self._tops)
        full = left < 0 or exceeds(self._tops, left)
        ended = time.monotonic()
        self._soonest = ended + _PAUSE * (ended - begun)
        self._due = max(ended + _AT_LEAST_S, self._soonest)
        return full


def _memory(pids: Sequence[int], most: int) -> int:
    """Bytes that these processes have; 0 where the system does not say.

    What several share is counted for each at first, which is quick, and once only where that is more than `most`.
    """
    named = ("RssAnon:", "RssShmem:", "VmSwap:")
    quick = {pid: sum(_kibibytes(f"/proc/{pid}/status", named)) for pid in pids}
    if sum(quick.values()) * 1024 <= most:
        return sum(quick.values()) * 1024
    exact = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
    return sum(sum(_kibibytes(f"/proc/{pid}/smaps_rollup", exact)) or quick[pid] for pid in pids) * 1024


def _kibibytes(path: str, names: tuple[str, ...]) -> list[int]:
    return [int(line.split()[1]) for line in lines(path) if line.startswith(names)]


def _nameless(pids: Iterable[int], tops: Sequence[str]) -> int:
    """Bytes of the removed files of these directories' disk that the processes still have, open or mapped."""
    disks: set[int] = set()
    for top in tops:
        with suppress(OSError):
            disks.add(os.stat(top).st_dev)
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        for name in entries(f"/proc/{pid}/fd"):
            with suppress(OSError):
                of = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(of.st_mode) and of.st_nlink == 0 and of.st_dev in disks:
                    found[of.st_dev, of.st_ino] = of.st_blocks * 512
        for disk, inode, size in _mapped(pid):
            if disk in disks:
                found.setdefault((disk, inode), size)
    return sum(found.values())


def _mapped(pid: int) -> Iterator[tuple[int, int, int]]:
    """Disk, number and mapped bytes of the removed files that a process has mapped."""
    for line in lines(f"/proc/{pid}/maps"):
        if line.endswith(" (deleted)"):
            span, _, _, disk, inode = line.split()[:5]
            (begin, end), (major, minor) = span.split("-"), disk.split(":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(inode), int(end, 16) - int(begin, 16)


def _free(tops: Sequence[str]) -> int:
    for top in tops:
        with suppress(OSError):
            return shutil.disk_usage(top).free
    return 0
