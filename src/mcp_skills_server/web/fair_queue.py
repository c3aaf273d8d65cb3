"""Who asks for much asks in turns: requests of one owner begin a few at a time, and those of others come in between.

The event loop does everything that is ready before it looks for more. Of somebody with 32 connections that may be 32
requests, and whoever asks meanwhile waits for all of them. Here they wait for each other instead: they are answered as
fast as before, and another owner waits for one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.server.callers import counted

_AMONG_OTHERS: Final = 1
"""Requests of one owner that begin in a turn of the event loop while others ask too."""
_ALONE: Final = 8
"""The same while nobody else does: a turn costs something."""
_MOMENT_S: Final = 1.0
"""For so long after two owners have asked in turn there are several."""


class FairQueue:
    """ASGI middleware that begins requests in turns of their owners: principals, else addresses.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._begun: dict[str, int] = {}
        """How many requests of an owner have begun in this turn. Empty between turns."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._last = ""
        self._several_until = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on when it is the owner's turn."""
        owner = counted(scope) if scope["type"] == "http" else None
        if owner is not None:
            loop = asyncio.get_running_loop()
            if owner != self._last:
                self._several_until = loop.time() + _MOMENT_S if self._last else 0.0
                self._last = owner
            if not self._begins(owner, loop):
                turn: asyncio.Future[None] = loop.create_future()
                self._waiting.setdefault(owner, deque()).append(turn)
                await turn
        await self._app(scope, receive, send)

    def _begins(self, owner: str, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a request may begin in this turn, after which it has."""
        if owner in self._waiting or self._begun.get(owner, 0) >= self._most(loop):
            return False
        if not self._begun:
            loop.call_soon(self._turn, loop)
        self._begun[owner] = self._begun.get(owner, 0) + 1
        return True

    def _most(self, loop: asyncio.AbstractEventLoop) -> int:
        return _AMONG_OTHERS if loop.time() < self._several_until else _ALONE

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """A turn of the loop is over: let some of each owner begin in the next one."""
        self._begun.clear()
        most = self._most(loop)
        for owner, waiting in [*self._waiting.items()]:
            count = 0
            while waiting and count < most:
                turn = waiting.popleft()
                if not turn.done():  # its token was taken away meanwhile
                    turn.set_result(None)
                    count += 1
            if count:
                self._begun[owner] = count
            if not waiting:
                del self._waiting[owner]
        if self._begun:
            loop.call_soon(self._turn, loop)
