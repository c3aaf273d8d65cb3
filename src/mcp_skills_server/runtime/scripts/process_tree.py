"""A program that runs and everything that it has started: found, measured by others, and ended.

Its own group is signalled at once. On Linux its processes are found by descent, and those that have left both the group
and the family by the token in their environment.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from mcp_skills_server.runtime.scripts.proc import family, having

logger = logging.getLogger(__name__)

TOKEN: Final = "SKILL_RUN"  # noqa: S105
"""The variable that carries a run's token."""
KILLING_S: Final = 3.0
"""How long killing is tried."""
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
        """Its processes as far as they are known: those that descend from it, and once in a while those that do not."""
        now = time.monotonic()
        if now >= self._due:  # a look at all processes of the machine
            self._strays = list(having(TOKEN, self._token))
            self._due = now + _STRAYS_S
        return {pid for start in (self._pid, *self._strays) for pid in family(start)}

    def terminate_group(self) -> None:
        """Ask the program and its group to end."""
        _signal_group(self._pid, signal.SIGTERM)
        _signal_group(self._pid, signal.SIGCONT)  # a stopped process hears of nothing else

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
