"""Decoding of foreign JSON and TOML, with the same bounds in every version of Python."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.model.decoding import load_json, load_toml
from tables import each_row


def height(value: Any) -> int:
    """Return the number of levels of a value whose containers have one item each."""
    levels = 0
    while isinstance(value, dict | list):
        levels += 1
        value = next(iter(value.values() if isinstance(value, dict) else value), None)
    return levels


def json_of(levels: int) -> str:
    return '{"a":[' * (levels // 2) + "[]" * (levels % 2) + "]}" * (levels // 2)


def toml_of(levels: int) -> str:
    return "a = " + "[" * (levels - 1) + "]" * (levels - 1)


def dotted(levels: int) -> str:
    return ".".join(["a"] * levels) + " = 1"


@each_row("levels", [2, 99, 100])
def test_up_to_100_levels_are_decoded(levels: int) -> None:
    assert height(load_json(json_of(levels))) == height(load_json(json_of(levels).encode())) == levels
    assert height(load_toml(toml_of(levels))) == height(load_toml(dotted(levels))) == levels


@each_row("levels", [101, 400, 990])
def test_more_than_100_levels_are_refused(levels: int) -> None:
    """Parsers read 990 to 10,000 of JSON, and some 300 of TOML, as the interpreter and the caller's stack have it."""
    for decode, text in ((load_json, json_of(levels)), (load_toml, toml_of(levels)), (load_toml, dotted(levels))):
        with pytest.raises(ValueError, match=r"^it is nested more than 100 levels deep$"):
            decode(text)


def test_toml_line_with_1000_dots_is_refused_before_it_costs_quadratic_time() -> None:
    assert load_toml("a = 1 # " + "." * 1000) == {"a": 1}
    with pytest.raises(ValueError, match=r"^it has more than 1,000 dots \(at line 2, column 1\)$"):
        load_toml(f"b = 1\n{dotted(1002)}")


def test_scalar_is_decoded() -> None:
    assert [load_json(text) for text in ("1", '"[[["', "null", "1.5")] == [1, "[[[", None, 1.5]


@each_row("text", ["NaN", "[Infinity]", "-Infinity", "1e999", "-1e400"])
def test_number_that_is_not_finite_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^JSON has no "):
        load_json(text)
