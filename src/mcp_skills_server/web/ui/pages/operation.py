"""Operation of the server: sources of skills, usage, script runs, and clients.

Runs and clients come from events. A bounded number of each is kept in memory, only if there is a
page to show them. The content of requests and responses is not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.events import CATALOGUE, Event, Use
from mcp_skills_server.telemetry.usage import By, Report, UsageRow, UsageStore
from mcp_skills_server.web.ui.context import Context, list_address, source_name, start_of

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState

logger = logging.getLogger(__name__)

PAGE_SIZE: Final = 100
"""Skills on one page."""
MAX_OTHERS: Final = 100
"""Principals shown, and host programs."""
_DAYS: Final = 30
_CACHE_S: Final = 5.0
"""Cache lifetime of a report in seconds."""
MAX_RUNS: Final = 500
MAX_CLIENTS: Final = 500
UNFINISHED: Final = "begun"
"""The outcome of a run that has not ended."""


# Sources


class SourceRow(NamedTuple):
    """One root, with the number of its skills that the viewer may see."""

    name: str
    revision: str
    skills: int
    left_out: int
    state: SourceState | None  # None for a folder, which is watched
    trouble: str  # its last error


async def sources(_: Request, ctx: Context) -> Response:
    """Return the view of sources."""
    return ctx.page("sources.html", rows=source_rows(ctx))


def source_rows(ctx: Context) -> list[SourceRow]:
    """Return the roots of the viewer's skills; for an operator, all roots."""
    states = {source.name: source for source in ctx.site.sources()}
    problems = ctx.runtime.registry.snapshot.problems
    lost = {problem.path: problem.message for problem in problems if problem.code == "root-missing"}
    counts = Counter(skill.root for skill in ctx.snapshot.skills.values())
    left_out = Counter(s.root for s in ctx.snapshot.skills.values() if s.standing < Standing.VALID)
    out: list[SourceRow] = []
    for root in ctx.runtime.registry.roots:
        if not counts[root.index] and not ctx.is_admin:
            continue
        state = states.get(root.origin or "")
        revision, trouble = root.revision, lost.get(root.shown, "")
        if state is not None:
            revision, trouble = state.revision or revision, state.trouble or ""
        if trouble and not ctx.is_admin:
            trouble = "It could not be read at the last poll; the last copy is served."
        name, number = source_name(ctx, root.index), root.index
        out.append(SourceRow(name, revision, counts[number], left_out[number], state, trouble))
    return out


# Usage


class UsageReports:
    """Usage reports of the served roots, cached for `_CACHE_S` seconds."""

    def __init__(self, counts: UsageStore | None, roots: Sequence[str]) -> None:
        self._counts = counts
        self._roots = roots
        self._made: dict[By, tuple[float, Report | None]] = {}

    @property
    def is_enabled(self) -> bool:
        """Return whether usage is counted."""
        return self._counts is not None

    def read(self, by: By = "skill") -> Report | None:
        """Return a report, or None. Reads a file unless it is cached."""
        if self._counts is None:
            return None
        made, report = self._made.get(by, (-_CACHE_S, None))
        if time.monotonic() - made >= _CACHE_S:
            report = None
            try:
                report = self._counts.report(by, _DAYS, self._roots)
            except UsageError as error:
                logger.warning("%s", error, extra=REPEATS)
            self._made[by] = time.monotonic(), report
        return report


class _CountTable(NamedTuple):
    """Usage by principal or host program. `nameless` labels the line without a name."""

    by: By
    column: str
    nameless: str
    lines: Sequence[UsageRow] = ()


_OTHERS: Final = (
    _CountTable("principal", "Principal", "anonymous"),
    _CountTable("host", "Host program", "unknown"),
)


def usage(request: Request, ctx: Context) -> Response:
    """Return the usage view. Searches and others' usage may reveal skills: few may see them."""
    first, report = start_of(request.query_params), ctx.site.usage.read()
    lines, searches = _lines(ctx, report), None
    if ctx.is_admin:
        searches = report
    return ctx.page(
        "usage.html",
        lines=lines[first : first + PAGE_SIZE],
        total=len(lines),
        never=sum(1 for line in lines if line.last is None),
        days=_DAYS,
        counts=ctx.site.usage.is_enabled,
        is_read=report is not None,
        others=_others(ctx),
        most=MAX_OTHERS,
        searches=searches,
        start=first,
        page_size=PAGE_SIZE,
        more=len(lines) > first + PAGE_SIZE,
        address=partial(list_address, "usage", {}),
    )


def _others(ctx: Context) -> list[_CountTable]:
    """Return usage by principal and by host program, if the viewer may see others."""
    if not ctx.sees_others:
        return []
    return [
        view._replace(lines=report.lines[:MAX_OTHERS])
        for view in _OTHERS
        if (report := ctx.site.usage.read(view.by)) is not None
    ]


def _lines(ctx: Context, report: Report | None) -> list[UsageRow]:
    """Return the usage of each skill of the viewer, most used first, then the unused ones."""
    skills, counted = ctx.snapshot.skills, list[UsageRow]()
    if report is not None:
        counted = [line for line in report.lines if line.name in skills]
    known, paths = {count.name for count in counted}, ctx.snapshot.paths(Standing.LENIENT)
    return counted + [UsageRow(path) for path in paths if path not in known]


# Runs and clients


class ScriptRun(NamedTuple):
    """A started script and its request. The skill is "" for code that came with a call."""

    event: Event
    started: Use


class ActiveClient(NamedTuple):
    """A client: its last request, the time of its first, and the number of requests."""

    event: Event
    first: float
    requests: int
    refused: int


class Activity:
    """The latest runs and clients. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[Any, ScriptRun] = OrderedDict()
        self._clients: OrderedDict[Any, ActiveClient] = OrderedDict()

    def take(self, event: Event) -> None:
        """Record the runs and the client of an event."""
        if event.protocol == CATALOGUE:
            return
        kept = event._replace(uses=(), question="")
        with self._lock:
            for use in event.uses:
                if use.action == "run":
                    self._note_run(kept, use)
            if event.outcome != UNFINISHED:
                self._note_client(kept)

    def runs(self) -> list[ScriptRun]:
        """Return the latest runs, newest first."""
        with self._lock:
            return [*reversed(self._runs.values())]

    def clients(self) -> list[ActiveClient]:
        """Return the latest clients, most recently active first."""
        with self._lock:
            return [*reversed(self._clients.values())]

    def _note_run(self, event: Event, started: Use) -> None:
        # A request emits an event when it starts a run, and one at its end, with the same time.
        request = event.time, event.protocol, event.method, event.principal, event.address, started
        if request not in self._runs or event.outcome != UNFINISHED:
            self._runs[request] = ScriptRun(event, started)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def _note_client(self, event: Event) -> None:
        who = event.principal, event.address, event.host, event.protocol, event.era
        known = self._clients.pop(who, ActiveClient(event, event.time, 0, 0))
        refused = known.refused + (event.outcome not in {"ok", "cancelled"})
        self._clients[who] = ActiveClient(event, known.first, known.requests + 1, refused)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)


async def runs(_: Request, ctx: Context) -> Response:
    """Return the view of runs, without names of skills that the viewer may not read."""
    kept = ctx.site.activity.runs()
    skills = {run.started.skill for run in kept}
    readable = {skill for skill in skills if not skill or ctx.may_read(skill)}
    return ctx.page("runs.html", runs=kept, readable=readable)


async def clients(_: Request, ctx: Context) -> Response:
    """Return the view of clients."""
    return ctx.page("clients.html", clients=ctx.site.activity.clients())
