"""Substitution of a skill's arguments in its instructions."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import arguments
from mcp_skills_server.format.arguments import MAX_ADDED
from mcp_skills_server.model import Json
from steps import step_growth
from tables import each_row

TOPIC: dict[str, Json] = {"name": "topic", "required": True}
TONE: dict[str, Json] = {"name": "tone", "default": "calm", "required": "yes"}  # only `true` is required
BARE: dict[str, Json] = {"name": "bare"}


def fill_in(text: str, values: dict[str, Any], *declared: dict[str, Json]) -> str:
    return arguments.fill_in(text, {"arguments": [*declared]}, values, "letters")


@pytest.mark.requirement("S76-6", "S76-7")
@each_row(("text", "values", "expected"), [
    ("{{topic}}", {"topic": "tea"}, "tea"), ("{{topic}} and {{topic}}", {"topic": "tea"}, "tea and tea"),
    ("{{topic}}/{{tone}}/{{bare}}.", {"topic": "tea"}, "tea/calm/."),
    ("{{tone}}", {"topic": "tea", "tone": "loud"}, "loud"), ("{{tone}}", {"topic": "tea", "tone": ""}, ""),
    ("{{topic}}", {"topic": ""}, ""),
    ("{{topic}} {{tone}}", {"topic": "{{tone}}", "tone": "{{topic}}"}, "{{tone}} {{topic}}"),
    ("{{topic}}", {"topic": r"\1 \g<0> $1"}, r"\1 \g<0> $1"), ("{{topic}}", {"topic": "日本語 🦀\n"}, "日本語 🦀\n"),
    *((text, {"topic": "tea"}, text)
      for text in ("{topic} {{ topic }} {{Topic}} {{other}} $topic", "{{topic", "no placeholder")),
    ("{{{topic}}}", {"topic": "tea"}, "{tea}"),
    *((f"[{{{{{name}}}}}]", {"topic": ""}, "[]") for name in ("three", "list")),
])  # fmt: skip
def test_only_declared_placeholders_are_filled_in_once(text: str, values: dict[str, Any], expected: str):
    defaults_of_other_types: list[dict[str, Json]] = [
        {"name": "three", "default": 3},
        {"name": "list", "default": ["x"]},
    ]
    assert fill_in(text, values, TOPIC, TONE, BARE, *defaults_of_other_types) == expected


CLAUDE: list[dict[str, Json]] = [
    {"arguments": ["directory", "file", "issue-id"]}, {"arguments": "directory file  issue-id"},
]  # fmt: skip
"""Both forms of Claude Code."""


@each_row(("text", "expected"), [
    ("Move $directory to $file.", "Move src to x$file.md."), ("$directory/$directory", "src/src"),
    ("$issue-id-2 $issue-idx $issue $directory-old", "-2 $issue-idx $issue src-old"),
    ("\\$directory $directory", "$directory src"), ("\\$5 \\$other $5 $other", "\\$5 \\$other $5 $other"),
    ("$directory[0] $directory_ $Directory {{directory}}", "$directory[0] $directory_ $Directory {{directory}}"),
    ("All: $ARGUMENTS, not \\$ARGUMENTS or $ARGUMENTS[0]", "All: src x$file.md, not $ARGUMENTS or $ARGUMENTS[0]"),
])  # fmt: skip
def test_names_alone_are_arguments_with_a_dollar(text: str, expected: str) -> None:
    values = {"directory": "src", "file": "x$file.md"}
    for frontmatter in CLAUDE:
        names = [each["name"] for each in arguments.declared(frontmatter)]
        assert names == ["directory", "file", "issue-id"]
        assert arguments.fill_in(text, frontmatter, values, "move") == expected


def test_names_and_mappings_are_filled_in_once() -> None:
    values = {"topic": "$file {{topic}}", "file": "{{topic}} $file"}
    declared: dict[str, Json] = {"arguments": [TOPIC, "file", "", 3]}
    text = arguments.fill_in("{{topic}}|$file|$topic", declared, values, "x")
    assert text == "$file {{topic}}|{{topic}} $file|$topic"


@each_row(("body", "filled"), [
    ("Mend $ARGUMENTS.", r"Mend \1 $ARGUMENTS."), ("$ARGUMENTS and $ARGUMENTS", r"\1 $ARGUMENTS and \1 $ARGUMENTS"),
    *((text, text) for text in ("$ARGUMENTS[0]", "$ARGUMENTS_", "$ARGUMENTSX", "$arguments", "{{ARGUMENTS}}")),
    (r"\$ARGUMENTS", "$ARGUMENTS"),
])  # fmt: skip
def test_words_of_the_user_are_substituted_once_and_verbatim(body: str, filled: str) -> None:
    typed = {"ARGUMENTS": r"\1 $ARGUMENTS"}
    assert arguments.substitute(body, {}, typed, "a") == (filled, r"\1" in filled)


@pytest.mark.requirement("S76-8")
@each_row(("values", "declared", "reason"), [
    ({"tone": "loud"}, [TOPIC, TONE], "Missing required argument 'topic' of skill 'letters'"),
    ({"topic": "tea", "colour": "red"}, [TOPIC, TONE], "has no argument 'colour'; it declares: topic, tone"),
    ({"colour": "red"}, [], "has no argument 'colour'; it declares: none"),
    *(({"topic": value}, [TOPIC], "Argument 'topic' of skill 'letters' must be a string")
      for value in (None, 1, True, ["tea"], {"a": "b"})),
])  # fmt: skip
def test_invalid_argument_is_refused_by_name(values: dict[str, Any], declared: list[dict[str, Json]], reason: str):
    with pytest.raises(RequestError, match=reason):
        fill_in("{{topic}}", values, *declared)


def test_filled_in_text_grows_by_one_mebibyte_at_most():
    text = "{{topic}}" * 64
    longest = "v" * (MAX_ADDED // 64 + len("{{topic}}"))
    assert len(fill_in(text, {"topic": longest}, TOPIC)) == MAX_ADDED + len(text)
    with pytest.raises(RequestError, match=r"'letters' longer by more than 1,048,576 characters"):
        fill_in(text, {"topic": longest + "v"}, TOPIC)


def test_too_long_text_is_refused_before_it_is_filled_in():
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="longer by more than"):
            fill_in("{{topic}} " * 300, {"topic": "x" * 900_000}, TOPIC)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@each_row("shape", [
    "{{a}}", "{{", "{{{{a}}", "}}", "{{a", "{{a}", "{{no}}", "$b", "$", "$x", "\\$b", "-b", "$b-b[", "$b[",
])  # fmt: skip
def test_fill_in_takes_linear_time(shape: str):
    def call(times: int) -> Callable[[], object]:
        declared: list[Json] = ["b", {"name": "a"}, *({"name": f"n{each}"} for each in range(times))]
        text = "$b" + shape * times
        return lambda: arguments.fill_in(text, {"arguments": declared}, {"a": "b", "b": "c"}, "letters")

    assert step_growth(call, 500) <= 5


@given(st.text("{}ab\0é\n", max_size=40), st.dictionaries(st.sampled_from(["a", "b", "ab"]), st.text(max_size=3)))
def test_fill_in_equals_a_replacement_from_left_to_right(body: str, values: dict[str, str]):
    expected, rest = "", body
    while rest:
        name = next((each for each in values if rest.startswith("{{" + each + "}}")), None)
        if name is None:
            expected += rest[0]
            rest = rest[1:]
        else:
            expected += values[name]
            rest = rest[len(name) + 4 :]
    assert fill_in(body, values, *({"name": name} for name in values)) == expected
