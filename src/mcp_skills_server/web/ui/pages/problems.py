"""Problems of skills and roots, each with the lines around it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring.notes import overlap_notes
from mcp_skills_server.catalog.checks import Survey
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Snapshot, Standing
from mcp_skills_server.web.ui.addresses import choice_of, list_address, start_of
from mcp_skills_server.web.ui.context import Context, shown_problem

PAGE_SIZE: Final = 50
"""Problems on one page."""
_AROUND: Final = 2
"""Context lines before and after."""
_MAX_BYTES: Final = 4 << 20
"""Bytes of the largest file that is read for its lines."""
SEVERITIES: Final = ("error", "warning", "note")
_known_notes: WeakKeyDictionary[Snapshot, list[Problem]] = WeakKeyDictionary()
REFRESH_S: Final = "1"
"""Seconds until a browser reloads a page that waits for checks."""


class ShownProblem(NamedTuple):
    """A problem with the numbered lines around it."""

    problem: Problem
    skill: Skill | None = None  # None for a problem of a root
    file: str = ""  # "" for a problem of no file
    lines: Sequence[tuple[int, str]] = ()


async def page(request: Request, ctx: Context) -> Response:
    """Return the view, filtered by severity and code."""
    given = request.query_params
    severity, code = choice_of(given, "severity", SEVERITIES), given.get("code", "")
    start = start_of(given)
    survey = await to_thread.run_sync(survey_of, ctx)
    severe = [problem for problem in survey.problems if severity in ("", problem.severity)]
    if severity == "note":
        severe = await to_thread.run_sync(_notes, ctx)
    fitting = [problem for problem in severe if code in ("", problem.code)]
    response = ctx.page(
        "problems.html",
        shown=[await _shown(ctx, problem) for problem in islice(fitting, start, start + PAGE_SIZE)],
        total=len(fitting),
        progress=survey.progress,
        severity=severity,
        severities=SEVERITIES,
        code=code,
        codes=sorted(Counter(problem.code for problem in severe).items()),
        start=start,
        page_size=PAGE_SIZE,
        more=len(fitting) > start + PAGE_SIZE,
        address=partial(list_address, "problems", {"severity": severity, "code": code}),
    )
    if survey.progress:
        response.headers["refresh"] = REFRESH_S
    return response


def _notes(ctx: Context) -> list[Problem]:
    """Return the notes on skills that are alike, cached per snapshot. Blocks."""
    notes = _known_notes.get(ctx.snapshot)
    if notes is None:
        skills = map(ctx.snapshot.skills.__getitem__, ctx.snapshot.paths(Standing.LENIENT))
        usable = [skill for skill in skills if SKILL_MD in skill.files]
        notes = overlap_notes(ctx.runtime.registry, usable)
        _known_notes[ctx.snapshot] = notes
    return notes


def survey_of(ctx: Context) -> Survey:
    """Return known problems of the viewer's skills, with what they rely on that changed.

    The others are checked in the background. Only an operator gets problems of roots.
    """
    registry = ctx.runtime.registry
    survey = registry.checks.survey(ctx.snapshot)
    if not survey.is_complete:
        registry.checks.begin(ctx.offering.skill_set)
    changed: list[Problem] = []
    for skill in ctx.snapshot.skills.values():
        recent = registry.freshness.recent(skill)
        changed += [problem for problem in recent if problem.severity != "note"]
    if ctx.is_admin and not changed:
        return survey  # which keeps its problems by skill for all requests
    known = [problem for problem in survey.problems if problem.skill or ctx.is_admin]
    return replace(survey, problems=[*known, *changed])


async def _shown(ctx: Context, problem: Problem) -> ShownProblem:
    skill, shown = ctx.snapshot.skills.get(problem.skill), shown_problem(ctx, problem)
    if skill is None:
        return ShownProblem(shown)
    folder = ctx.runtime.registry.roots[skill.root].show(skill.directory)
    file = file_of(problem, folder, skill.files)
    lines: Sequence[tuple[int, str]] = ()
    if problem.line is not None and file and skill.files[file].size <= _MAX_BYTES:
        with suppress(OSError):
            lines = lines_around(await ctx.view.read(skill, file), problem.line)
    return ShownProblem(shown, skill, file, lines)


def file_of(problem: Problem, folder: str, files: Mapping[str, object]) -> str:
    """Return the file of the skill in `folder` that a problem names; "" for none of `files`."""
    path = problem.path.removeprefix(folder).lstrip(os.sep).replace(os.sep, "/")
    if path in files:
        return path
    return ""


def lines_around(raw: bytes, line: int) -> Sequence[tuple[int, str]]:
    """Return the lines around this one, numbered from 1; empty beyond the end of the file."""
    lines = raw.split(b"\n", line + _AROUND)[: line + _AROUND]
    if line > len(lines):
        return ()
    first = max(1, line - _AROUND)
    texts = [text.removesuffix(b"\r").decode("utf-8", "replace") for text in lines[first - 1 :]]
    return [*enumerate(texts, first)]
