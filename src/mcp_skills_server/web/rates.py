"""Answers 429 to who asks more often than its quota lets it, before anything is done for the request.

Where replicas share what they count, all of them count as one. While that cannot be reached each counts for itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.errors import RequestError
from mcp_skills_server.server.callers import counted
from mcp_skills_server.web.guards import OPEN_PATHS
from mcp_skills_server.web.over_quota import refuse, refuse_in_time

_QUOTA: Final = "requests-per-minute"

MORE: Final = "mcp_skills_server.more_requests"
"""Where the scope has what counts further requests that came with this one: takes how many, and answers 429 and returns
True where they are over the quota."""

TakeShared: TypeAlias = Callable[[str, int], Awaitable[float]]
"""Counts a request of an owner, of so many a minute, with those at other replicas; the seconds until it may be made, 0
where it was counted. Raises RequestError where nobody can count now."""


class RequestRate:
    """ASGI middleware that counts requests by principal, else by address.

    Args:
        app: what answers.
        rates: how often one may ask.
        shared: counts with other replicas; None where there are none.
    """

    def __init__(self, app: ASGIApp, rates: Rates, shared: TakeShared | None = None) -> None:
        self._app = app
        self._rates = rates
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what is within the quota."""
        rate = self._rates.requests
        owner = None
        if rate is not None and scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            owner = counted(scope)
        if rate is None or owner is None:
            await self._app(scope, receive, send)
            return

        async def more(count: int) -> bool:
            wait = next((over for _ in range(count) if (over := rate.take(owner)) > 0), 0.0)
            if wait > 0:
                await refuse(scope, send, _QUOTA, rate.per_minute, wait)
            return wait > 0

        wait = rate.take(owner)
        if wait <= 0 and self._shared is not None:  # who asks too often here does so of all
            with suppress(RequestError):
                wait = await self._shared(owner, rate.per_minute)
        if wait > 0:
            await refuse_in_time(scope, receive, send, self._rates, quota=_QUOTA, most=rate.per_minute, wait=wait)
        else:
            await self._app({**scope, MORE: more}, receive, send)
