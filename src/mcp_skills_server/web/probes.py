"""Health checks `/healthz` and `/readyz`, `/metrics`, and the drain, in which a server is not ready
any more.

A site among the roots that has never answered, and of which no copy was kept, makes a server that
is not ready: it would take requests and have nothing to say. One that fails later does not, because
its last copy is served.

Where sources lie, and what is wrong with them, is for the operator: all others read no more than
how many there are.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.entrance import principal

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState
    from mcp_skills_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_AWAITED: Final = "a source: it has not answered yet, and there is no copy of it"


class Drain:
    """The drain: a server answers every request and is not ready, once this has `begun`."""

    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds
        self.begun = False

    async def until_end(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Return when the server ends: after a while on SIGTERM, at once on any other signal."""
        if await anext(signals) != signal.SIGTERM or not self._seconds:
            return
        self.begun = True
        logger.info(
            "ends in %g s: answers requests, and is not ready for more (--drain)", self._seconds
        )
        with anyio.move_on_after(self._seconds):
            await anext(signals)


def routes(
    registry: Registry,
    sites: Callable[[], Sequence[SourceState]],
    drain: Drain,
    states: Callable[[], Sequence[str]],
    may: Callable[[Principal | None], bool],
    *,
    allow_empty: bool = True,
) -> list[Route]:
    """Return the routes of `/healthz` and `/readyz`.

    Args:
        registry: the skills; loaded elsewhere.
        sites: the state of each root that is a site.
        drain: the end of the server.
        states: a line on each thing beside the roots, such as the last reload and Redis; none
            decides readiness.
        may: whether a principal may read where sources lie.
        allow_empty: ready although no folder had a skill since the start, as where a volume was not
            mounted.
    """
    had_skills = allow_empty

    async def alive(_: Request) -> PlainTextResponse:
        return PlainTextResponse("alive\n")

    async def ready(request: Request) -> PlainTextResponse:
        known = sites()
        for_operator = may(principal(request.scope))
        missing = [_trouble(site) if for_operator else _AWAITED for site in known if not site.ready]
        nonlocal had_skills
        had_skills = (
            had_skills
            or bool(registry.snapshot.skills)
            or all(root.origin for root in registry.roots)
        )
        if not registry.loaded.is_set():
            missing.insert(0, "the first scan is not done")
        elif not had_skills:
            missing.append(
                "there is no skill in any root; mount the folder that has them, or give "
                "--allow-empty"
            )
        if drain.begun:
            missing.insert(0, "draining: the server is about to end")
        lines = missing[:1] or ["ready"]
        if len(missing) > 1:
            lines = [f"{missing[0]} (and {len(missing) - 1} more; see /readyz?verbose)"]
        if "verbose" in request.query_params:
            if for_operator:
                lines += [*_lines(registry, known), *states()]
            else:
                lines.append(
                    f"{len(registry.roots)} roots, {count_failing(registry, known)} of them failing"
                )
        return PlainTextResponse("\n".join(lines) + "\n", 503 if missing else 200)

    return [Route("/healthz", alive), Route("/readyz", ready)]


def count_failing(registry: Registry, sites: Sequence[SourceState]) -> int:
    """Count the roots, of whatever kind, that could not be read at the last look."""
    return len(_missing(registry) | {site.name for site in sites if site.trouble})


def _missing(registry: Registry) -> set[str]:
    return {found.path for found in registry.snapshot.problems if found.code == "root-missing"}


def _lines(registry: Registry, sites: Sequence[SourceState]) -> Iterator[str]:
    """Yield a line for each folder and archive, and for each site."""
    names = {site.name for site in sites}
    lost = _missing(registry)
    for root in registry.roots:
        if root.origin in names:
            continue
        state = "read"
        if root.shown in lost:
            state = "it cannot be read now; serving what was read before"
        elif not registry.loaded.is_set():
            state = "the first scan is not done"
        yield f"{root.shown}: {state}"
    for site in sites:
        if not site.ready:
            yield _trouble(site)
            continue
        state = "fetched"
        if site.trouble:
            state = f"serving the last copy ({site.trouble})"
        if site.revision:
            state += f", revision {site.revision}"
        yield f"{site.name}: {state}"


def _trouble(site: SourceState) -> str:
    return f"{site.name}: {site.trouble}"


def metrics_route(metrics: Metrics, may: Callable[[Principal | None], bool]) -> Route:
    """Return the route of `/metrics`, for Prometheus, for principals that `may` see it."""

    async def scrape(request: Request) -> Response:
        if not may(principal(request.scope)):
            return PlainTextResponse('metrics are for principals with may = ["admin"]\n', 403)
        body, content_type = await to_thread.run_sync(
            metrics.written, request.headers.get("accept", "")
        )
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return Route("/metrics", scrape, methods=["GET"])
