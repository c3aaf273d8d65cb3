"""What was whole is kept for a moment: skills whose SKILL.md is just being written, and bytes that were just replaced.

An editor may unlink a file and create it anew, a tool may truncate it and write, a checkout may do either for a second.
None of that is the author's intention, so the last whole state stands until the file has been quiet.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sized
from typing import Final, Generic, TypeVar

from mcp_skills_server.catalog.path_index import within

_K = TypeVar("_K")
_V = TypeVar("_V")

QUIET_S: Final = 1.0
"""How long a SKILL.md that has become worse must stay as it is before it counts."""


class Held:
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

    @property
    def places(self) -> list[tuple[int, str]]:
        """(index of the root, directory) of each."""
        return list(self._since)

    def keep(self, root: int, directory: str, state: object) -> bool:
        """Whether the skill stands for now: its SKILL.md has not been in this state for long enough."""
        now = time.monotonic()
        before, since = self._since.get((root, directory), (None, now))
        if (root, directory) not in self._since or before != state:
            since = now
        if now - since >= self._quiet_s:
            self._since.pop((root, directory), None)
            return False
        self._since[root, directory] = state, since
        if self._timer is None:
            self._timer = threading.Timer(self._quiet_s, self._ring)
            self._timer.daemon = True
            self._timer.start()
        return True

    def settle(self, root: int, part: str, still: Collection[str]) -> None:
        """Of the directories at or below `part` only those in `still` are held on: the others were found whole."""
        for key in [key for key in self._since if key[0] == root and within(key[1], part) and key[1] not in still]:
            del self._since[key]

    def _ring(self) -> None:
        self._timer = None
        self._look_again()


class Kept(Generic[_K, _V]):
    """The values that were put or asked for last, up to a number and a size of them all. Safe between threads."""

    def __init__(self, most: int, size: int, measure: Callable[[_V], Sized]) -> None:
        self._most, self._size, self._measure = most, size, measure
        self._kept: OrderedDict[_K, _V] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def __contains__(self, key: _K) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: _K) -> _V | None:
        """The value of this key, if it is still there."""
        return self._kept.get(key)

    def put(self, key: _K, value: _V) -> None:
        """Keep this value, and let the oldest go where there is too much."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self._total += len(self._measure(value))
            while len(self._kept) > self._most or self._total > self._size:
                self._total -= len(self._measure(self._kept.popitem(last=False)[1]))
