"""Excerpts of foreign text in messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.excerpts import excerpt, literal, quoted
from tables import each_row


@each_row(("text", "as_excerpt", "as_literal", "as_quoted"), [
    ("plain", "plain", "'plain'", "'plain'"),
    ("a\n b\x1b", "a b\ufffd", "'a\\n b\\x1b'", "'a\\u{a} b\\u{1b}'"),
    ("x" * 60, "x" * 60, repr("x" * 60), "'" + "x" * 60 + "'"),
    ("x" * 61, "x" * 57 + "...", repr("x" * 57 + "..."), "'" + "x" * 57 + "...'"),
])  # fmt: skip
def test_text_is_shown_as_excerpt_literal_or_quotation(
    text: str, as_excerpt: str, as_literal: str, as_quoted: str
) -> None:
    assert excerpt(text) == as_excerpt
    assert literal(text) == as_literal
    assert quoted(text) == as_quoted


@given(st.text())
def test_excerpt_of_any_text_is_short_and_printable(text: str) -> None:
    for shown in (excerpt(text), quoted(text)):
        assert shown.isprintable() and len(shown) <= 62
    assert literal(text).isprintable()
