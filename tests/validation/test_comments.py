"""Which HTML comments of a Markdown text no reader of the page sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.validation.text import comments as find
from mcp_skills_server.validation.text import comments_in_text as in_text
from steps import growth
from tables import each_row


@each_row(
    ("markdown", "expected"),
    [
        ("# A\n\n<!-- one -->\n", [(2, "one")]),
        ("in <!-- a\nb --> line", [(0, "a\nb")]),
        ("- item\n  <!-- in a list -->", [(1, "in a list")]),
        ("> <!-- in a quote -->", [(0, "in a quote")]),
        ("<div>\n<!-- in HTML -->\n</div>", [(1, "in HTML")]),
        ("<!-- never closed\n\ntext", [(0, "never closed\n\ntext")]),
        ("<!-- ` -->`", [(0, "`")]),
        ("`a` <!-- b --> `c`", [(0, "b")]),
        ("a ` b <!-- c --> d", [(0, "c")]),
        ("    \n\ntext\n    <!-- no code block in a paragraph -->", [(3, "no code block in a paragraph")]),
        ("`<!-- a -->`", []),
        ("``<!-- ` -->``", []),
        ("```html\n<!-- a -->\n```", []),
        ("~~~\n<!-- a -->", []),
        ("text\n\n    <!-- indented code -->", []),
        ("a <! -- b -->", []),
        ("", []),
    ],
)
def test_comments_count_outside_of_code(markdown: str, expected: list[tuple[int, str]]) -> None:
    """An example in code is seen by everybody; a comment of the page by nobody."""
    assert list(find(markdown)) == expected


def test_behind_what_is_parsed_a_comment_counts_wherever_it_stands() -> None:
    """Nobody hides one by a long text before it."""
    assert list(find("word\n" * 60_000 + "<!-- far -->")) == [(60_000, "far")]


@pytest.mark.hypothesis
@given(
    st.lists(st.sampled_from(["<!--", "-->", "`", "``", "```", "\n", "a", " ", "    ", "> ", "- ", "<b>"])).map("".join)
)
def test_every_comment_has_its_line(markdown: str) -> None:
    """The line that is reported has the comment's beginning."""
    for line, _ in find(markdown):
        assert "<!--" in markdown.split("\n")[line]


@each_row("shape", ["<!-- ", "`", "<!--`", "` <!-- ` ", "<!-- -->\n\n", "a <!-- b --> ` "])
def test_looking_takes_steps_as_long_as_the_text(shape: str) -> None:
    assert growth(lambda times: lambda: list(find(shape * times)), 500) <= 6


def test_comments_are_found_with_their_place() -> None:
    """Each comment is one, and one that is never closed goes to the end."""
    assert list(in_text("a <!-- one -->\nb <!--two--> <!-- three")) == [(2, "one"), (17, "two"), (28, "three")]
    assert list(in_text("a --> b <! -- c")) == []
