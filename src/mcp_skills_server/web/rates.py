"""Rate and concurrency limits per client: requests, failed authentications, concurrent work.

A request over the rate gets 429; one over the concurrency limit waits. Replicas with a shared store
count together; while it is unreachable, each counts alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from mcp_skills_server.access.quota import Owner, Quotas, Requester, limit_of
from mcp_skills_server.errors import RequestError
from mcp_skills_server.web.refusals import over_quota

_REQUESTS: Final = "requests-per-minute"
_FAILURES: Final = "failed-authentications-per-minute"
_MAX_OF_CLIENT: Final = 2
"""Concurrent requests of a client: they share one event loop, on however many connections."""
_MAX_OF_ALL: Final = 32
"""Concurrent requests of all clients, and so begun in one turn of the event loop."""
_SLOW_S: Final = 0.05
"""Seconds after which a request no longer counts: it waits for a disk, script or client."""
_MAX_EXTENSIONS: Final = 4
"""How often a permit is extended while the loop is busy, since others may keep it busy too."""

TakeShared: TypeAlias = Callable[[str, int, int], Awaitable[float]]
"""Counts requests of an owner across replicas, given the limit per minute and their number.

Returns the seconds to wait, 0 if they were counted. Raises RequestError if they cannot be.
"""


class RequestRate:
    """Rate limit of requests per principal, else per address.

    `shared` counts across replicas; None without replicas.
    """

    def __init__(self, quotas: Quotas, shared: TakeShared | None = None) -> None:
        self._rate = quotas.requests
        self._shared = shared

    async def take(self, client: Requester, count: int = 1) -> None:
        """Count requests.

        Raises:
            RefusalError: they are over the rate.
        """
        owner = client.owner
        per_minute = limit_of(owner, _REQUESTS)
        if per_minute is None or owner is None:
            return
        wait = self._rate.take(owner, per_minute, count)
        # over the rate here means over that of all replicas
        if wait <= 0 and count and self._shared is not None:
            with suppress(RequestError):
                wait = await self._shared(owner.key, per_minute, count)
        if wait > 0:
            remedy = ""
            if count > 1 and count >= per_minute:
                remedy = f"send at most {per_minute:,} calls in a batch"
            raise over_quota(client, _REQUESTS, per_minute, wait, remedy)


def count_failure(quotas: Quotas, client: Requester) -> None:
    """Count a failed authentication of an address; authenticated requests do not count.

    Raises:
        RefusalError: it is over the quota.
    """
    per_minute = limit_of(client.owner, _FAILURES)
    if per_minute is not None:
        wait = quotas.failed_authentications.take(client.owner, per_minute)
        if wait > 0:
            raise over_quota(client, _FAILURES, per_minute, wait)


class ConcurrencyLimits:
    """Concurrency limits of each owner and of all: fair queueing, as an owner has two in the queue.

    A permit is released only in the next turn of the event loop. A client with a thousand
    connections could otherwise have a request on each of them answered, without any wait in
    between, before the next request of another client.

    Attributes:
        waited_s: the seconds that the request which got the latest permit waited for it.
    """

    def __init__(self) -> None:
        self._limits = WeakValueDictionary[Owner, asyncio.Semaphore]()
        self._all = asyncio.Semaphore(_MAX_OF_ALL)
        self.waited_s = 0.0

    def permit(self, owner: Owner | None) -> Permit:
        """Return a permit, not yet taken, of this owner, who may be indistinguishable (None)."""
        if owner is None:
            return Permit(self, self._all)
        own = self._limits.setdefault(owner, asyncio.Semaphore(_MAX_OF_CLIENT))
        return Permit(self, own, self._all)


class ClientLimits:
    """The limits of each client, which all parts of the HTTP application share."""

    def __init__(self, quotas: Quotas | None = None, shared: TakeShared | None = None) -> None:
        self.quotas = quotas or Quotas()
        self.rate = RequestRate(self.quotas, shared)
        self.concurrency = ConcurrencyLimits()


class Permit:
    """A permit to work for one request."""

    __slots__ = ("_concurrency", "_extensions", "_held", "_limits", "_timer")

    def __init__(self, concurrency: ConcurrencyLimits, *limits: asyncio.Semaphore) -> None:
        self._concurrency = concurrency
        self._limits = limits
        self._held: list[asyncio.Semaphore] = []
        self._timer: asyncio.TimerHandle | None = None
        """The timer that releases the permit if the request is slow; None unless it is taken."""
        self._extensions = 0

    async def take(self) -> None:
        """Wait for the permit, once. A timer releases that of a slow request."""
        if self._held or not self._limits:
            return
        start = asyncio.get_running_loop().time()
        try:
            for limit in self._limits:
                await limit.acquire()
                self._held.append(limit)
        except asyncio.CancelledError:
            self.release()
            raise
        self._concurrency.waited_s = asyncio.get_running_loop().time() - start
        self._extensions = _MAX_EXTENSIONS
        self._release_if_slow()

    def release(self) -> None:
        """Release the permit in the next turn of the event loop, if it is taken."""
        if self._timer is not None:
            self._timer.cancel()
        self._limits = ()
        while self._held:
            asyncio.get_running_loop().call_soon(self._held.pop().release)

    def _release_if_slow(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + _SLOW_S
        self._timer = loop.call_at(due, self._on_timer, due)

    def _on_timer(self, due: float) -> None:
        # A late timer means that this request, or another one, keeps the event loop busy.
        is_late = asyncio.get_running_loop().time() >= due + _SLOW_S / 2
        if is_late and self._extensions:
            self._extensions -= 1
            self._release_if_slow()
        else:
            self.release()
