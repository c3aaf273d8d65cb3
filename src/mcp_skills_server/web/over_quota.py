"""The answer to who has had all that one may have: 429, which quota it is, and when to come again.

It is the answer that a flood gets, as fast as it is given: who is refused again and again waits a second for it.
"""

from __future__ import annotations

import logging
import math
from typing import Final

import anyio
from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.dialects.jsonrpc import QUOTA_EXCEEDED
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.callers import address, counted, principal
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.connections import MOST_UNHEEDED
from mcp_skills_server.web.error_answers import send_error

logger = logging.getLogger(__name__)

_HELD_S: Final = 1.0
"""How long the answer is held back; every 429 says not to come again before."""


async def refuse_in_time(
    scope: Scope, receive: Receive, send: Send, rates: Rates, *, quota: str, most: int, wait: float
) -> None:
    """`refuse` who asks too often: at once, but a second later where that happens more than once a second.

    Until then its connection does nothing else, so that each costs one small answer a second. The first sixty are
    answered at once.
    """
    if rates.refusals.take((quota, counted(scope))) > 0:
        left = MOST_UNHEEDED
        with anyio.move_on_after(_HELD_S):
            while (message := await receive())["type"] != "http.disconnect":
                left -= len(message.get("body", b""))
                if left < 0:  # from here on its bytes stay with the client
                    await anyio.sleep_forever()
            return  # nobody reads an answer
    await refuse(scope, send, quota, most, wait)


async def refuse(scope: Scope, send: Send, quota: str, most: int, wait: float = 1.0) -> None:
    """Answer 429, and note it.

    Args:
        scope: of the request.
        send: sends the answer.
        quota: which one it is, by its key in the configuration.
        most: how much one may have.
        wait: seconds after which there may be some again.
    """
    logger.warning("quota %s: %s wants more than %s; answered with 429", quota, counted(scope), most, extra=REPEATS)
    events.emit_refusal(scope["method"], quota, principal=principal(scope), address=address(scope))
    seconds = max(1, math.ceil(wait))
    message = f"Over the quota {quota} ({most:,}); try again in {seconds} s"
    error = {"code": QUOTA_EXCEEDED, "message": message, "data": {"quota": quota}}
    await send_error(send, 429, error, [(b"cache-control", b"no-store"), (b"retry-after", str(seconds).encode())])
