"""What is wrong, each beside the lines that it is about."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final
from urllib.parse import urlencode

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.checks import Survey
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Problem, Skill
from mcp_skills_server.web.ui.look import Look, base, shown_problem, start_of

PART: Final = 50
"""Problems that one answer has."""
_AROUND: Final = 2
"""Lines before and after."""
_MOST_BYTES: Final = 4 << 20
"""A larger file is not read for its lines."""
_SEVERITIES: Final = ("error", "warning")
REFRESH_S: Final = "1"
"""After so many seconds a browser asks again for a page that waits for checks."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file.

    Attributes:
        number: counted from 1.
        text: the line, without what ends it.
        is_it: whether the problem is there.
    """

    number: int
    text: str
    is_it: bool


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """A problem as it is shown.

    Attributes:
        problem: the problem.
        skill: the skill that it is of, None for one of a root.
        file: the path in the skill of the file that it is in, "" for the skill as a whole.
        lines: of that file, around the place; empty where no line is meant, or none can be read.
    """

    problem: Problem
    skill: Skill | None
    file: str
    lines: Sequence[SourceLine] = ()


async def page(request: Request, look: Look) -> Response:
    """Return the view, for problems of one severity or one code."""
    given = request.query_params
    severity, code, first = given.get("severity", ""), given.get("code", ""), start_of(given)
    severity = severity if severity in _SEVERITIES else ""
    survey = await to_thread.run_sync(survey_of, look)
    every = survey.problems
    codes = sorted(Counter(each.code for each in every).items())
    fitting = [each for each in every if severity in ("", each.severity) and code in ("", each.code)]
    shown = [await _shown(look, each) for each in islice(fitting, first, first + PART)]

    def address(at: int) -> str:
        fields = {"severity": severity, "code": code, "from": str(at or "")}
        return f"{base()}/problems?{urlencode({key: each for key, each in fields.items() if each})}"

    response = look.page(
        "problems.html",
        shown=shown,
        total=len(fitting),
        progress=survey.progress,
        severity=severity,
        code=code,
        codes=codes,
        start=first,
        before=address(max(0, first - PART)) if first else "",
        following=address(first + PART) if len(fitting) > first + PART else "",
    )
    if survey.progress:
        response.headers["refresh"] = REFRESH_S
    return response


def survey_of(look: Look) -> Survey:
    """Return the known problems of the viewer's skills, and have the unchecked ones checked in the background.

    Problems of roots are left out for a viewer who is no operator.
    """
    checks = look.runtime.registry.checks
    found = checks.survey(look.snapshot)
    if not found.is_complete:
        checks.begin(look.runtime.skill_set)
    if look.is_admin:
        return found
    return replace(found, problems=[each for each in found.problems if each.skill])


async def _shown(look: Look, problem: Problem) -> ShownProblem:
    skill, given = look.snapshot.skills.get(problem.skill), problem
    problem = shown_problem(look, given)
    if skill is None:
        return ShownProblem(problem, None, "")
    file = file_of(given, look.runtime.registry.roots[skill.root].show(skill.directory), skill.files)
    if problem.line is None or not file or skill.files[file].size > _MOST_BYTES:
        return ShownProblem(problem, skill, file)
    try:
        raw = await look.view.read(skill, file)
    except StaleFileError:
        return ShownProblem(problem, skill, file)
    return ShownProblem(problem, skill, file, lines_around(raw, problem.line))


def file_of(problem: Problem, place: str, files: Mapping[str, object]) -> str:
    """Return the path in its skill of the file that a problem names; "" where it names none of its files.

    Args:
        problem: the problem.
        place: the directory of the skill, as problems name it.
        files: the skill's files by path.
    """
    path = problem.path.removeprefix(place).lstrip(os.sep).replace(os.sep, "/")
    return path if path in files else ""


def lines_around(raw: bytes, line: int) -> Sequence[SourceLine]:
    """Return the lines of a file around this one, counted from 1; empty where there is no such line."""
    lines = raw.split(b"\n", line + _AROUND)[: line + _AROUND]
    if line > len(lines):
        return ()
    first = max(1, line - _AROUND)
    return [
        SourceLine(number, each.removesuffix(b"\r").decode("utf-8", "replace"), number == line)
        for number, each in enumerate(lines[first - 1 :], first)
    ]
