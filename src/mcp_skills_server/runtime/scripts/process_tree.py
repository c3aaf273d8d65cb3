"""The process tree of one run, found in Linux's /proc, and ended as a whole.

The process group is signalled at once. On Linux, processes are found by descent, and those that have left both the
group and the family by the token in their environment. Elsewhere /proc reads as empty.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

logger = logging.getLogger(__name__)

TOKEN: Final = "SKILL_RUN"  # noqa: S105
"""The variable that carries a run's token."""
KILLING_S: Final = 3.0
"""Seconds for which killing is tried."""
_STRAYS_S: Final = 1.0
_WINDOWS: Final = sys.platform == "win32"


class ProcessTree:
    """The processes of one run.

    Args:
        pid: the program that was started, which leads a group of its own.
        token: what its environment, and so that of all it starts, has as `TOKEN`.
    """

    def __init__(self, pid: int, token: str) -> None:
        self._pid = pid
        self._token = token
        self._strays: list[int] = []
        self._due = 0.0

    def processes(self) -> set[int]:
        """Return the known processes: all descendants, and once a second those that left the family."""
        now = time.monotonic()
        if now >= self._due:  # this reads the environment of every process
            self._strays = list(having(TOKEN, self._token))
            self._due = now + _STRAYS_S
        return {pid for start in (self._pid, *self._strays) for pid in family(start)}

    def terminate_group(self) -> None:
        """Ask the program and its group to end."""
        _signal_group(self._pid, signal.SIGTERM)
        _signal_group(self._pid, signal.SIGCONT)  # a stopped process handles no other signal

    def terminate_inside(self) -> None:
        """Ask all but the program itself: a sandbox's own process would end at once and take the script with it."""
        for pid in having(TOKEN, self._token):
            if pid != self._pid:
                _signal([pid], signal.SIGTERM)
                _signal([pid], signal.SIGCONT)

    def kill(self) -> None:
        """Kill all that is found until nothing is. Blocks."""
        _signal_group(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + KILLING_S
        clear = 0
        # A process that is being replaced by `exec` shows no environment for a moment: one look is not enough.
        while clear < 2:
            found = list(having(TOKEN, self._token))
            clear = 0 if found else clear + 1
            _signal(found, signal.SIGKILL)
            if time.monotonic() > deadline:
                logger.warning("processes of a script do not end although they were killed: %s", found)
                return
            time.sleep(0.005)


def _signal_group(group: int, number: int) -> None:
    if not _WINDOWS:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def entries(directory: str) -> list[str]:
    """Return the names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def content(path: str) -> bytes:
    """Return the bytes of a file; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def lines(path: str) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    return content(path).decode(errors="replace").splitlines()


def family(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    todo, seen = [pid], {pid}
    while todo:
        here = todo.pop()
        yield here
        for task in entries(f"/proc/{here}/task"):
            for word in content(f"/proc/{here}/task/{task}/children").split():
                child = int(word)
                if child not in seen:
                    seen.add(child)
                    todo.append(child)


def having(variable: str, value: str) -> Iterator[int]:
    """Yield the processes whose environment has this variable, as far as this user may see."""
    mark = f"{variable}={value}".encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit() and mark in content(f"/proc/{name}/environ"):
            yield int(name)
