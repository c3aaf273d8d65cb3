"""How a message shows a text that comes from outside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.excerpts import excerpt, literal, quoted
from tables import each_row


@each_row(("text", "short", "code", "named"), [
    ("plain", "plain", "'plain'", "'plain'"),
    ("a\n b\x1b", "a b\ufffd", "'a\\n b\\x1b'", "'a\\u{a} b\\u{1b}'"),
    ("x" * 60, "x" * 60, repr("x" * 60), "'" + "x" * 60 + "'"),
    ("x" * 61, "x" * 57 + "...", repr("x" * 57 + "..."), "'" + "x" * 57 + "...'"),
])  # fmt: skip
def test_each_way_to_show_a_text(text: str, short: str, code: str, named: str) -> None:
    assert (excerpt(text), literal(text), quoted(text)) == (short, code, named)


@given(st.text())
def test_whatever_is_shown_is_short_and_on_one_line(text: str) -> None:
    for shown in (excerpt(text), quoted(text)):
        assert shown.isprintable() and len(shown) <= 62
    assert literal(text).isprintable()
