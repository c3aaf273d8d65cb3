"""Which skills are used and which never, and for administrators by whom and what searches did not find."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.usage_store import By, Line, Report, UsageStore
from mcp_skills_server.web.ui.look import Look, list_address, start_of

PART: Final = 100
"""Skills on one part."""
MOST_OTHERS: Final = 100
"""Principals that are shown, and host programs."""
_DAYS: Final = 30
_GOOD_S: Final = 5.0
"""For so long a report is good enough."""


class UsageReports:
    """The reports of the counts, not made anew for every page.

    Args:
        counts: None where nothing is counted.
    """

    def __init__(self, counts: UsageStore | None) -> None:
        self._counts = counts
        self._made: dict[By, tuple[float, Report | None]] = {}

    @property
    def are_kept(self) -> bool:
        """Tell whether anything is counted."""
        return self._counts is not None

    def read(self, by: By = "skill") -> Report | None:
        """Return a report, None where there is none. Reads a file."""
        if self._counts is None:
            return None
        made, found = self._made.get(by, (-_GOOD_S, None))
        if time.monotonic() - made >= _GOOD_S:
            found = None
            with suppress(UsageError):
                found = self._counts.report(by, _DAYS)
            self._made[by] = time.monotonic(), found
        return found


class _CountTable(NamedTuple):
    """What was counted by something else than skills; `nameless` is what a line without a name is called."""

    by: By
    column: str
    nameless: str
    lines: Sequence[Line]


async def page(request: Request, look: Look) -> Response:
    """Return the view. Other users' searches and uses may tell of skills that the viewer may not read."""
    return await to_thread.run_sync(_page, look, start_of(request.query_params))


def _page(look: Look, first: int) -> Response:
    report = look.site.usage.read()
    lines, searches = _lines(look, report), None
    if look.is_admin:
        searches = report
    return look.page(
        "usage.html",
        lines=lines[first : first + PART],
        total=len(lines),
        never=sum(1 for each in lines if each.last is None),
        days=_DAYS,
        counts=look.site.usage.are_kept,
        others=_others(look),
        most=MOST_OTHERS,
        searches=searches,
        start=first,
        part=PART,
        more=len(lines) > first + PART,
        address=partial(list_address, "usage", {}),
    )


def _others(look: Look) -> list[_CountTable]:
    """Return what was counted by principal and by host program, for who may know of them."""
    if not look.sees_others:
        return []
    found: list[_CountTable] = []
    kinds: tuple[tuple[By, str, str], ...] = (
        ("principal", "Principal", "anybody"),
        ("host", "Host program", "did not say"),
    )
    for by, column, nameless in kinds:
        report = look.site.usage.read(by)
        if report is not None:
            found.append(_CountTable(by, column, nameless, report.lines[:MOST_OTHERS]))
    return found


def _lines(look: Look, report: Report | None) -> list[Line]:
    """Return what was counted of each skill of the viewer, the most used first, then the unused ones."""
    skills, counted = look.snapshot.skills, list[Line]()
    if report is not None:
        counted = [each for each in report.lines if each.name in skills]
    known = {each.name for each in counted}
    return counted + [Line(path) for path in look.snapshot.paths(Standing.LENIENT) if path not in known]
