"""The rules of docs/requirements.md, and the reasons why some have no test."""

from __future__ import annotations

import re
from dataclasses import dataclass

STRICT_LEVELS = frozenset({"MUST", "MUST NOT", "SHALL", "SHALL NOT"})
OURS = frozenset({"server", "both"})
_RULE = re.compile(r"^([A-Z0-9]+-\d+) \| ")
_REASON = re.compile(r"^\| ((?:[A-Z0-9]+-\d+(?:, )?)+) \| (.+) \|$")
_SECTION = re.compile(r"^## (\d+\. .+)$")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of docs/requirements.md.

    Attributes:
        section: the level-2 heading above it.
        mark: where the rule was found; "" when a seed has it.
    """

    id: str
    level: str
    binds: str
    text: str
    source: str
    mark: str
    section: str

    @property
    def binding(self) -> bool:
        """Whether it is a MUST, MUST NOT, SHALL or SHALL NOT for a server."""
        return self.level in STRICT_LEVELS and self.binds in OURS


def parse_rules(text: str) -> tuple[list[Rule], list[str]]:
    """Read the rules, and say which lines look like a rule and are none."""
    rules: list[Rule] = []
    errors: list[str] = []
    seen: set[str] = set()
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
        elif _RULE.match(line):
            head = line.split(" | ", 3)
            tail = head[3].rsplit(" |", 2) if len(head) == 4 else []
            if len(tail) != 3:
                errors.append(f"line {number}: {head[0]} has not the six columns of a rule")
                continue
            if head[0] in seen:
                errors.append(f"line {number}: {head[0]} stands twice")
            seen.add(head[0])
            requirement, source, mark = (part.strip() for part in tail)
            rules.append(Rule(head[0], head[1], head[2], requirement, source, mark, section))
    return rules, errors


def parse_reasons(text: str) -> dict[str, str]:
    """Why a rule has no test, by its ID: the rows of a table whose first column holds IDs."""
    rows = (_REASON.match(line) for line in text.splitlines())
    return {name: row[2] for row in rows if row for name in row[1].split(", ")}
