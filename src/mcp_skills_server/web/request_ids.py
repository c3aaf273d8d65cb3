"""An id for each request, which its answer carries and every line of the log that is written for it."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.telemetry import trace_context
from mcp_skills_server.telemetry.events import Events, request_id

HEADER: Final = b"x-request-id"


class RequestIds:
    """ASGI middleware, the outermost: refusals have an id too. What a client sends as one counts for nothing.

    Args:
        app: answers.
        events: of the server.
    """

    def __init__(self, app: ASGIApp, events: Events) -> None:
        self._app = app
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give it an id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = secrets.token_hex(8)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, given.encode())]
            await send(message)

        carrier = trace_context.of_headers(scope["headers"]) if self._events.wants_traces else None
        reset, around = request_id.set(given), trace_context.of_http.set(carrier)
        try:
            with self._events.serving():
                await self._app(scope, receive, sending)
        finally:
            trace_context.of_http.reset(around)
            request_id.reset(reset)
