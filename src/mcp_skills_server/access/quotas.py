"""Quotas and rate limits for each owner: a principal, or an address without authentication."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

MOST_OWNERS: Final = 100_000
_ROUNDING_S: Final = 1e-6
"""Seconds by which sums of floats may be wrong: seven sevenths of a minute are more than one."""


class QuotaSettings(NamedTuple):
    """The quotas of one owner; None is no rate limit, or a default share of the server's limit."""

    requests_per_minute: int | None = None  # over HTTP, of any protocol
    failed_authentications_per_minute: int | None = 60  # of one address
    sessions: int | None = None  # of legacy clients
    streams: int | None = None  # of `subscriptions/listen`
    unread_bytes: int | None = None  # of responses
    runtime_sessions: int | None = None  # of the tools
    blob_bytes: int | None = None  # of the Skills Protocol
    runs: int | None = None  # scripts that run concurrently

    @property
    def fixed(self) -> QuotaSettings:
        """Return the quotas that are fixed while the server runs: all except the rate limits."""
        return self._replace(requests_per_minute=None, failed_authentications_per_minute=None)


class Rate:
    """A token-bucket rate limiter by owner; a bucket holds one minute's tokens.

    At most `most` owners have a bucket. The least recently counted one is evicted, and so gets a
    full bucket again.
    """

    def __init__(
        self, per_minute: int, *, now: Callable[[], float] = time.monotonic, most: int = MOST_OWNERS
    ) -> None:
        self.per_minute = per_minute
        self._now = now
        self._most = most
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """The time at which the bucket of each owner will be full."""

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, owner: Hashable, count: int = 1) -> float:
        """Take `count` tokens and return 0, or none and return the seconds until there are enough.

        More tokens than a bucket holds are never enough.
        """
        now = self._now()
        full_at = max(now, self._full_at.get(owner, now)) + count * 60 / self.per_minute
        wait = full_at - now - 60
        if wait > _ROUNDING_S:
            return wait
        self._full_at[owner] = full_at
        self._full_at.move_to_end(owner)
        while self._full_at and (
            len(self._full_at) > self._most or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)
        return 0.0


class Rates:
    """The rate limits in force, which any thread may replace."""

    def __init__(self, settings: QuotaSettings) -> None:
        self.requests: Rate | None = None
        self.failed_authentications: Rate | None = None
        self.replace(settings)

    def replace(self, settings: QuotaSettings) -> None:
        """Apply new settings; a rate limit that changes starts with full buckets."""
        self.requests = _rate(self.requests, settings.requests_per_minute)
        self.failed_authentications = _rate(
            self.failed_authentications, settings.failed_authentications_per_minute
        )


def _rate(before: Rate | None, per_minute: int | None) -> Rate | None:
    if per_minute is None:
        return None
    if before is not None and before.per_minute == per_minute:
        return before
    return Rate(per_minute)
