"""A SKILL.md for the rules, and what they find in it."""

from __future__ import annotations

import json
from typing import Any

from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Problem
from mcp_skills_server.validation.rules import check, check_deeply

SOUND: dict[str, Any] = {
    "name": "sound-skill",
    "description": "Shows a skill that keeps every rule there is. Use it in tests.",
}


def document(fields: dict[str, Any], body: str = "Read on.\n") -> Document:
    """A SKILL.md with these fields, one to a line."""
    lines = "".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
    return parse(f"---\n{lines}---\n{body}".encode())


def problems(fields: dict[str, Any], directory: str = "sound-skill", body: str = "Read on.\n") -> tuple[Problem, ...]:
    return check(document(fields, body), directory)


def codes(fields: dict[str, Any], directory: str = "sound-skill", body: str = "Read on.\n") -> list[str]:
    return [found.code for found in problems(fields, directory, body)]


def deep(body: str, *files: str) -> list[tuple[str, int | None]]:
    """What a reading of the body tells, for a skill with these files."""
    return [(found.code, found.line) for found in check_deeply(document(SOUND, body), ("SKILL.md", *files))]
