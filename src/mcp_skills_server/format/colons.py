"""The mistake that authors make most often in YAML: a plain value with a colon and a blank in it.

`description: Two steps: first this` is no YAML, and there is one thing that it can mean where the value stands on one
line of the top level, begins like text, and holds nothing that might be a comment. Everywhere else it stays an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*+):[ \t]++([^\s].*+)")
_COLON: Final = re.compile(r":(?=[ \t]|\Z)")
_NOT_PLAIN: Final = frozenset("\"'[]{}|>&*!%@`#,?-:")
"""How a value begins that is no plain text, or may be none."""


@dataclass(frozen=True, slots=True)
class Quoted:
    """A line that was put right.

    Attributes:
        key: the field.
        value: its value.
        line: the 0-based line in the frontmatter.
        written: the line as it should be.
    """

    key: str
    value: str
    line: int
    written: str


def quoted(frontmatter: str) -> tuple[str, list[Quoted]] | None:
    """Return the frontmatter with quotes around each plain value that holds a colon, and what was changed.

    None where there is no such value, or one whose meaning is in doubt.
    """
    lines = frontmatter.split("\n")
    found: list[Quoted] = []
    goes_on = False
    """Whether the next line that is not empty belongs to the value of the one before it."""
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if not line.strip():
            continue
        field = _FIELD.fullmatch(line)
        value = field[2].rstrip() if field else ""
        if field and value[0] not in _NOT_PLAIN and _COLON.search(value):
            if goes_on or " #" in value or "\t#" in value:
                return None
            text = value.replace("'", "''")
            found.append(Quoted(field[1], value, number, f"{field[1]}: '{text}'"))
            lines[number] = found[-1].written
        goes_on = line[0] in " \t-"
    found.reverse()
    return ("\n".join(lines), found) if found else None
