"""Health checks `/healthz` and `/readyz`, Prometheus `/metrics`, and the drain at shutdown.

A site among the roots that has never answered, and has no cached copy, makes the server not ready:
it would have nothing to serve. A site that fails later does not, because its last copy is served.

Only the operator sees locations and errors of sources; everyone else sees their number.
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
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.web.part import requester

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState
    from mcp_skills_server.telemetry.metrics import Metrics
    from mcp_skills_server.web.settings import HttpSettings

logger = logging.getLogger(__name__)

_STUCK_S: Final = 30.0
"""Seconds without a turn of the event loop of requests after which a restart is the remedy."""
_AWAITED: Final = "a source: it has not responded yet, and there is no cached copy"


class Drain:
    """The drain before shutdown: once `begun`, the server answers requests but is not ready.

    Once it `is_over`, open requests are cancelled after a moment.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begun = False
        self.is_over = False

    async def until_end(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Return at shutdown: on SIGTERM after the drain or a second signal, else at once."""
        if await anext(signals) != signal.SIGTERM or not self._seconds:
            return
        self.begun = True
        logger.info(
            "shuts down in %g s: still answers requests, but /readyz fails (--drain)", self._seconds
        )
        with anyio.move_on_after(self._seconds):
            await anext(signals)


def routes(registry: Registry, http: HttpSettings, drain: Drain, views: Views) -> list[Route]:
    """Return the routes of `/healthz` and `/readyz`, for any event loop.

    Principals that are administrators by `views` may see the locations of sources.
    """
    had_skills = http.allow_empty

    async def alive(_: Request) -> PlainTextResponse:
        lag_s = http.load.lag_s
        if lag_s > _STUCK_S:
            return PlainTextResponse(f"the event loop has not run for {lag_s:.0f} s\n", 503)
        return PlainTextResponse("alive\n")

    async def ready(request: Request) -> PlainTextResponse:
        known = http.site_states()
        # Probes carry no token or cookie, even where other requests need one.
        who = requester(request.scope).principal
        is_known = who is not None or (http.policy.is_open and not http.is_private)
        for_operator = is_known and views.is_admin(who)
        missing = [f"{site.name}: {site.trouble}" for site in known if not site.ready]
        if not for_operator:
            missing = [_AWAITED] * len(missing)
        nonlocal had_skills
        if registry.snapshot.skills or all(root.origin for root in registry.roots):
            had_skills = True
        if not registry.loaded.is_set():
            missing.insert(0, "the first scan is not done")
        elif not had_skills:
            hint = "mount the folder with the skills, or give --allow-empty"
            missing.append(f"no root has a skill; {hint}")
        if drain.begun or drain.is_over:
            missing.insert(0, "draining: the server is about to shut down")
        lines = missing[:1] or ["ready"]
        if len(missing) > 1:
            lines = [f"{missing[0]} (and {len(missing) - 1} more; see /readyz?verbose)"]
        if "verbose" in request.query_params:
            if for_operator:
                lines += [*_lines(registry, known), *http.status_lines()]
            else:
                failing = count_failing(registry, known)
                lines.append(f"{len(registry.roots)} roots, {failing} of them failing")
        return PlainTextResponse("\n".join(lines) + "\n", 503 if missing else 200)

    return [Route("/healthz", alive), Route("/readyz", ready)]


def count_failing(registry: Registry, sites: Sequence[SourceState]) -> int:
    """Count the roots, of any kind, whose last read failed."""
    return len(_missing(registry, "error") | {site.name for site in sites if site.trouble})


def _missing(registry: Registry, severity: str) -> set[str]:
    problems = [problem for problem in registry.snapshot.problems if problem.code == "root-missing"]
    return {problem.path for problem in problems if problem.severity == severity}


def _lines(registry: Registry, sites: Sequence[SourceState]) -> Iterator[str]:
    """Yield a status line for each root: folders and archives, then sites."""
    names = {site.name for site in sites}
    lost = _missing(registry, "error")
    for root in registry.roots:
        if root.origin in names:
            continue
        state = "read"
        if root.shown in lost:
            state = "cannot be read now; serving the last copy"
        elif root.shown in _missing(registry, "warning"):
            state = "absent, and optional"
        elif not registry.loaded.is_set():
            state = "the first scan is not done"
        yield f"{root.shown}: {state}"
    for site in sites:
        if not site.ready:
            yield f"{site.name}: {site.trouble}"
            continue
        state = "fetched"
        if site.trouble:
            state = f"serving the last copy ({site.trouble})"
        if site.revision:
            state += f", revision {site.revision}"
        yield f"{site.name}: {state}"


def metrics_route(metrics: Metrics, may: Callable[[Principal | None], bool]) -> Route:
    """Return the Prometheus route `/metrics`. `may` decides which principals can read it."""

    async def scrape(request: Request) -> Response:
        if not may(requester(request.scope).principal):
            return PlainTextResponse('metrics are for principals with may = ["admin"]\n', 403)
        accept = request.headers.get("accept", "")
        body, content_type = await to_thread.run_sync(metrics.render, accept)
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return Route("/metrics", scrape, methods=["GET"])
