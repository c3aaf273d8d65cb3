"""Quotas and rate limits for each owner: a principal, or an address without authentication."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

MOST_OWNERS: Final = 100_000
_REFUSALS_PER_MINUTE: Final = 60


class QuotaSettings(NamedTuple):
    """The quotas of one owner; None is no rate limit, or a default share of the server's limit.

    Attributes:
        requests_per_minute: requests over HTTP, of any protocol.
        failed_authentications_per_minute: failed authentications of one address.
        sessions: sessions of legacy clients.
        streams: `subscriptions/listen` streams.
        unread_bytes: bytes of responses that the client has not read yet.
        runtime_sessions: sessions of the tools.
        blob_bytes: bytes of blobs of the Skills Protocol.
        runs: scripts that run concurrently.
    """

    requests_per_minute: int | None = None
    failed_authentications_per_minute: int | None = 60
    sessions: int | None = None
    streams: int | None = None
    unread_bytes: int | None = None
    runtime_sessions: int | None = None
    blob_bytes: int | None = None
    runs: int | None = None

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

    def wait(self, owner: Hashable) -> float:
        """Return the seconds until the owner's next token, or 0 if there is one; take none."""
        full_at = self._full_at.get(owner)
        if full_at is None:
            return 0.0
        step = 60 / self.per_minute
        return max(0.0, full_at + step - self._now() - 60)

    def take(self, owner: Hashable) -> float:
        """Take a token and return 0, or return the seconds until the owner's next token."""
        wait = self.wait(owner)
        if wait > 0:
            return wait
        now = self._now()
        self._full_at[owner] = max(now, self._full_at.get(owner, now)) + 60 / self.per_minute
        self._full_at.move_to_end(owner)
        while self._full_at and (
            len(self._full_at) > self._most or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)
        return 0.0


class Rates:
    """The rate limits in force, which any thread may replace.

    Attributes:
        requests: limit of requests, or None.
        failed_authentications: limit of failed authentications, or None.
        refusals: limit of immediate responses to an owner over one of the other limits.
    """

    def __init__(self, settings: QuotaSettings) -> None:
        self.refusals: Final = Rate(_REFUSALS_PER_MINUTE)
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
