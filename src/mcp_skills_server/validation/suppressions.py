"""Comments that suppress a finding: `skill-check: ignore[CODE] because REASON`. Pure.

The comment stands on the line of the finding or on the line before, in any syntax: `# ...` in
frontmatter and scripts, `<!-- ... -->` in Markdown. A comment anywhere in SKILL.md suppresses a
finding without a line. The reason is required.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mcp_skills_server.model import Problem

_COMMENT: Final = re.compile(
    r"skill-check:[ \t]*+ignore\[([a-z0-9-]{1,64})\](?:[ \t]++because[ \t]++(\S[^\n]*+))?"
)


def is_suppression(comment: str) -> bool:
    """Tell whether an HTML comment holds a suppression alone, and so hides no text."""
    return _COMMENT.fullmatch(comment.strip()) is not None


def find(text: str) -> dict[tuple[str, int | None], str]:
    """Return the reasons in a text, by code and 1-based line; line None has the first of a code."""
    reasons: dict[tuple[str, int | None], str] = {}
    line, read = 1, 0
    for match in _COMMENT.finditer(text):
        line += text.count("\n", read, match.start())
        read = match.start()
        if reason := (match[2] or "").removesuffix("-->").strip():
            reasons.setdefault((match[1], line), reason)
            reasons.setdefault((match[1], None), reason)
    return reasons


def reason_for(problem: Problem, reasons: Mapping[tuple[str, int | None], str]) -> str:
    """Return the reason of the first suppression that applies to a problem, or ""."""
    line = problem.line
    before = "" if line is None else reasons.get((problem.code, line - 1))
    return before or reasons.get((problem.code, line), "")
