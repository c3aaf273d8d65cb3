"""Which skills are used and which never, and for administrators by whom and what searches did not find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.usage_store import Line, Report
from mcp_skills_server.web.ui.look import USAGE_DAYS, Look, base, start_of

PART: Final = 100
"""Skills on one part."""
MOST_OTHERS: Final = 100
"""Principals that are shown, and host programs."""


class _CountTable(NamedTuple):
    """What was counted of some that are no skills.

    Attributes:
        id: of its heading.
        title: the heading.
        column: what a line is of.
        nameless: what a line without a name is called.
        lines: the most used first.
    """

    id: str
    title: str
    column: str
    nameless: str
    lines: Sequence[Line]


async def page(request: Request, look: Look) -> Response:
    """Return the view. Other users' searches and uses may tell of skills that the viewer may not read."""
    report = await to_thread.run_sync(look.site.usage.read)
    first = start_of(request.query_params)
    lines = await to_thread.run_sync(lines_of, look, report)
    return look.page(
        "usage.html",
        lines=lines[first : first + PART],
        total=len(lines),
        never=sum(1 for each in lines if each.last is None),
        days=USAGE_DAYS,
        counts=look.site.usage.are_kept,
        others=await to_thread.run_sync(_others, look),
        most=MOST_OTHERS,
        searches=report if look.is_admin else None,
        before=f"{base()}/usage?from={max(0, first - PART)}" if first else "",
        following=f"{base()}/usage?from={first + PART}" if len(lines) > first + PART else "",
    )


def _others(look: Look) -> list[_CountTable]:
    """Return what was counted by principal and by host program, for who may know of them."""
    if not look.sees_others:
        return []
    by_principal, by_host = look.site.usage.read("principal"), look.site.usage.read("host")
    return [
        _CountTable(kind, title, column, nameless, found.lines[:MOST_OTHERS])
        for kind, title, column, nameless, found in (
            ("principals", "By principal", "Principal", "anybody", by_principal),
            ("hosts", "By host program", "Host program", "did not say", by_host),
        )
        if found is not None
    ]


def lines_of(look: Look, report: Report | None) -> list[Line]:
    """Return what was counted of each skill of the viewer, the most used first, then the unused ones."""
    skills = look.snapshot.skills
    counted = [] if report is None else [each for each in report.lines if each.name in skills]
    known = {each.name for each in counted}
    return counted + [Line(path) for path in look.snapshot.paths(Standing.LENIENT) if path not in known]
