"""Which skills are used and which never, and for the operator what searches did not find."""

from __future__ import annotations

from typing import Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.usage_store import Line, Report
from mcp_skills_server.web.ui.look import USAGE_DAYS, Look, base

PART: Final = 100
"""Skills on one part."""


async def page(request: Request, look: Look) -> Response:
    """The view. What others searched for may speak of skills that the viewer may not read."""
    report = await to_thread.run_sync(look.site.usage.read)
    start = request.query_params.get("from", "")
    first = int(start) if start.isascii() and start.isdigit() and len(start) < 7 else 0
    lines = await to_thread.run_sync(lines_of, look, report)
    return look.page(
        "usage.html",
        lines=lines[first : first + PART],
        total=len(lines),
        never=sum(1 for each in lines if each.last is None),
        days=USAGE_DAYS,
        counts=look.site.usage.are_kept,
        searches=report if look.is_admin else None,
        before=f"{base()}/usage?from={max(0, first - PART)}" if first else "",
        following=f"{base()}/usage?from={first + PART}" if len(lines) > first + PART else "",
    )


def lines_of(look: Look, report: Report | None) -> list[Line]:
    """What was counted of each skill of the viewer, the most used first, then those that nobody has used."""
    skills = look.snapshot.skills
    counted = [] if report is None else [each for each in report.lines if each.name in skills]
    known = {each.name for each in counted}
    return counted + [Line(path) for path in look.snapshot.paths(Standing.LENIENT) if path not in known]
