"""The answer to who has had all that one may have: 429, which quota it is, and when to come again."""

from __future__ import annotations

import logging
import math

from starlette.types import Scope, Send

from mcp_skills_server.dialects.jsonrpc import QUOTA_EXCEEDED
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.callers import address, counted, principal
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.error_answers import send_error

logger = logging.getLogger(__name__)


async def refuse(scope: Scope, send: Send, quota: str, most: int, wait: float = 1.0) -> None:
    """Answer 429, and note it.

    Args:
        scope: of the request.
        send: sends the answer.
        quota: which one it is, by its key in the configuration.
        most: how much one may have.
        wait: seconds after which there may be some again.
    """
    who = principal(scope)
    logger.warning("quota %s: %s wants more than %s; answered with 429", quota, counted(scope), most, extra=REPEATS)
    events.emit_refusal(scope["method"], quota, principal=None if who is None else who.id, address=address(scope))
    seconds = max(1, math.ceil(wait))
    message = f"Over the quota {quota} ({most:,}); try again in {seconds} s"
    error = {"code": QUOTA_EXCEEDED, "message": message, "data": {"quota": quota}}
    await send_error(send, 429, error, [(b"cache-control", b"no-store"), (b"retry-after", str(seconds).encode())])
