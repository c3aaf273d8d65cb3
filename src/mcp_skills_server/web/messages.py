"""Messages over HTTP: each is judged before the SDK sees it, and an id is under way once in a session.

A refusal has the same code and id as over stdio, and the status 400. The SDK is given the message as it was judged,
written anew, so that no second reader can take it for something else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import anyio
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server import messages
from mcp_skills_server.server.messages import Id, InvalidMessage, duplicate, judge
from mcp_skills_server.web.sessions import HANDSHAKE, SESSION, VERSION

logger = logging.getLogger(__name__)

_ENVELOPE: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `params._meta` that makes a request one of the modern era."""
_STREAM: Final = b"text/event-stream"
_ANSWER: Final = re.compile(rb'^data: ?\{"jsonrpc":"2\.0","id":', re.MULTILINE)
"""A message with an id that the server sends is an answer, because it sends no requests (MCP-14)."""


class _Asked:
    """A request of a session, from its coming until the SDK is done with it."""

    def __init__(self, id_: Id) -> None:
        self.id = id_
        self.answered = False
        self.over = anyio.Event()


class Messages:
    """ASGI middleware around the SDK's endpoint. It takes whole bodies.

    Args:
        app: the endpoint.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._asked: dict[tuple[bytes, str], _Asked] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a message, or hand it on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            # No events are kept. The SDK would answer this header with nothing at all; without it a stream opens.
            headers = [header for header in scope.get("headers", ()) if header[0] != b"last-event-id"]
            await self._app({**scope, "headers": headers}, receive, send)
            return
        first = await receive()
        if first["type"] != "http.request" or first.get("more_body"):
            return  # the client left in the middle of it
        found = judge(first.get("body", b""))
        del first
        headers = dict(reversed(scope["headers"]))  # of a header that stands twice the first counts
        if not isinstance(found, InvalidMessage) and _is_of_another_era(found, headers):
            reason = "mcp-protocol-version header does not match the request envelope's protocol version"
            found = InvalidMessage(HEADER_MISMATCH, reason, found.id)
        if isinstance(found, InvalidMessage):
            await _refuse(found, scope, receive, send)
            return
        session = headers.get(SESSION)
        asked = found.id if found.kind == "request" and session is not None else None
        body: bytes | None = jsonrpc.dump(found.fields)
        if found.kind == "request" and found.fields["method"] == "initialize":
            name = _object(_object(found.fields, "params"), "clientInfo").get("name")
            scope = {**scope, HANDSHAKE: name if isinstance(name, str) else ""}
        del found  # a stream may last for days

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
            if isinstance(turn, InvalidMessage):
                await _refuse(turn, scope, receive, send)
            else:
                await self._app(scope, replay, _watched(turn, send))

    @asynccontextmanager
    async def _turn(self, session: bytes, id_: Id) -> AsyncGenerator[_Asked | InvalidMessage]:
        """Hold the text of an id for a request of a session.

        The SDK keeps "1" and 1 in one place, and clears it a moment after the answer was sent: a request for such a
        place waits. One whose id is under way is refused.
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


def _is_of_another_era(found: messages.Message, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request of the modern era comes with the headers of the legacy one (MCP-42)."""
    if headers.get(VERSION, b"").decode("latin-1") not in ("", *HANDSHAKE_PROTOCOL_VERSIONS):
        return False
    if found.kind != "request" or found.fields["method"] == "initialize":
        return False
    meta = _object(_object(found.fields, "params"), "_meta")
    return _ENVELOPE in meta and meta[_ENVELOPE] not in HANDSHAKE_PROTOCOL_VERSIONS


def _object(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at a key; an empty one where there is none."""
    found = fields.get(key)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _watched(asked: _Asked, send: Send) -> Send:
    """Return a `send` that notes that the answer goes out: from then on the client may use the id again."""

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            asked.answered = not kind.startswith(_STREAM)
        elif not asked.answered:
            asked.answered = not message.get("more_body") or bool(_ANSWER.search(message.get("body", b"")))
        await send(message)

    return watched


async def _refuse(refusal: InvalidMessage, scope: Scope, receive: Receive, send: Send) -> None:
    logger.debug("refused a message: %s", refusal.message)
    await Response(refusal.answer, 400, media_type="application/json")(scope, receive, send)
