"""`/rpc`: the Skills Protocol over HTTP, one message or one batch per POST (SP-16, X-24).

The guard admits requests. Only JSON is accepted, so that a foreign page cannot make a browser send
a call (CSRF). A body is read up to its limit. When the client disconnects, its calls are cancelled.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.web.part import Part, requester
from mcp_skills_server.web.rates import RequestRate

PATH: Final = "/rpc"
_JSON: Final = "application/json"


def rpc_part(methods: Methods, rate: RequestRate, max_body: int) -> Part:
    """Return the Skills Protocol endpoint, whose requests hold at most `max_body` bytes."""
    endpoint = partial(_answer, Rpc(methods, max_body), rate)
    return Part([Route(PATH, endpoint, methods=["POST"])])


async def _answer(rpc: Rpc, rate: RequestRate, request: Request) -> Response:
    scope = request.scope
    if request.headers.get("content-type", "").split(";", 1)[0].strip().lower() != _JSON:
        return Response(f"send {_JSON}\n", 415, media_type="text/plain")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > rpc.max_message:
                return Response(rpc.too_long(), 413, {"Connection": "close"}, _JSON)
    except ClientDisconnect:
        return Response(status_code=400)  # the client disconnected
    await rate.take(requester(scope), rpc.calls_in(bytes(body)) - 1)
    reply = None
    async with anyio.create_task_group() as tasks:

        async def end_with_client() -> None:
            await request.receive()  # after the body only a disconnect follows
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_with_client)
        reply = await rpc.answer(bytes(body), requester(scope))
        tasks.cancel_scope.cancel()
    if reply is None:
        return Response(status_code=204)
    return Response(reply, media_type=_JSON)
