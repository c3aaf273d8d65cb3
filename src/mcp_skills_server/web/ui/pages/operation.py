"""Operation of the server: sources of skills, usage, script runs, and clients.

Runs and clients come from events. A bounded number of each is kept in memory, only if there is a
page to show them. The content of requests and responses is not kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.usage import By, Report, UsageRow
from mcp_skills_server.web.ui.addresses import list_address, start_of
from mcp_skills_server.web.ui.context import Context, source_name
from mcp_skills_server.web.ui.usage import DAYS

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState

PAGE_SIZE: Final = 100
"""Skills on one page."""
MAX_OTHERS: Final = 100
"""Principals shown, and host programs."""


# Sources


class SourceRow(NamedTuple):
    """One root, with the number of its skills that the viewer may see."""

    name: str
    revision: str
    skills: int
    short: Mapping[str, int]  # how many are "not listed" and "not served"
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
    short: dict[int, Counter[str]] = defaultdict(Counter)
    for skill in ctx.snapshot.skills.values():
        if skill.standing < Standing.VALID:
            short[skill.root][skill.standing.shown] += 1
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
        out.append(SourceRow(name, revision, counts[number], short[number], state, trouble))
    return out


# Usage


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
        days=DAYS,
        is_counted=ctx.site.usage.is_enabled,
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
        table._replace(lines=report.lines[:MAX_OTHERS])
        for table in _OTHERS
        if (report := ctx.site.usage.read(table.by)) is not None
    ]


def _lines(ctx: Context, report: Report | None) -> list[UsageRow]:
    """Return the usage of each skill of the viewer, most used first, then the unused ones."""
    skills, counted = ctx.snapshot.skills, list[UsageRow]()
    if report is not None:
        counted = [line for line in report.lines if line.name in skills]
    known, paths = {count.name for count in counted}, ctx.snapshot.paths(Standing.LENIENT)
    return counted + [UsageRow(path) for path in paths if path not in known]


# Runs and clients


async def runs(_: Request, ctx: Context) -> Response:
    """Return the view of runs, without names of skills that the viewer may not read."""
    kept = ctx.site.activity.runs()
    skills = {run.started.skill for run in kept}
    readable = {skill for skill in skills if not skill or ctx.may_read(skill)}
    return ctx.page("runs.html", runs=kept, readable=readable)


async def clients(_: Request, ctx: Context) -> Response:
    """Return the view of clients."""
    return ctx.page("clients.html", clients=ctx.site.activity.clients())
