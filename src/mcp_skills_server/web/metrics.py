"""`/metrics`: what Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.server.callers import principal

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.metrics import Metrics

PATH = "/metrics"


def route(metrics: Metrics, may: Callable[[Principal | None], bool]) -> Route:
    """The route.

    Args:
        metrics: what is shown.
        may: whether somebody may see it.
    """

    async def scrape(request: Request) -> Response:
        if not may(principal(request.scope)):
            return PlainTextResponse('metrics are for principals with may = ["admin"]\n', 403)
        body, content_type = await to_thread.run_sync(metrics.written, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return Route(PATH, scrape, methods=["GET"])
