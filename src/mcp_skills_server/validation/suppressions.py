"""Comments that suppress a finding: `skill-check: ignore[CODE] because REASON`. Pure.

The comment stands on the line of the finding or on the line before, in any syntax: `# ...` in
frontmatter and scripts, `<!-- ... -->` in Markdown. A comment anywhere in SKILL.md suppresses a
finding without a line. The reason is required.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_skills_server.model import Problem

_COMMENT: Final = re.compile(
    r"skill-check:[ \t]*+ignore\[([a-z0-9-]{1,64})\](?:[ \t]++because[ \t]++(\S[^\n]*+))?"
)


class Suppression(NamedTuple):
    """A comment on a 1-based line that suppresses findings of a code; the reason may be ""."""

    code: str
    line: int
    reason: str


def is_suppression(comment: str) -> bool:
    """Tell whether an HTML comment holds a suppression alone, and so hides no text."""
    return _COMMENT.fullmatch(comment.strip()) is not None


def find(text: str) -> list[Suppression]:
    """Return the suppressions in a text, in order."""
    out: list[Suppression] = []
    for found in _COMMENT.finditer(text):
        reason = (found[2] or "").removesuffix("-->").strip()
        out.append(Suppression(found[1], text.count("\n", 0, found.start()) + 1, reason))
    return out


def suppression_for(problem: Problem, found: Sequence[Suppression]) -> Suppression | None:
    """Return the first suppression that applies to a problem, or None."""
    for each in found:
        is_near = problem.line is None or problem.line - each.line in (0, 1)
        if is_near and each.code == problem.code:
            return each
    return None
