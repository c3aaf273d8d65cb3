"""Token-bucket rate limiting by owner. Pure.

The bucket holds one minute's tokens. The number of owners is bounded: beyond it, the one seen longest ago is forgotten
and begins with a full bucket.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MOST_OWNERS: Final = 100_000


class Rate:
    """The token buckets of owners.

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
        """Return the seconds until the owner may do it once more; 0 where it may now. Counts nothing."""
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
