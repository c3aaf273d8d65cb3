"""How often somebody may do something: so many times a minute, and all of them at once where they were not used. Pure.

Who is over the rate waits for a part of a minute; nobody else is slower for it. What is kept is bounded: of very many
owners the one that was seen longest ago is forgotten, and begins anew.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MOST_OWNERS: Final = 100_000


class Rate:
    """Counts what owners do.

    Args:
        per_minute: how often one may do it; at least 1.
        now: seconds of a clock that never goes back.
        most: owners that are known at once.
    """

    def __init__(self, per_minute: int, *, now: Callable[[], float] = time.monotonic, most: int = MOST_OWNERS) -> None:
        self.per_minute = per_minute
        self._now = now
        self._most = most
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """By owner the moment at which it may do all at once again."""

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, owner: Hashable) -> float:
        """Seconds until the owner may do it once more; 0 where it may now. Counts nothing."""
        full_at = self._full_at.get(owner)
        if full_at is None:
            return 0.0
        step = 60 / self.per_minute
        return max(0.0, full_at + step - self._now() - 60)

    def take(self, owner: Hashable) -> float:
        """Count that the owner does it, if it may. Returns the seconds until it may; 0 where it was counted."""
        wait = self.wait(owner)
        if wait > 0:
            return wait
        now = self._now()
        self._full_at[owner] = max(now, self._full_at.get(owner, now)) + 60 / self.per_minute
        self._full_at.move_to_end(owner)
        while self._full_at and (len(self._full_at) > self._most or next(iter(self._full_at.values())) <= now):
            self._full_at.popitem(last=False)
        return 0.0
