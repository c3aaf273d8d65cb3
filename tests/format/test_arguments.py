"""The arguments of a skill, and instructions filled in with values for them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import arguments
from mcp_skills_server.format.arguments import MOST_ADDED
from mcp_skills_server.model import Json
from steps import growth
from tables import each_row

TOPIC: dict[str, Json] = {"name": "topic", "required": True}
TONE: dict[str, Json] = {"name": "tone", "default": "calm", "required": "yes"}  # which is not true
BARE: dict[str, Json] = {"name": "bare"}


def filled(text: str, given_values: dict[str, Any], *declared: dict[str, Json]) -> str:
    return arguments.fill_in(text, declared, given_values, "letters")


@pytest.mark.requirement("S76-6", "S76-7")
@each_row(
    ("text", "values", "expected"),
    [
        ("{{topic}}", {"topic": "tea"}, "tea"),
        ("{{topic}} and {{topic}}", {"topic": "tea"}, "tea and tea"),
        ("{{topic}}/{{tone}}/{{bare}}.", {"topic": "tea"}, "tea/calm/."),
        ("{{tone}}", {"topic": "tea", "tone": "loud"}, "loud"),
        ("{{tone}}", {"topic": "tea", "tone": ""}, ""),
        ("{{topic}}", {"topic": ""}, ""),
        ("{{topic}} {{tone}}", {"topic": "{{tone}}", "tone": "{{topic}}"}, "{{tone}} {{topic}}"),
        ("{{topic}}", {"topic": r"\1 \g<0> $1"}, r"\1 \g<0> $1"),
        ("{{topic}}", {"topic": "日本語 🦀\n"}, "日本語 🦀\n"),
        (
            "{topic} {{ topic }} {{Topic}} {{other}} $topic",
            {"topic": "tea"},
            "{topic} {{ topic }} {{Topic}} {{other}} $topic",
        ),
        ("{{{topic}}}", {"topic": "tea"}, "{tea}"),
        ("{{topic", {"topic": "tea"}, "{{topic"),
        ("no placeholder", {"topic": "tea"}, "no placeholder"),
    ],
)
def test_declared_placeholders_are_filled_in_one_pass_and_nothing_else(
    text: str, values: dict[str, Any], expected: str
):
    assert filled(text, values, TOPIC, TONE, BARE) == expected


@pytest.mark.requirement("S76-8")
def test_a_required_argument_that_is_missing_is_refused_and_named():
    with pytest.raises(RequestError, match="Missing required argument 'topic' of skill 'letters'"):
        filled("{{topic}}", {"tone": "loud"}, TOPIC, TONE)


def test_an_argument_that_is_not_declared_is_refused_and_named():
    with pytest.raises(RequestError, match="has no argument 'colour'; it declares: topic, tone"):
        filled("", {"topic": "tea", "colour": "red"}, TOPIC, TONE)
    with pytest.raises(RequestError, match="has no argument 'colour'; it declares: none"):
        filled("", {"colour": "red"})


@each_row("value", [None, 1, True, ["tea"], {"a": "b"}])
def test_an_argument_that_is_no_text_is_refused_and_named(value: Any):
    with pytest.raises(RequestError, match="Argument 'topic' of skill 'letters' must be a string"):
        filled("{{topic}}", {"topic": value}, TOPIC)


@each_row("default", [None, 3, ["x"]])
def test_a_default_that_is_no_text_is_empty(default: Json):
    assert filled("[{{a}}]", {}, {"name": "a", "default": default}) == "[]"


@given(st.text(), st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=4))
def test_any_argument_may_hold_any_text(text: str, values: dict[str, str]):
    assume("{{" not in text and not any("{" in name or "}" in name for name in values))
    declared: list[dict[str, Json]] = [{"name": name} for name in values]
    marked = "".join("\0{{" + name + "}}" for name in values)
    assert filled(text + marked, values, *declared) == text + "".join("\0" + value for value in values.values())


def _filled(text: str, given_values: dict[str, str], *names: str) -> str:
    return arguments.fill_in(text, [{"name": name} for name in names], given_values, "letters")


@pytest.mark.parametrize("over", [0, 1])
def test_arguments_make_a_body_longer_by_so_much_and_no_more(over: int):
    places = 64
    value = "v" * (MOST_ADDED // places + len("{{topic}}") + over)
    if over:
        with pytest.raises(RequestError, match=r"'letters' longer by more than 1,048,576 characters"):
            _filled("{{topic}}" * places, {"topic": value}, "topic")
    else:
        assert len(_filled("{{topic}}" * places, {"topic": value}, "topic")) == MOST_ADDED + len("{{topic}}") * places


def test_three_hundred_places_for_a_long_argument_are_refused_before_they_are_filled():
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="longer by more than"):
            _filled("{{topic}} " * 300, {"topic": "x" * 900_000}, "topic")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@each_row("shape", ["{{a}}", "{{", "{{{{a}}", "}}", "{{a", "{{a}", "{{no}}"])
def test_filling_in_takes_steps_as_long_as_the_body_whatever_is_declared(shape: str):
    def call(times: int) -> Callable[[], object]:
        names = ["a", *(f"n{each}" for each in range(times))]
        return lambda: _filled(shape * times, {"a": "b"}, *names)

    assert growth(call, 500) <= 5


@given(st.text("{}ab", max_size=40), st.dictionaries(st.sampled_from(["a", "b", "ab"]), st.text("{}ab", max_size=3)))
def test_filling_in_is_what_replacing_one_after_the_other_place_would_be(body: str, values: dict[str, str]):
    expected, rest = "", body
    while rest:
        name = next((each for each in values if rest.startswith("{{" + each + "}}")), None)
        expected += rest[0] if name is None else values[name]
        rest = rest[1:] if name is None else rest[len(name) + 4 :]
    assert _filled(body, values, *values) == expected
