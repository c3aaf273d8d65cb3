"""References of a Markdown body to bundled files, and its headings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format import links
from mcp_skills_server.format.links import Reference, heading, headings, linked_files, references
from steps import step_growth
from tables import each_row

FILES = ("SKILL.md", "a.md", "assets/logo.png", "references/b c.md", "references/ü.md", "scripts/run.py", "100%.md")


@pytest.mark.requirement("S76-19", "AS-17")
@each_row(("body", "expected"), [
    *((f"[A]({written})", Reference(target, "A", 0, "link")) for written, target in (
        ("a.md", "a.md"), ("<references/b c.md>", "references/b c.md"), ("references/b%20c.md", "references/b c.md"),
        ("references/%C3%BC.md", "references/ü.md"), ("references/ü.md", "references/ü.md"), ("./a.md", "a.md"),
        ("references/../a.md", "a.md"), ("a.md#part", "a.md"), ("a.md?raw=1", "a.md"), ('a.md "title"', "a.md"),
        ("references/", "references"), ("%2561.md", "%61.md"), ("%252e%252e/a.md", "%2e%2e/a.md"),
        ("100%25.md", "100%.md"))),
    ("[A][ref]\n\n[ref]: a.md", Reference("a.md", "A", 0, "link")),
    ("[ref]\n\n[ref]: a.md", Reference("a.md", "ref", 0, "link")),
    ("![A](assets/logo.png)", Reference("assets/logo.png", "A", 0, "image")),
    ("text\n\n- item\n\n  [A](a.md)", Reference("a.md", "A", 4, "link")),
    ("one\n\n[A](a.md)\nmore", Reference("a.md", "A", 2, "link")),
    ("| a |\n\n1. x\n2. [B](b.md)", Reference("b.md", "B", 3, "link")),
    ("> [A](a.md)", Reference("a.md", "A", 0, "link")), ("# [A](a.md)", Reference("a.md", "A", 0, "link")),
    ("[*A* `b` **c**](a.md)", Reference("a.md", "A b c", 0, "link")),
    ("[two\nlines](a.md)", Reference("a.md", "two lines", 0, "link")),
    ("`a.md`", Reference("a.md", "", 0, "code")), ("`'a.md'`", Reference("a.md", "", 0, "code")),
])  # fmt: skip
def test_reference_has_target_text_line_and_kind(body: str, expected: Reference):
    assert expected in references(body)


@each_row("body", [
    "[A](https://example.org/a.md)", "[A](//example.org/a.md)", "[A](/a.md)", "[A](mailto:a@example.org)",
    "[A](skill://other/a.md)", "[A](C:/a.md)", "[A](#part)", "[A]()", "[A](../a.md)", "[A](references/../../a.md)",
    "[A](%2e%2e/a.md)", "[A](.)", "[A]({{path}})", "[A](<<path>.md>)", "[A](\\<path\\>/a.md)", "[A]($HOME/a.md)",
    "<https://example.org>", "\\[A](a.md)", "<a href='a.md'>A</a>", "```\n[A](a.md)\n```", "    [A](a.md)",
    "just a.md", "",
])  # fmt: skip
def test_link_out_of_the_bundle_is_no_reference(body: str):
    assert [found for found in references(body) if found.kind != "outside"] == []


@pytest.mark.requirement("S76-19")
def test_linked_files_are_in_order_with_their_first_text():
    body = (
        "`python scripts/run.py --in a.md`, [second](a.md), ![](assets/logo.png), [later](a.md), [Run](scripts/run.py)"
    )
    not_files = ", [self](SKILL.md), [dir](references), [gone](gone.md), `ls`"
    found = linked_files(references(body + not_files), FILES, "SKILL.md")
    assert list(found.items()) == [("scripts/run.py", "Run"), ("a.md", "second"), ("assets/logo.png", "")]


_MARKS = [*"[]()`/\\<>\n*_?# ü\0", "![", "``", "~~~", "# ", "- ", "    ", "===", "[x]: ", "\n\n", "&amp;"]
_NAMES = ["a.md", "references/", "../", "%2e", "%2E%2e/", "%00"]
_PIECES = st.lists(st.sampled_from(_MARKS + _NAMES), max_size=30).map("".join)


@given(_PIECES | st.text(max_size=80))
@example("[" * 2000)
@example("> " * 2000)
@example("`" * 2001)
def test_any_body_has_valid_references_and_bounded_headings(body: str):
    heading(body)
    found_headings = headings(body)
    assert all(found_headings) and len(found_headings) <= 40
    assert sum(map(len, found_headings)) <= 2_000
    found = references(body)
    for each in found:
        assert each.target and not each.target.startswith("/")
        assert not {"", ".", ".."} & set(each.target.split("/"))
        assert 0 <= each.line <= body.count("\n")
    files = linked_files(found, FILES, "SKILL.md")
    assert set(files) <= set(FILES) - {"SKILL.md"}


_COMMENTS = "```sh\n" + "# step\nrun\n" * 300 + "```\n\n"


@each_row(("body", "expected"), [
    ("# Title", "Title"), ("# Title\n\nText", "Title"), ("#   Title  with   blanks  \n", "Title with blanks"),
    ("   # Title", "Title"), ("# Title #", "Title"), ("# Title ##\n", "Title"), ("# C# and F#", "C# and F#"),
    ("# *Very* `good` [title](a.md)", "Very good title"), ("# A & B &lt; C", "A & B < C"),
    ("# snake_case_name", "snake_case_name"), ("# Title\\!", "Title!"), ("Title\n=====\n", "Title"),
    ("Two\nlines\n=\n", "lines"), ("Text first.\n\n# Title\n", "Title"), ("## Second\n\n# First\n", "First"),
    ("<!-- note -->\n# Title\n", "Title"), ("<!--\n# Draft\n-->\n\n# Title", "Title"), ("<!--\n# Draft", None),
    ("```\n<!--\n```\n# Title", "Title"), ("```sh\n# a comment\n```\n\n# Title\n", "Title"),
    ("> # Quoted\n\n# Title", "Title"), ("- # Item\n\n# Title", "Title"), ("# ", None), ("#", None),
    ("#Title", None), ("    # Code", None), ("## Second", None), ("Text\n\n===\n", None),
    ("```\n# a comment\n", None), ("Text only.", None), ("", None), (_COMMENTS + "# Title\n\nText\n", "Title"),
    (_COMMENTS + "Long title\n==========\n", "Long title"),
    ("Text\n===x", None), ("x" * 65_532 + "\n# T", "T"), ("x" * 65_533 + "\n# T", None),
    ("# *" + "x" * 1_100, "*" + "x" * 1_023),
])  # fmt: skip
def test_heading_is_the_first_of_level_one_as_plain_text(body: str, expected: str | None):
    assert heading(body) == expected


def test_heading_search_takes_linear_time() -> None:
    assert step_growth(lambda times: lambda: heading("```\n" + "# \n" * times), 300) <= 6


@given(st.text(st.characters(categories=("L", "N", "Zs"), include_characters=".,:;()-'\"/?%$+=@{}|^"), max_size=40))
def test_heading_without_markup_agrees_with_the_parser(title: str):
    text = " ".join(title.split())
    assert f"{heading(f'# {text}') or ''} &".strip() == heading(f"# {text} &amp;")


@each_row(("body", "expected"), [
    ("# Title\n\nText only.", "Title"), ("Text first.\n\n## Steps", "Steps"),
    ("# Title\n\n## Steps\n\nDo.\n\n### Details\n#### Too deep\n", "Title|Steps|Details"),
    ("## Steps ##\n### C# and F#\n", "Steps|C# and F#"),
    ("# *Very* `good` [title](a.md) ![of](b.png) [it][ref]\n## b", "Very good title of it|b"),
    ("# snake_case_name\n# A  B\tC\n", "snake_case_name|A B C"),
    ("Title\n=====\n\nSteps\n-----\n\nText\n", "Title|Steps"), ("Text\n\n---\n\n## After a rule", "After a rule"),
    ("| a | b |\n---\n\n- item\n---\n> quote\n---\n", ""), ("# One\n---\n", "One"),
    ("# T\n\n```sh\n# a comment\n```\n\n## After", "T|After"),
    ("# T\n\n1. Do\n\n   ```sh\n# a comment\n   ```\n## After", "T|After"),
    ("````md\n```\n# inside\n````\n## After", "After"), ("~~~\n# inside\n```\n# inside\n~~~\n## After", "After"),
    ("```\n# never closed\n## neither", ""), ("#Title\n#\n# \n## #\n", ""),
    ("# Ünïcode 日本語\n## 👋", "Ünïcode 日本語|👋"), ("", ""),
])  # fmt: skip
def test_headings_are_in_order_as_plain_text(body: str, expected: str):
    assert "|".join(headings(body)) == expected


def test_headings_are_limited_in_number_and_length():
    assert headings("\n".join(f"## Part {number}" for number in range(99)))[-1] == "Part 39"
    assert [len(each) for each in headings("\n".join(f"## {'x' * 900}" for _ in range(9)))] == [900, 900, 200]
    assert [len(each) for each in headings(f"# {'x' * 9_000}")] == [1_024]


@each_row("shape", ["![", "[", "<!--", '[a](b "', "[a](<", "[a\n", "`a``b```", "*_", "- ", "|a|[b](c)|\n"])
def test_parser_input_is_bounded(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Markdown parser gets pieces of limited length with a limited number of brackets."""
    pieces: list[str] = []
    parsed = links._parsed

    def counting(text: str, known: dict[str, Any]) -> Any:
        pieces.append(text)
        if len(pieces) < 3:
            return parsed(text, known)
        return []

    monkeypatch.setattr(links, "_parsed", counting)
    monkeypatch.setattr(links, "_MAX_READ", 65_536)
    text = shape * (1 << 16)
    references("\n\n".join(text[at : at + 16_000] for at in range(0, 1 << 16, 16_000)))
    assert max(map(len, pieces), default=0) <= links._MAX_PIECE
    assert sum(piece.count("[") for piece in pieces) <= links._MAX_BRACKETS


def test_links_in_a_long_table_have_their_own_lines() -> None:
    table = "\n".join(f"| {'x' * 90} | [n{number}](references/{number}.md) |" for number in range(500))
    found = references(f"# Title\n\n{table}\n")
    assert [(each.target, each.line) for each in found] == [(f"references/{n}.md", n + 2) for n in range(500)]


@each_row(("body", "lines"), [
    ("| a | b |\n|---|---|\n| x | [x](1.md) |\n| `a` | [y](2.md) |", [2, 3]),
    ("one\ntwo `c`\n[three](1.md) and\n**[four](2.md)**", [2, 3]),
    ("- a\n  b [c](1.md)\n\n> q\n> [r](2.md)\nlazy ![s](3.png)", [1, 4, 5]),
    ("[a `b\nc`](1.md)\n`d\ne` [f](2.md)", [0, 3]),
])  # fmt: skip
def test_reference_in_a_block_of_several_lines_has_its_own_line(body: str, lines: list[int]) -> None:
    assert [each.line for each in references(body) if "." in each.target] == lines
