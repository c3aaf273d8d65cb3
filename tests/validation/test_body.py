"""The rules of the body: its length and what it refers to."""

from __future__ import annotations

import pytest

from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.validation.rules import check_deeply
from tables import each_row

from .build import SOUND, codes, deep, document


@pytest.mark.requirement("AS-2")
@each_row("body", ["", "\n\n", "  \n"])
def test_a_skill_without_instructions_is_warned_of(body: str):
    assert codes(SOUND, body=body) == ["body-empty"]


@pytest.mark.requirement("AS-16")
@each_row(("body", "long"), [
    ("x\n" * 500, False), ("x\n" * 501, True), ("x" * 20_000, False), ("x" * 20_001, True),
    ("\n" * 600 + "x", False),
])  # fmt: skip
def test_a_body_of_more_than_500_lines_or_5000_tokens_is_long(body: str, long: bool):
    assert codes(SOUND, body=body) == (["body-long"] if long else [])


@pytest.mark.requirement("AS-17")
def test_references_one_level_deep_are_fine():
    body = "[a](a.md), ![b](assets/b.png), [c](./references/c.md#part), `scripts/d.py`, [dir](references/)\n"
    assert deep(body, "a.md", "assets/b.png", "references/c.md", "scripts/d.py") == []


@pytest.mark.requirement("AS-17")
def test_a_reference_to_what_is_not_there_is_told_once_with_its_line():
    body = "# Title\n\nSee [this](references/gone.md).\n\nAgain [this](references/gone.md), and ![that](gone.png).\n"
    assert deep(body) == [("reference-missing", 7), ("reference-missing", 9)]


@pytest.mark.requirement("AS-17")
def test_the_line_of_a_reference_counts_from_the_top_of_the_file():
    raw = b"---\nname: a\ndescription: b, when asked\n\n---\n\n\nFirst.\n\n[gone](gone.md)\n"
    (found,) = check_deeply(parse(raw), ())
    assert found.line is not None
    assert raw.split(b"\n")[found.line - 1] == b"[gone](gone.md)"


@pytest.mark.requirement("AS-17")
def test_a_reference_two_levels_deep_is_advised_against():
    assert deep("`a/b/c.md` and [c](a/b/c.md)\n", "a/b/c.md") == [("reference-deep", 5)]


@pytest.mark.requirement("AS-17")
@each_row("body", [
    "`npm run build`", "[web](https://example.org/a.md)", "[mail](mailto:a@b.c)", "[part](#part)",
])  # fmt: skip
def test_what_does_not_point_into_the_skill_is_no_missing_reference(body: str):
    assert deep(body) == []


@each_row("target", ["../other/a.md", "%2e%2e/b/a.md", "references/../../a.md"])
def test_a_reference_that_leaves_the_skill_is_said(target: str):
    assert deep(f"[up]({target})") == [("reference-outside", 5)]


def test_a_target_is_shown_on_one_line():
    (found,) = check_deeply(document(SOUND, "[x](a%0Ab%1B%5B31m)"), ())
    assert found.message == "the body refers to 'a\\nb\\x1b[31m', which is not in the skill"
