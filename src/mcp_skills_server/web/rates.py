"""Rate and concurrency limits per client: requests, failed authentications, concurrent work.

A request over the rate gets 429; one over the concurrency limit waits.

Replicas with a shared store count together; while it is unreachable, each counts alone. A client
that is refused often waits a second for each 429, which slows down a flood (tarpitting).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.errors import REPEATS, RequestError
from mcp_skills_server.server.sdk import address, principal, quota_owner
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.connections import MOST_UNUSED_BODY

logger = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset(("/healthz", "/readyz"))
"""Probes of the container platform: under any Host, without a token, not rate limited."""
COUNT_BATCH: Final = "mcp_skills_server.count_batch"
"""Key in the ASGI scope of the function that counts further requests in a batch.

It takes their number, and returns the refusal if they exceed the quota.
"""
_REQUESTS: Final = "requests-per-minute"
_FAILURES: Final = "failed-authentications-per-minute"
_TARPIT_S: Final = 1.0
"""Seconds by which a 429 is delayed; its Retry-After is at least as long."""
_CONCURRENCY: Final = 2
"""Concurrent requests of a client: they share one event loop, on however many connections."""
_SLOW_S: Final = 0.05
"""Seconds after which a request no longer counts: it waits for a disk, script or client."""

TakeShared: TypeAlias = Callable[[str, int, int], Awaitable[float]]
"""Counts requests of an owner across replicas, given the limit per minute and their number.

Returns the seconds to wait, 0 if they were counted. Raises RequestError if they cannot be.
"""


def error_response(
    status: int,
    code: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    data: Mapping[str, str] | None = None,
) -> Response:
    """Return a JSON-RPC error for a request whose id was not read."""
    return JSONResponse(jsonrpc.error(None, code, message, data), status, headers)


def emit_refusal(scope: Scope, reason: str) -> None:
    """Emit the refusal of an HTTP request, for one of a few fixed reasons."""
    events.emit_refusal(scope["method"], reason, principal=principal(scope), address=address(scope))


def quota_refusal(
    scope: Scope, quota: str, most: int, wait: float = 1.0, remedy: str = ""
) -> Response:
    """Log and return a 429: `quota` is its configuration key, `most` its size, `wait` in s.

    `remedy` is for requests that are over the quota at any time.
    """
    owner = quota_owner(scope)
    logger.warning("quota %s: %s exceeded %s; answered with 429", quota, owner, most, extra=REPEATS)
    emit_refusal(scope, quota)
    seconds = max(1, math.ceil(wait))
    remedy = remedy or f"try again in {seconds} s"
    message = f"Over the quota {quota} ({most:,}); {remedy}"
    headers = {"cache-control": "no-store", "retry-after": str(seconds)}
    return error_response(429, jsonrpc.QUOTA_EXCEEDED, message, headers, {"quota": quota})


async def refuse_with_delay(
    scope: Scope, receive: Receive, send: Send, rates: Rates, *, quota: str, most: int, wait: float
) -> None:
    """Send 429, delayed by a second if this client was refused more than 60 times a minute.

    Meanwhile the connection does nothing else, so that each costs one small response a second.
    """
    if rates.refusals.take((quota, quota_owner(scope))) > 0:
        left = MOST_UNUSED_BODY
        with anyio.move_on_after(_TARPIT_S):
            while (message := await receive())["type"] != "http.disconnect":
                left -= len(message.get("body", b""))
                if left < 0:  # stop reading (backpressure)
                    await anyio.sleep_forever()
            return  # the client disconnected
    await quota_refusal(scope, quota, most, wait)(scope, receive, send)


class Turns:
    """ASGI middleware: in each turn of the event loop, at most two requests of an address begin.

    `RequestLimits` does not slow down requests that are answered without waiting. A client with a
    thousand connections could have one on each of them handled before the next of another client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request once it is its turn."""
        owner = quota_owner(scope)
        if owner is not None:
            turn = self._turns.setdefault(owner, asyncio.Semaphore(_CONCURRENCY))
            await turn.acquire()
            asyncio.get_running_loop().call_soon(turn.release)
        await self._app(scope, receive, send)


class FailedAuthentications:
    """Rate limit of failed authentications per address; authenticated requests do not count."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def count(self, scope: Scope) -> float:
        """Count a failed request. Return the seconds to wait, 0 within the quota."""
        rate = self._rates.failed_authentications
        if rate is None:
            return 0.0
        return rate.take(quota_owner(scope))

    async def is_over(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Count a failed request. Send 429 and return True if it is over the quota."""
        rate, wait = self._rates.failed_authentications, self.count(scope)
        if rate is None or wait <= 0:
            return False
        await refuse_with_delay(
            scope, receive, send, self._rates, quota=_FAILURES, most=rate.per_minute, wait=wait
        )
        return True


class RequestLimits:
    """ASGI middleware that limits rate and concurrency per principal, else per address.

    `shared` counts across replicas; None without replicas.
    """

    def __init__(self, app: ASGIApp, rates: Rates, shared: TakeShared | None = None) -> None:
        self._app = app
        self._rates = rates
        self._shared = shared
        self._limits = WeakValueDictionary[str, asyncio.Semaphore]()
        """The concurrency limit of each client that has requests; they proceed in their order."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request within the rate, once its client is below the concurrency limit."""
        owner = None
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            owner = quota_owner(scope)
        if owner is None:
            await self._app(scope, receive, send)
            return
        limit = self._limits.setdefault(owner, asyncio.Semaphore(_CONCURRENCY))
        with ExitStack() as permit:  # closed here, or by the timer

            async def take() -> None:
                permit.close()
                await limit.acquire()
                permit.callback(limit.release)
                self._release_if_slow(permit)

            async def receiving() -> Message:
                message = await receive()
                # The body may have taken longer than the permit lasted, and is parsed next.
                if message["type"] == "http.request" and not message.get("more_body"):
                    await take()
                return message

            await take()
            await self._answer(owner, scope, receiving, send)

    def _release_if_slow(self, permit: ExitStack, extensions: int = 4) -> None:
        """Close a permit after `_SLOW_S`, or later if this request may keep the loop busy.

        There are at most four `extensions`, since others may keep it busy too.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + _SLOW_S

        def close() -> None:
            if loop.time() < due + _SLOW_S / 2 or not extensions:
                permit.close()
            else:
                self._release_if_slow(permit, extensions - 1)

        permit.callback(loop.call_at(due, close).cancel)

    async def _answer(self, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or send 429 if it is over the rate."""
        rate = self._rates.requests
        if rate is None:
            await self._app(scope, receive, send)
            return

        async def take(count: int) -> float:
            wait = rate.take(owner, count)
            # over the rate here means over that of all replicas
            if wait <= 0 and count and self._shared is not None:
                with suppress(RequestError):
                    wait = await self._shared(owner, rate.per_minute, count)
            return wait

        async def count_batch(count: int) -> Response | None:
            wait = await take(count)
            if wait <= 0:
                return None
            remedy = ""
            if count >= rate.per_minute:
                remedy = f"send at most {rate.per_minute:,} calls in a batch"
            return quota_refusal(scope, _REQUESTS, rate.per_minute, wait, remedy)

        wait = await take(1)
        if wait > 0:
            await refuse_with_delay(
                scope, receive, send, self._rates, quota=_REQUESTS, most=rate.per_minute, wait=wait
            )
        else:
            await self._app({**scope, COUNT_BATCH: count_batch}, receive, send)
