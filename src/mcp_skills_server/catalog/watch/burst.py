"""When a burst of events is over. Pure: moments are numbers of seconds.

A lone edit goes out after a short quiet step. What looks like more, such as a checkout or a copy, waits until it has
been quiet for longer, so that clients are notified of it once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from mcp_skills_server.catalog.path_index import outermost

_STEP_S: Final = 0.04
"""How long it must be quiet after a lone edit; also what one waits at the least."""
_QUIET_S: Final = 0.25
"""How long it must be quiet after a burst."""
_LONGEST_S: Final = 3.0
"""A burst is cut after so long, or a file that is written all the time would never be read again."""
_LONE_PATHS: Final = 8
_LONE_TOPS: Final = 3
"""What one save touches in its directory at most: the file, a temporary and a backup copy."""


class Burst:
    """Events that belong together.

    Args:
        paths: the absolute paths of the first ones.
        now: when they came.
        lone: whether what came may be a lone edit; not when it follows closely on what was just reported.
    """

    def __init__(self, paths: Iterable[str], now: float, *, lone: bool = True) -> None:
        self.paths = set(paths)
        self._lone = lone
        self._began = self._last = now

    def add(self, paths: Iterable[str], now: float) -> None:
        """More came at this moment, or nothing."""
        for path in paths:
            self.paths.add(path)
            self._last = now

    def over(self) -> float:
        """The moment at which it is over if nothing more comes."""
        self._lone = self._lone and self._looks_lone()
        return min(self._last + (_STEP_S if self._lone else _QUIET_S), self._began + _LONGEST_S)

    def _looks_lone(self) -> bool:
        """Whether it is no more than a save in one directory, or a small directory that came, went or was renamed."""
        if len(self.paths) > _LONE_PATHS:
            return False
        tops = outermost({path.replace(os.sep, "/") for path in self.paths})
        return len(tops) <= _LONE_TOPS and len({top.rpartition("/")[0] for top in tops}) == 1
