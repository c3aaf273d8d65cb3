"""Which known word was meant by one with a slip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.runtime.spelling import Spelling

KNOWN = ("commit", "release", "refund", "palette", "color", "notes")


@pytest.fixture
def spelling() -> Spelling:
    made = Spelling()
    made.add(KNOWN)
    return made


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("comit", ["commit"]),  # one too few
        ("commmit", ["commit"]),  # one too many
        ("kommit", ["commit"]),  # one wrong, the first
        ("ocmmit", ["commit"]),  # two swapped
        ("cmomti", ["commit"]),  # twice two swapped
        ("kommti", []),  # two slips, one of them in the first letter
        ("releasenotes", ["release", "notes"]),  # two words
        ("commit", []),  # itself
        ("not", []),  # too short to guess
        ("x" * 41, []),  # too long to be typed
    ],
)
def test_the_words_with_the_fewest_slips_are_meant(spelling: Spelling, typed: str, meant: list[str]) -> None:
    assert spelling.near(typed) == meant


def test_a_word_is_known_until_it_was_removed_as_often_as_it_was_added(spelling: Spelling) -> None:
    spelling.add(["commit"])
    spelling.remove(["commit"])
    assert spelling.near("comit") == ["commit"]
    spelling.remove(["commit"])
    assert spelling.near("comit") == []


def test_at_most_five_words_are_meant() -> None:
    spelling = Spelling()
    spelling.add(f"tool{letter}" for letter in "abcdefgh")
    assert len(spelling.near("toolx")) == 5


@given(st.text(max_size=50))
def test_any_text_may_be_looked_for(typed: str) -> None:
    spelling = Spelling()
    spelling.add(KNOWN)
    assert set(spelling.near(typed)) <= set(KNOWN)
