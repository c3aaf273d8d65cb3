"""A grace period for skills whose SKILL.md is just being written: the last whole state stands until it has been quiet.

An editor may unlink a file and create it anew, a tool may truncate it and write, a checkout may do either for a second.
None of that is the author's intention.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from mcp_skills_server.catalog.path_index import within

QUIET_S: Final = 1.0
"""Seconds for which a SKILL.md that has become worse must stay as it is before it counts."""


class GracePeriod:
    """The skills that stand as they were although their SKILL.md is gone or has become worse.

    Used under the registry's lock.

    Args:
        look_again: called in a thread of its own when a state may have lasted long enough.
        quiet_s: seconds that a state must last; with 0 nothing is held.
    """

    def __init__(self, look_again: Callable[[], object], quiet_s: float = QUIET_S) -> None:
        self._look_again = look_again
        self._quiet_s = quiet_s
        self._since: dict[tuple[int, str], tuple[object, float]] = {}
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def is_on(self) -> bool:
        """Tell whether anything is held at all."""
        return self._quiet_s > 0

    @property
    def places(self) -> list[tuple[int, str]]:
        """(index of the root, directory) of each."""
        return list(self._since)

    def keep(self, root: int, directory: str, state: object) -> bool:
        """Tell whether the skill stands for now: its SKILL.md has not been in this state for long enough."""
        now = time.monotonic()
        before, since = self._since.get((root, directory), (None, now))
        if (root, directory) not in self._since or before != state:
            since = now
        if now - since >= self._quiet_s:
            self._since.pop((root, directory), None)
            return False
        self._since[root, directory] = state, since
        if self._timer is None and not self._closed:
            self._timer = threading.Timer(self._quiet_s, self._ring)
            self._timer.daemon = True
            self._timer.start()
        return True

    def settle(self, root: int, part: str, still: Collection[str]) -> None:
        """Of the directories at or below `part` only those in `still` are held on: the others were found whole."""
        for key in [key for key in self._since if key[0] == root and within(key[1], part) and key[1] not in still]:
            del self._since[key]

    def close(self) -> None:
        """Call `look_again` no more."""
        self._closed = True
        if (timer := self._timer) is not None:
            timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._look_again()
