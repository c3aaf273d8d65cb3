"""How the client of a POST is reached while our own front answers it."""

from __future__ import annotations

import json
from typing import Any, Final

import anyio
from starlette.types import Receive, Scope, Send

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server.callers import address, counted, principal
from mcp_skills_server.server.front.dispatch import notification

PING_S: Final = 15.0
"""Seconds without a word after which an answer becomes a stream, and a stream says that it is still there."""
_PING: Final = b": ping\r\n\r\n"
_EVENT: Final = b"event: message\r\ndata: %b\r\n\r\n"
_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)


class Exchange:
    """One request on its way: how its client is reached, by JSON at the end or by a stream from the first word on.

    Args:
        scope: of the POST.
        send: of the POST.
        connection: what the requests of a session have in common, None where a request stands alone.
    """

    def __init__(self, scope: Scope, send: Send, connection: object | None = None) -> None:
        self.connection = connection
        self.principal = principal(scope)
        self.address = address(scope)
        self.counted = counted(scope)
        self.audience: object | None = None
        self.is_shared = False
        self.is_gone = False
        self.is_watched = False
        self._send = send
        self._sending = anyio.Lock(fast_acquire=True)
        self._is_stream = False
        self._is_over = False
        self._silent_since = anyio.current_time()

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        await self._event(event(notification(method, params)))

    async def end(self, answer: bytes, status: int) -> None:
        """Send the answer, after which there is nothing."""
        self._is_over = True
        async with self._sending:
            if self._is_stream:
                await self._send({"type": "http.response.body", "body": event(answer), "more_body": False})
                return
            length = str(len(answer)).encode()
            headers = [(b"content-length", length), (b"content-type", b"application/json")]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": answer})

    async def end_stream(self, session: str, answer: bytes) -> None:
        """Send the answer as the only message of a stream, byte for byte as the SDK does in a session."""
        headers = [*_STREAM_HEADERS, (b"mcp-session-id", session.encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": _EVENT % answer})

    async def keep_alive(self, receive: Receive) -> None:
        """Say now and then that the request is worked on. Returns when its client leaves."""
        while True:
            with anyio.CancelScope(deadline=self._silent_since + PING_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            if anyio.current_time() >= self._silent_since + PING_S:
                await self._event(_PING)

    async def _event(self, raw: bytes) -> None:
        async with self._sending:
            if self._is_over:
                return
            if not self._is_stream:
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_STREAM_HEADERS)})
                self._is_stream = True
            await self._send({"type": "http.response.body", "body": raw, "more_body": True})
            self._silent_since = anyio.current_time()


def event(message: bytes) -> bytes:
    """A message as it stands in a stream: in ASCII, because some clients take U+2028 for the end of a line."""
    data = message if message.isascii() else json.dumps(jsonrpc.parse(message), separators=(",", ":")).encode()
    return _EVENT % data
