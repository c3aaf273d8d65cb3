"""Comments that suppress a finding: `skill-check: ignore[CODE] because REASON`. Pure.

The comment stands on the line of the finding or on the line before, in any form: `# ...` in
frontmatter and scripts, `<!-- ... -->` in Markdown. A finding without a line is suppressed by a
comment anywhere in SKILL.md. Without a reason nothing is suppressed.
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
        code: of the findings.
        line: of the comment, from 1.
        reason: why, "" where none is given.
    """

    code: str
    line: int
    reason: str


def is_one(comment: str) -> bool:
    """Tell whether the content of an HTML comment is a suppression, which hides nothing from a
    reader."""
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


def suppressed(problem: Problem, found: Sequence[Suppression]) -> Suppression | None:
    """Return the suppression in its file that is about a problem, None where none is."""
    for each in found:
        if each.code == problem.code and (
            problem.line is None or problem.line - each.line in (0, 1)
        ):
            return each
    return None
