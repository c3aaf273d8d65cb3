"""How the problems of skills are printed: in order, as lines, as annotations of a workflow, as JSON.

A skill may have a problem for each of its files. Lines show the first of each kind and count the rest; JSON has all.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.commands.printing import progress, remark

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.model import Problem, Skill

_OF_A_KIND: Final = 20


def check(registry: Registry, skills: Collection[Skill]) -> None:
    """Run the deep checks of these skills, which the registry then knows."""
    for skill in progress(skills, length=len(skills), label="Checking skills"):
        registry.checks.of(skill)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """By place, what has no line first; the same each time, whatever order a set has."""
    return sorted(problems, key=lambda each: (each.path, each.line or 0, each.code, each.message))


def shortened(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The first twenty that a skill has of a code; in the place of the next, one that says how many more there are."""
    given = list(problems)
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in given:
        places[each.skill, each.code].append(each.path)
    seen = Counter[tuple[str, str]]()
    for each in given:
        kind = each.skill, each.code
        seen[kind] += 1
        if seen[kind] <= _OF_A_KIND or len(places[kind]) == _OF_A_KIND + 1:
            yield each
        elif seen[kind] == _OF_A_KIND + 1:
            left = places[kind][_OF_A_KIND:]
            message = f"{len(left):,} more problems of this kind"
            yield each._replace(path=_above(left), line=None, message=message, hint="'--format json' shows each")


def remark_problems(registry: Registry) -> None:
    """Print on stderr how many problems the checked skills of a registry have, and what shows each."""
    summary = registry.checks.survey(registry.snapshot).summary
    if summary:
        roots = " ".join(shlex.quote(root.shown) for root in registry.roots)
        remark(f"{summary}; 'mcp-skills-server validate {roots}' shows each")


def as_json(problem: Problem) -> dict[str, Any]:
    """All of a problem."""
    return {
        "path": problem.path,
        "skill": problem.skill,
        "severity": problem.severity,
        "code": problem.code,
        "message": problem.message,
        "hint": problem.hint,
        "line": problem.line,
    }


def annotation(problem: Problem) -> str:
    """A problem as a workflow of GitHub shows it beside its line."""

    def escaped(text: str, more: str = "") -> str:
        for character in "%\r\n" + more:
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    line = f",line={problem.line}" if problem.line is not None else ""
    return (
        f"::{problem.severity} file={escaped(problem.path, ':,')}{line},"
        f"title={escaped(problem.code, ':,')}::{escaped(problem.text)}"
    )


def _above(paths: list[str]) -> str:
    """The folder that all of these are in."""
    try:
        return os.path.commonpath(paths)
    except ValueError:  # of several roots, of which not all are absolute
        return os.curdir
