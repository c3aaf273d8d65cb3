"""What the bytes of a SKILL.md say, and where its problems lie."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.catalog.path_index import join
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.catalog.shared_texts import shared
from mcp_skills_server.codes import standing
from mcp_skills_server.model import SKILL_MD, Reading

_OPENING: Final = 1_000
"""Characters of a body that a search looks at."""


def read_skill_md(raw: bytes, directory: str) -> Reading:
    """What the bytes of a SKILL.md say; `directory` is the name that its name must equal."""
    # Late: YAML and the rules are a fifth of a start, and over a tree that an index knows nothing is read.
    from mcp_skills_server.format import frontmatter
    from mcp_skills_server.format.links import heading, headings
    from mcp_skills_server.validation import rules

    document = frontmatter.parse(raw)
    problems = (*document.problems, *rules.check(document, directory))
    if document.frontmatter is None:
        return Reading({}, None, standing(problems), problems)
    body = document.body
    found = headings(body)
    fields = shared(document.frontmatter)
    return Reading(fields, heading(body), standing(problems), problems, found, body[:_OPENING].strip())


def located(reading: Reading, root: Root, directory: str, path: str) -> Reading:
    """The reading with its problems at the SKILL.md of this directory, of the skill with this path."""
    if not reading.problems:
        return reading
    place = root.show(join(directory, SKILL_MD))
    return reading._replace(problems=tuple(found.at(found.path or place, path) for found in reading.problems))
