"""Rate and concurrency limits of each client: requests, failed authentications, work.

Beyond a rate a request is answered with 429; beyond the concurrency limit it waits.

Where replicas share what they count, all of them count as one. While that cannot be reached each
counts for itself. A client that is refused again and again waits a second for its answer: a flood
gets its refusals no faster than that.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeAlias

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.dialects.jsonrpc import QUOTA_EXCEEDED
from mcp_skills_server.errors import REPEATS, RequestError
from mcp_skills_server.server.entrance import address, counted, principal
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.connections import MOST_UNHEEDED

logger = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset(("/healthz", "/readyz"))
"""Probes come from the container's platform, under any Host, without a token; not counted."""
MORE: Final = "mcp_skills_server.more_requests"
"""Where the scope has what counts further requests that came with this one: takes how many, and
answers 429 and returns True where they are over the quota."""
_REQUESTS: Final = "requests-per-minute"
_FAILURES: Final = "failed-authentications-per-minute"
_HELD_S: Final = 1.0
"""Seconds for which an answer is held back; every 429 says not to come again before."""
_AT_WORK: Final = 2
"""Concurrent requests of a client: all share an event loop, whatever the connections."""
_LONG_S: Final = 0.05
"""Seconds after which a request counts no more: it waits for a disk, script or client."""

TakeShared: TypeAlias = Callable[[str, int], Awaitable[float]]
"""Counts a request of an owner, of so many a minute, with those at other replicas; the seconds
until it may be made, 0 where it was counted. Raises RequestError where it cannot be counted now."""


async def send_error(
    send: Send, status: int, error: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send an error of JSON-RPC, to a request whose id was not read."""
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(scope: Scope, send: Send, quota: str, most: int, wait: float = 1.0) -> None:
    """Answer 429 and note it: `quota` is its configuration key, `most` its size, `wait` in s."""
    logger.warning(
        "quota %s: %s wants more than %s; answered with 429",
        quota,
        counted(scope),
        most,
        extra=REPEATS,
    )
    events.emit_refusal(scope["method"], quota, principal=principal(scope), address=address(scope))
    seconds = max(1, math.ceil(wait))
    message = f"Over the quota {quota} ({most:,}); try again in {seconds} s"
    error = {"code": QUOTA_EXCEEDED, "message": message, "data": {"quota": quota}}
    await send_error(
        send, 429, error, [(b"cache-control", b"no-store"), (b"retry-after", str(seconds).encode())]
    )


async def refuse_in_time(
    scope: Scope, receive: Receive, send: Send, rates: Rates, *, quota: str, most: int, wait: float
) -> None:
    """Answer 429 at once, but a second later where that happens more than once a second.

    Until then the connection does nothing else, so that each costs one small answer a second. The
    first sixty are answered at once.
    """
    if rates.refusals.take((quota, counted(scope))) > 0:
        left = MOST_UNHEEDED
        with anyio.move_on_after(_HELD_S):
            while (message := await receive())["type"] != "http.disconnect":
                left -= len(message.get("body", b""))
                if left < 0:  # from here on its bytes stay with the client
                    await anyio.sleep_forever()
            return  # the client left
    await refuse(scope, send, quota, most, wait)


class FailedAuthentications:
    """Quota of failed authentications of each address; a request with a proved principal passes."""

    def __init__(self, rates: Rates | None = None) -> None:
        self._rates = rates or Rates(QuotaSettings())

    def count(self, scope: Scope) -> float:
        """Count a failed request. Return the seconds to wait; 0 within the quota."""
        rate = self._rates.failed_authentications
        if rate is None:
            return 0.0
        return rate.take(counted(scope))

    async def is_over(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Count a failed request. Answer 429 if that is over the quota; return whether it was."""
        rate, wait = self._rates.failed_authentications, self.count(scope)
        if rate is None or wait <= 0:
            return False
        await refuse_in_time(
            scope, receive, send, self._rates, quota=_FAILURES, most=rate.per_minute, wait=wait
        )
        return True


class _RequestTurns:
    """The requests of one client: so many are at work, and the others wait, the oldest first."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(_AT_WORK)
        self.users = 0


class RequestLimits:
    """ASGI middleware that limits how often each principal, else each address, may ask, and how
    much at once.

    `shared` counts with other replicas; None where there are none.
    """

    def __init__(self, app: ASGIApp, rates: Rates, shared: TakeShared | None = None) -> None:
        self._app = app
        self._rates = rates
        self._shared = shared
        self._turns: dict[str, _RequestTurns] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what is within the quota, when it is its turn."""
        owner = None
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            owner = counted(scope)
        if owner is None:
            await self._app(scope, receive, send)
            return
        turns = self._turns.setdefault(owner, _RequestTurns())
        turns.users += 1
        try:
            await turns.free.acquire()
            with ExitStack() as turn:  # which is closed once, here or by the timer
                turn.callback(turns.free.release)
                timer = asyncio.get_running_loop().call_later(_LONG_S, turn.close)
                turn.callback(timer.cancel)
                await self._answer(owner, scope, receive, send)
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[owner]

    async def _answer(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on a request, or answer 429 where it is over the rate."""
        rate = self._rates.requests
        if rate is None:
            await self._app(scope, receive, send)
            return

        async def more(count: int) -> bool:
            wait = next((over for _ in range(count) if (over := rate.take(owner)) > 0), 0.0)
            if wait > 0:
                await refuse(scope, send, _REQUESTS, rate.per_minute, wait)
            return wait > 0

        wait = rate.take(owner)
        # a client over the rate here is over that of all replicas
        if wait <= 0 and self._shared is not None:
            with suppress(RequestError):
                wait = await self._shared(owner, rate.per_minute)
        if wait > 0:
            await refuse_in_time(
                scope, receive, send, self._rates, quota=_REQUESTS, most=rate.per_minute, wait=wait
            )
        else:
            await self._app({**scope, MORE: more}, receive, send)
