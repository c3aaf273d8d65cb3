"""Concurrency limit of each client: a client with many connections makes others wait for few of its requests.

All requests share one event loop. Of a client with 32 connections 32 requests may be at work at once, and a request of
another client would wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.server.callers import counted
from mcp_skills_server.web.rates import OPEN_PATHS

_MOST: Final = 2
"""Requests of one client at work at once."""
_LONG_S: Final = 0.05
"""Seconds after which a request counts no more: it waits for a disk, a script or its client, and not for the loop."""


class _Client:
    """Requests of one client: how many are at work, and those that wait for them, the oldest first."""

    __slots__ = ("at_work", "waiting")

    def __init__(self) -> None:
        self.at_work = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class ConcurrencyLimit:
    """ASGI middleware that limits the requests of each principal, else of each address, that are at work at once.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._clients: dict[str, _Client] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it is its turn."""
        is_counted = scope["type"] == "http" and scope["path"] not in OPEN_PATHS
        owner = counted(scope) if is_counted else None
        if owner is None:
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        client = self._clients.setdefault(owner, _Client())
        if client.at_work >= _MOST:
            turn: asyncio.Future[None] = loop.create_future()
            client.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was given a turn in the same moment
                    self._release(owner, client)
                raise
        else:
            client.at_work += 1
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._release(owner, client)

        timer = loop.call_later(_LONG_S, release)
        try:
            await self._app(scope, receive, send)
        finally:
            timer.cancel()
            release()

    def _release(self, owner: str, client: _Client) -> None:
        """Pass a turn on to the request that waits longest."""
        while client.waiting:
            turn = client.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        client.at_work -= 1
        if not client.at_work and self._clients.get(owner) is client:
            del self._clients[owner]
