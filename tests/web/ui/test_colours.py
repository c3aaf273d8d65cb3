"""Colours of program files, and the words that differ between two lines."""

from __future__ import annotations

from mcp_skills_server.web.ui.colours import changed_words, coloured_lines, diff_lines
from tables import each_row


@each_row("text, path, line", [
    ("let x // b", "a.JS", '<span class="t-keyword">let</span> x <span class="t-comment">// b</span>'),
    ("echo $# 12", "a.sh", 'echo $# <span class="t-number">12</span>'),
    ("'never ends \\' # x", "a.py", '<span class="t-string">&#39;never ends \\&#39; # x</span>'),
    ("import <b>", "a.md", "import &lt;b&gt;"),
    ("import x" + " " * 100_000, "a.py", "import x" + " " * 100_000),
])  # fmt: skip
def test_line_has_colours_of_its_language(text: str, path: str, line: str) -> None:
    assert coloured_lines(f"{text}\n", path) == [line]


@each_row("old, new, left, right", [
    ("pay in 3 days", "pay in 5 days", "pay in <b>3</b> days", "pay in <b>5</b> days"),
    ("pay <now>", "pay <now> please", "pay &lt;now&gt;", "pay &lt;now&gt;<b> please</b>"),
    ("a a a", "a a", "a a<b> a</b>", "a a"),
    ("tea", "coffee", "tea", "coffee"),
])  # fmt: skip
def test_words_that_differ_are_marked(old: str, new: str, left: str, right: str) -> None:
    assert changed_words(old, new) == (left, right)


def test_removed_lines_are_compared_with_added_lines_in_order() -> None:
    lines = ["--- a/x", "+++ b/x", "@@ -1 +1 @@", "-one tea", "-two", "+one cup", " same", "+new"]
    assert [*diff_lines(lines)] == [
        ("-", "-- a/x"), ("+", "++ b/x"), ("", "@@ -1 +1 @@"), ("-", "one <b>tea</b>"), ("-", "two"),
        ("+", "one <b>cup</b>"), ("", " same"), ("+", "new"),
    ]  # fmt: skip
