"""Quotas of one principal, or of one address where no proof is required, and their rates."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

MOST_OWNERS: Final = 100_000
_REFUSALS_PER_MINUTE: Final = 60


class QuotaSettings(NamedTuple):
    """The quotas of one owner; None for the default share of what all owners divide.

    Attributes:
        requests_per_minute: requests over HTTP, of any protocol.
        failed_authentications_per_minute: failed authentications of one address.
        sessions: sessions of legacy clients.
        streams: `subscriptions/listen` streams.
        unread_bytes: bytes of answers that wait to be read.
        runtime_sessions: sessions of the tools.
        blob_bytes: bytes of blobs of the Skills Protocol.
        runs: scripts at once.
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
    def lasting(self) -> QuotaSettings:
        """The quotas that hold until the server ends: all but the rates, which `Rates` replaces at
        any time."""
        return self._replace(requests_per_minute=None, failed_authentications_per_minute=None)


class Rate:
    """Token-bucket rate limiting by owner: each bucket holds one minute's tokens.

    The number of owners is bounded: beyond `most`, the one seen longest ago is forgotten and begins
    with a full bucket.
    """

    def __init__(
        self, per_minute: int, *, now: Callable[[], float] = time.monotonic, most: int = MOST_OWNERS
    ) -> None:
        self.per_minute = per_minute
        self._now = now
        self._most = most
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """By owner the moment at which it may do all at once again."""

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, owner: Hashable) -> float:
        """Return the seconds until the owner may do it once more; 0 where it may now. Counts
        nothing."""
        full_at = self._full_at.get(owner)
        if full_at is None:
            return 0.0
        step = 60 / self.per_minute
        return max(0.0, full_at + step - self._now() - 60)

    def take(self, owner: Hashable) -> float:
        """Count that the owner does it, if it may. Returns the seconds until it may; 0 where it was
        counted."""
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
    """The rates that are in force. They may be replaced from any thread.

    Attributes:
        requests: None where they are not counted.
        failed_authentications: likewise.
        refusals: how often who is over one of them is answered at once.
    """

    def __init__(self, settings: QuotaSettings) -> None:
        self.refusals: Final = Rate(_REFUSALS_PER_MINUTE)
        self.requests: Rate | None = None
        self.failed_authentications: Rate | None = None
        self.replace(settings)

    def replace(self, settings: QuotaSettings) -> None:
        """Take these from now on. One that changes counts anew."""
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
