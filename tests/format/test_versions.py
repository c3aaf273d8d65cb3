"""Versions: the order of semver.org, its examples word for word, and what any order keeps for whatever is written."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.manifest import Version
from mcp_skills_server.format.manifest import parse_version as parse
from tables import each_row

NUMBERS = st.integers(0, 10**6).map(str)
WORDS = st.from_regex(r"(0|[1-9][0-9]{0,5}|[0-9]{0,5}[a-zA-Z-][0-9a-zA-Z-]{0,5})", fullmatch=True)
BUILDS = st.from_regex(r"[0-9A-Za-z-]{1,5}(\.[0-9A-Za-z-]{1,5})?", fullmatch=True)


@st.composite
def versions(draw: st.DrawFn) -> Version:
    """Any version, loose ones too."""
    text = ".".join(draw(st.lists(NUMBERS, min_size=1, max_size=3)))
    if draw(st.booleans()):
        text += "-" + ".".join(draw(st.lists(WORDS, min_size=1, max_size=3)))
    if draw(st.booleans()):
        text += "+" + draw(BUILDS)
    found = parse(text)
    assert found is not None
    return found


def parsed(text: str) -> Version:
    found = parse(text)
    assert found is not None, text
    return found


@pytest.mark.requirement("SP-9")
@each_row("ascending", [
    "1.0.0 2.0.0 2.1.0 2.1.1", "1.0.0-alpha 1.0.0",
    "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0",
    "1.9.0 1.10.0 1.11.0", "0.9 1 1.0.1 1.2", "1.0.0-1 1.0.0--1",
])  # fmt: skip
def test_the_order_is_that_of_semantic_versioning(ascending: str) -> None:
    keys = [parsed(text).key for text in ascending.split()]
    assert all(one < other for one, other in itertools.pairwise(keys))


@each_row("text", ["", "v1.0.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "1.0.0-a..b", "a",
    "1.0.0\n", "1.0.0 ", "\uff11.0.0", "1" * 20, "1.0.0-" + "a" * 200])  # fmt: skip
def test_what_is_no_version_is_none(text: str) -> None:
    assert parse(text) is None


def test_numbers_that_are_left_out_count_as_zero_and_are_told() -> None:
    assert [parsed(text).is_short for text in ("1", "1.0", "1.0.0", "1.0-rc.1")] == [True, True, False, True]
    assert parsed("1").key[:3] == parsed("1.0.0").key[:3]


@given(versions(), versions(), versions())
def test_any_versions_are_in_one_order(one: Version, two: Version, three: Version) -> None:
    assert (one.key < two.key) + (one.key == two.key) + (one.key > two.key) == 1
    assert (one.key == two.key) == (one.text == two.text)
    low, middle, high = sorted((one, two, three), key=lambda each: each.key)
    assert low.key <= middle.key <= high.key and low.key <= high.key


@given(versions())
def test_a_prerelease_comes_before_its_release(version: Version) -> None:
    numbers = ".".join(str(each) for each in version.key[0])
    assert parsed(f"{numbers}-rc.1").key < parsed(numbers).key
