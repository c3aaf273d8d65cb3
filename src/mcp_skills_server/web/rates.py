"""Answers 429 to who asks more often than its quota lets it, before anything is done for the request."""

from __future__ import annotations

import json
import logging
import math
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.access.rates import Rate
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.callers import address, counted, principal
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.guards import OPEN_PATHS

logger = logging.getLogger(__name__)

QUOTA_EXCEEDED: Final = -32000


class RequestRate:
    """ASGI middleware that counts requests by principal, else by address.

    Args:
        app: what answers.
        rate: how often one may ask.
    """

    def __init__(self, app: ASGIApp, rate: Rate) -> None:
        self._app = app
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what is within the quota."""
        owner = counted(scope) if scope["type"] == "http" and scope["path"] not in OPEN_PATHS else None
        wait = 0.0 if owner is None else self._rate.take(owner)
        if wait <= 0:
            await self._app(scope, receive, send)
            return
        who = principal(scope)
        logger.warning("requests-per-minute: %s asks too often; answered with 429", owner, extra=REPEATS)
        name = None if who is None else who.id
        events.emit_refusal(scope["method"], "requests-per-minute", principal=name, address=address(scope))
        await refuse(send, "requests-per-minute", self._rate.per_minute, wait)


async def refuse(send: Send, quota: str, most: int, wait: float) -> None:
    """Answer 429: which quota it is, and when to come again."""
    seconds = max(1, math.ceil(wait))
    message = f"Over the quota {quota} ({most:,}); try again in {seconds} s"
    error = {"code": QUOTA_EXCEEDED, "message": message, "data": {"quota": quota}}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"retry-after", str(seconds).encode()),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
