"""Parse and validate a SKILL.md.

Imported lazily: a start over a tree that the index knows does not load the rules.
"""

from __future__ import annotations

from typing import Final

from mcp_skills_server.codes import standing
from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.format.links import heading, headings
from mcp_skills_server.model import Reading
from mcp_skills_server.validation.rules import check

_OPENING: Final = 400
"""Characters of a body that are indexed for search: more is slower and finds no more."""


def read_skill_md(raw: bytes, directory: str) -> Reading:
    """Parse and check the bytes of a SKILL.md; its `name` must equal `directory`."""
    document = parse(raw)
    problems = (*document.problems, *check(document, directory))
    if document.frontmatter is None:
        return Reading({}, None, standing(problems), problems)
    body = document.body
    opening = body[:_OPENING].strip()
    return Reading(
        document.frontmatter, heading(body), standing(problems), problems, headings(body), opening
    )
