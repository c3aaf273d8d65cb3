"""What the bytes of a SKILL.md say, and where its problems lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_skills_server.catalog.path_index import join
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.codes import standing
from mcp_skills_server.model import SKILL_MD, Problem, Reading

if TYPE_CHECKING:
    from mcp_skills_server.format.frontmatter import Document

_OPENING: Final = 400
"""Characters of a body that a search looks at: more is slower and finds no more."""


class _Steps(NamedTuple):
    """What reading takes that is imported late: the rules are a part of a start, and over a tree that an index knows
    nothing is read."""

    parse: Callable[[bytes], Document]
    check: Callable[[Document, str], tuple[Problem, ...]]
    heading: Callable[[str], str | None]
    headings: Callable[[str], tuple[str, ...]]


@cache
def _steps() -> _Steps:
    from mcp_skills_server.format.frontmatter import parse
    from mcp_skills_server.format.links import heading, headings
    from mcp_skills_server.validation.at_scan import check

    return _Steps(parse, check, heading, headings)


def read_skill_md(raw: bytes, directory: str) -> Reading:
    """Return what the bytes of a SKILL.md say; `directory` is the name that its name must equal."""
    steps = _steps()
    document = steps.parse(raw)
    problems = (*document.problems, *steps.check(document, directory))
    if document.frontmatter is None:
        return Reading({}, None, standing(problems), problems)
    body = document.body
    opening = body[:_OPENING].strip()
    return Reading(
        document.frontmatter, steps.heading(body), standing(problems), problems, steps.headings(body), opening
    )


def located(reading: Reading, root: Root, directory: str, path: str) -> Reading:
    """The reading with its problems at the SKILL.md of this directory, of the skill with this path."""
    if not reading.problems:
        return reading
    place = root.show(join(directory, SKILL_MD))
    return reading._replace(problems=tuple(found.at(found.path or place, path) for found in reading.problems))
