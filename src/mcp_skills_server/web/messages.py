"""Messages over HTTP: judged before the SDK sees them, and one id at a time in each session.

What is refused has the same code and id as over stdio, and the status 400. The SDK is given the message as it was
judged, written anew, so that no second reader can take it for something else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server.messages import Id, Refusal, duplicate, judge

logger = logging.getLogger(__name__)

_SESSION: Final = b"mcp-session-id"
_STREAM: Final = b"text/event-stream"
_ANSWER: Final = re.compile(rb'^data: ?\{"jsonrpc":"2\.0","id":', re.MULTILINE)
"""A message with an id that the server sends is an answer, because it sends no requests (MCP-14)."""


class _Asked:
    """A request of a session, from its coming until the SDK is done with it."""

    def __init__(self, id_: Id) -> None:
        self.id = id_
        self.answered = False
        self.over = anyio.Event()


class Judged:
    """ASGI middleware around the SDK's endpoint, which takes whole bodies.

    Args:
        app: the endpoint.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._asked: dict[tuple[bytes, str], _Asked] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or hand on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        raw: bytes = (await receive()).get("body", b"")
        found = judge(raw)
        if isinstance(found, Refusal):
            await _refuse(found, scope, receive, send)
            return
        del raw
        session = next((value for name, value in scope["headers"] if name == _SESSION), None)
        asked = found.id if found.kind == "request" and session is not None else None
        body: bytes | None = jsonrpc.dump(found.fields)
        del found

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        if asked is None or session is None:
            await self._app(scope, replay, send)
            return
        async with self._turn(session, asked) as turn:
            if isinstance(turn, Refusal):
                await _refuse(turn, scope, receive, send)
            else:
                await self._app(scope, replay, _watched(turn, send))

    @asynccontextmanager
    async def _turn(self, session: bytes, id_: Id) -> AsyncGenerator[_Asked | Refusal]:
        """While this is entered no other request of the session is given to the SDK under the same text of an id.

        The SDK keeps "1" and 1 in one place, and clears it a moment after the answer was sent: whoever comes to such a
        place waits. A request whose id is another's that has no answer yet is refused.
        """
        place = session, str(id_)
        while (other := self._asked.get(place)) is not None:
            if type(other.id) is type(id_) and not other.answered:
                yield duplicate(id_)
                return
            await other.over.wait()
        mine = self._asked[place] = _Asked(id_)
        try:
            yield mine
        finally:
            del self._asked[place]
            mine.over.set()


def _watched(asked: _Asked, send: Send) -> Send:
    """`send`, which notes that the answer goes out: from then on the client may use the id again."""

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            asked.answered = not kind.startswith(_STREAM)
        elif not asked.answered:
            asked.answered = not message.get("more_body") or bool(_ANSWER.search(message.get("body", b"")))
        await send(message)

    return watched


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    logger.debug("refused a message: %s", refusal.message)
    await Response(refusal.answer, 400, media_type="application/json")(scope, receive, send)
