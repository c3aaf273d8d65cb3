"""Helpers to parse a SKILL.md from lines of frontmatter."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.codes import CODES
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Standing


def framed(text: str, body: str = "Read on.\n") -> bytes:
    return f"---\n{text}\n---\n{body}".encode()


def document(text: str) -> Document:
    return parse(framed(text))


def codes(document: Document) -> list[str]:
    return [each.code for each in document.problems]


def fatal(document: Document) -> list[str]:
    """Return the codes that make the skill unusable."""
    return [each.code for each in document.problems if CODES[each.code].allows is Standing.UNUSABLE]


each_parser = pytest.mark.usefixtures("_each_parser")
"""Run a test with both parsers (`conftest._each_parser`)."""


def typed(value: Any) -> Any:
    """Return the value with type names, so that 1, 1.0 and True differ in a comparison."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value).__name__, value
