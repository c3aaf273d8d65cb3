"""Grace period: a skill whose SKILL.md is gone or has become worse stays as it was for a second.

An editor may unlink a file and create it anew, a tool may truncate it and write, and a checkout may
do either for a second. The author intends none of that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from mcp_skills_server.catalog.path_index import within

QUIET_S: Final = 1.0
"""Seconds for which a SKILL.md that became worse must stay unchanged to count."""


class GracePeriod:
    """The skills in their grace period. Guarded by the registry's lock.

    Args:
        rescan: called in a timer thread when a state may have lasted long enough.
        quiet_s: seconds that a state must last; 0 turns the grace period off.
    """

    def __init__(self, rescan: Callable[[], object], quiet_s: float = QUIET_S) -> None:
        self._rescan = rescan
        self._quiet_s = quiet_s
        self._since: dict[tuple[int, str], tuple[object, float]] = {}
        """State of SKILL.md and the time it was first seen, by (root index, directory)."""
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def is_on(self) -> bool:
        """Tell whether there is a grace period."""
        return self._quiet_s > 0

    @property
    def places(self) -> list[tuple[int, str]]:
        """(root index, directory) of each kept skill."""
        return list(self._since)

    def keep(self, root: int, directory: str, state: object) -> bool:
        """Tell whether to keep the skill: its SKILL.md has changed state too recently."""
        now, key = time.monotonic(), (root, directory)
        before, since = self._since.get(key, (None, now))
        if before != state:
            since = now
        if now - since >= self._quiet_s:
            self._since.pop(key, None)
            return False
        self._since[key] = state, since
        if self._timer is None and not self._closed:
            self._timer = threading.Timer(self._quiet_s, self._on_timer)
            self._timer.daemon = True
            self._timer.start()
        return True

    def discard_others(self, root: int, part: str, still: Collection[str]) -> None:
        """Forget the directories at or below `part` that are not in `still`."""
        for index, directory in self.places:
            if index == root and within(directory, part) and directory not in still:
                del self._since[index, directory]

    def close(self) -> None:
        """Cancel the timer; `rescan` is not called from here on."""
        self._closed = True
        if (timer := self._timer) is not None:
            timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._rescan()
