"""A SKILL.md with some frontmatter, and what reading it finds."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.codes import CODES
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Standing


def framed(text: str, body: str = "Read on.\n") -> bytes:
    """A SKILL.md with these lines of frontmatter."""
    return f"---\n{text}\n---\n{body}".encode()


def document(text: str) -> Document:
    """What is read of a SKILL.md with these lines of frontmatter."""
    return parse(framed(text))


def codes(found: Document) -> list[str]:
    return [each.code for each in found.problems]


def fatal(found: Document) -> list[str]:
    return [each.code for each in found.problems if CODES[each.code].allows is Standing.UNUSABLE]


each_parser = pytest.mark.usefixtures("_each_parser")
"""With the fast parser, and with the one that is there when PyYAML was built without it."""


def typed(given_value: Any) -> Any:
    """A value that tells 1, 1.0 and True apart when compared."""
    if isinstance(given_value, dict):
        return {key: typed(inner) for key, inner in given_value.items()}
    if isinstance(given_value, list):
        return [typed(inner) for inner in given_value]
    return type(given_value).__name__, given_value
