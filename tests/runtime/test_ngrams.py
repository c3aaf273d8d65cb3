"""Which known words look like another one."""

from __future__ import annotations

import sqlite3

import pytest

from mcp_skills_server.runtime.ngrams import NGrams


@pytest.fixture
def known() -> NGrams:
    ngrams = NGrams(sqlite3.connect(":memory:"))
    ngrams.add({"phylogenetic", "zeitreihen", "visualization", "time", "image"})
    return ngrams


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("phylogenetik", ["phylogenetic"]),
        ("zeitreihenanalyse", ["zeitreihen"]),
        ("visualisation", ["visualization"]),
        ("visualization", []),  # itself is no other
        ("times", ["time"]),
        ("timetable", []),  # a short word is a part of too many
        ("qqqq", []),
        ("ab", []),
        ("", []),
    ],
)
def test_words_that_share_runs_of_letters_are_near(known: NGrams, word: str, near: list[str]) -> None:
    assert known.near(word) == near


def test_what_is_known_twice_is_known_until_it_is_removed_twice(known: NGrams) -> None:
    known.add({"image"})
    known.remove({"image"})
    assert known.near("images") == ["image"]
    known.remove({"image"})
    assert known.near("images") == []
    known.add({"image"})
    assert known.near("images") == ["image"]


def test_the_most_alike_comes_first_and_there_are_no_more_than_four(known: NGrams) -> None:
    known.add({f"visualization{letter}" for letter in "abcdef"})
    assert known.near("visualizations") == ["visualization"] + [f"visualization{letter}" for letter in "abc"]
    assert known.near("visualize", least=0.99) == []
