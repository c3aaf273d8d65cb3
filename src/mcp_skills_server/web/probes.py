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
from mcp_skills_server.telemetry.load import Load
from mcp_skills_server.web.part import requester

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState
    from mcp_skills_server.telemetry.metrics import Metrics

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
        if await anext(signals) == signal.SIGTERM and self._seconds:
            self.begun = True
            text = "shuts down in %g s: still answers requests, but /readyz fails (--drain)"
            logger.info(text, self._seconds)
            with anyio.move_on_after(self._seconds):
                await anext(signals)
        self.is_over = True


class Probes:
    """The endpoints `/healthz` and `/readyz`, for any event loop.

    Args:
        may_see: whether a principal, None for nobody, may see the locations of sources.
        drain_s: seconds from SIGTERM to shutdown, in which `/readyz` fails.
        site_states: returns the state of each fetched root, which is a "site" here.
        status_lines: returns a line for each other dependency; none affects readiness.
        allow_empty: be ready although no root had a skill yet, as with an unmounted volume.
    """

    def __init__(
        self,
        registry: Registry,
        may_see: Callable[[Principal | None], bool],
        *,
        load: Load | None = None,
        drain_s: float = 0,
        site_states: Callable[[], Sequence[SourceState]] = list,
        status_lines: Callable[[], Sequence[str]] = tuple,
        allow_empty: bool = True,
    ) -> None:
        self._registry = registry
        self.load = load or Load()
        self.drain = Drain(drain_s)
        self._may_see = may_see
        self._site_states = site_states
        self._status_lines = status_lines
        self._allow_empty = allow_empty
        self._had_skills = False

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/healthz", self._alive), Route("/readyz", self._ready)]

    async def _alive(self, _: Request) -> PlainTextResponse:
        lag_s = self.load.lag_s
        if lag_s > _STUCK_S:
            return PlainTextResponse(f"the event loop has not run for {lag_s:.0f} s\n", 503)
        return PlainTextResponse("alive\n")

    async def _ready(self, request: Request) -> PlainTextResponse:
        registry, sites = self._registry, self._site_states()
        # Probes carry no token or cookie, even where other requests need one.
        for_operator = self._may_see(requester(request.scope).principal)
        missing = [f"{site.name}: {site.trouble}" for site in sites if not site.ready]
        if not for_operator:
            missing = [_AWAITED] * len(missing)
        # Without folders no volume can be unmounted; a site says itself that it has no skill.
        if registry.snapshot.skills or all(root.origin for root in registry.roots):
            self._had_skills = True
        if not registry.loaded.is_set():
            missing.insert(0, "the first scan is not done")
        elif not (self._had_skills or self._allow_empty):
            hint = "mount the folder with the skills, or give --allow-empty"
            missing.append(f"no root has a skill; {hint}")
        if self.drain.begun or self.drain.is_over:
            missing.insert(0, "draining: the server is about to shut down")
        lines = missing[:1] or ["ready"]
        if len(missing) > 1:
            lines = [f"{missing[0]} (and {len(missing) - 1} more; see /readyz?verbose)"]
        if "verbose" in request.query_params:
            if for_operator:
                lines += [*_lines(registry, sites), *self._status_lines()]
            else:
                failing = count_failing(registry, sites)
                lines.append(f"{len(registry.roots)} roots, {failing} of them failing")
        return PlainTextResponse("\n".join(lines) + "\n", 503 if missing else 200)


def count_failing(registry: Registry, sites: Sequence[SourceState]) -> int:
    """Count the roots, of any kind, whose last read failed."""
    return len(_lost_roots(registry, "error") | {site.name for site in sites if site.trouble})


def _lost_roots(registry: Registry, severity: str) -> set[str]:
    problems = [problem for problem in registry.snapshot.problems if problem.code == "root-missing"]
    return {problem.path for problem in problems if problem.severity == severity}


def _lines(registry: Registry, sites: Sequence[SourceState]) -> Iterator[str]:
    """Yield a status line for each root: folders and archives, then sites."""
    names = {site.name for site in sites}
    lost = _lost_roots(registry, "error")
    for root in registry.roots:
        if root.origin in names:
            continue
        state = "read"
        if root.shown in lost:
            state = "cannot be read now; serving the last copy"
        elif root.shown in _lost_roots(registry, "warning"):
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
