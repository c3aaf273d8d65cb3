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

MARK: Final = "skill-check:"
_COMMENT: Final = re.compile(
    r"skill-check:[ \t]*+ignore\[([a-z0-9-]{1,64})\](?:[ \t]++because[ \t]++(\S[^\n]*+))?"
)
_CLOSES: Final = "-->"


class Suppression(NamedTuple):
    """A comment that suppresses findings.

    Attributes:
        code: code of the findings.
        line: 1-based line of the comment.
        reason: reason as given, or "".
    """

    code: str
    line: int
    reason: str


def is_suppression(comment: str) -> bool:
    """Tell whether an HTML comment holds a suppression alone, and so hides no text."""
    return _COMMENT.fullmatch(comment.strip()) is not None


def find(text: str) -> list[Suppression]:
    """Return the suppressions in a text, in order."""
    if MARK not in text:
        return []
    out: list[Suppression] = []
    for found in _COMMENT.finditer(text):
        reason = (found[2] or "").removesuffix(_CLOSES).strip()
        out.append(Suppression(found[1], text.count("\n", 0, found.start()) + 1, reason))
    return out


def suppression_for(problem: Problem, found: Sequence[Suppression]) -> Suppression | None:
    """Return the first suppression that applies to a problem, or None."""
    for each in found:
        if each.code == problem.code and (
            problem.line is None or problem.line - each.line in (0, 1)
        ):
            return each
    return None
