"""Which known words an unknown one may stand for: by a slip of the typist, or as another form of it."""

from __future__ import annotations

import sqlite3
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_skills_server.runtime.search_text import description_words, title_words
from mcp_skills_server.runtime.vocabulary import Vocabulary, _edit_distance
from tables import each_row


def vocabulary(*words: str, letters: int = 2) -> Vocabulary:
    known = Vocabulary(sqlite3.connect(":memory:"), "words", letters)
    known.add({*words})
    return known


@each_row(
    ("word", "alike"),
    [
        ("phylogenetik", ["phylogenetic"]), ("zeitreihenanalyse", ["zeitreihen"]), ("visualisation", ["visualization"]),
        ("visualization", []),  # itself is no other
        ("times", ["time"]), ("timetable", []),  # a short word is a part of too many
        ("imagemagickwand", []), ("colourizationing", ["colour"]), ("x" * 50, ["x" * 40]),
        ("qqqq", []), ("ab", []), ("", []),
    ],
)  # fmt: skip
def test_similar_words_share_trigrams(word: str, alike: list[str]) -> None:
    known = ("phylogenetic", "zeitreihen", "visualization", "time", "image", "colour", "x" * 40)
    assert vocabulary(*known, letters=3).similar(word) == [each for each in alike if each != word[:40]]


def test_similar_words_and_corrections_are_limited() -> None:
    known = vocabulary("visualization", *(f"visualization{letter}" for letter in "abcdef"), letters=3)
    assert known.similar("visualizations") == ["visualization"] + [f"visualization{letter}" for letter in "abc"]
    assert known.similar("visualize", least=0.99) == []
    assert len(vocabulary(*(f"tool{letter}" for letter in "abcdefgh")).corrections("toolx")) == 5


def test_title_words_include_singulars() -> None:
    texts = ("release-notes", "Glass", "tags 2", "description")
    assert title_words(texts) == {"release", "notes", "note", "glass", "tags"}


def test_description_words_have_4_to_40_letters() -> None:
    words = ["abcd", "x" * 40]
    for more in ("", "ünïcode"):
        texts = ("abc", *words, f"{'y' * 41} {more}")
        assert description_words(texts) == {*words, more} - {""}


KNOWN = ("commit", "release", "refund", "palette", "color", "notes", "at", "a", "nest", "x" * 40)


@each_row(
    ("typed", "meant"),
    [
        ("comit", ["commit"]), ("commmit", ["commit"]), ("kommit", ["commit"]), ("ocmmit", ["commit"]),
        ("cmomti", ["commit"]),  # twice two swapped
        ("kommti", []),  # two slips, one of them in the first letter
        ("releasenotes", ["release", "notes"]), ("commit", []),
        ("atnotes", ["at", "notes"]), ("notesat", ["notes", "at"]),
        ("anotes", ["notes"]), ("notesa", ["notes"]),  # one letter is no word
        ("next", ["nest"]), ("x" * 39 + "y", ["x" * 40]),
        ("nst", []), ("x" * 41, []),  # too short to guess, too long to be typed
    ],
)  # fmt: skip
def test_corrections_have_the_smallest_edit_distance(typed: str, meant: list[str]) -> None:
    assert vocabulary(*KNOWN).corrections(typed) == meant


@each_row("typed", ["grpah", "rgaph", "garph", "graoh", "gaph", "grraph", "gitt", "lnit"])
def test_single_typo_is_corrected_in_large_vocabulary(typed: str) -> None:
    many = (f"{first}{rest}" for first in "abcdefghijklmnop" for rest in ("alpha", "graphs", "itch", "rapid", "lint"))
    known = vocabulary("graph", "gits", "lint", *many)
    assert {"gitt": "gits", "lnit": "lint"}.get(typed, "graph") in known.corrections(typed)


def test_word_is_known_until_removed_as_often_as_added() -> None:
    known = vocabulary("image", letters=3)
    known.add({"image"})
    known.remove({"image"})
    assert known.similar("images") == known.corrections("imgae") == ["image"]
    known.remove({"image"})
    assert known.similar("images") == known.corrections("imgae") == []
    known.add({"image"})
    assert known.similar("images") == ["image"]


@cache
def distance(one: str, other: str) -> int:
    """As it is defined: letters that are put in, left out or replaced, and neighbours that change places."""
    if not one or not other:
        return len(one) + len(other)
    ways = [distance(one[:-1], other) + 1, distance(one, other[:-1]) + 1]
    ways += [distance(one[:-1], other[:-1]) + (one[-1] != other[-1])]
    if len(one) > 1 and one[-2:] == other[:-3:-1]:
        ways += [distance(one[:-2], other[:-2]) + 1]
    return min(ways)


@settings(max_examples=10 * settings().max_examples)
@given(*[st.text("abc", max_size=6)] * 2)
def test_edit_distance_is_exact_up_to_two(one: str, other: str) -> None:
    assert _edit_distance(one, other) == min(distance(one, other), 3)


@given(st.from_regex(r"[^\W_]{0,50}", fullmatch=True))
def test_any_word_can_be_looked_up(typed: str) -> None:
    known = vocabulary(*KNOWN, typed)
    assert {*known.corrections(typed), *known.similar(typed)} <= {*KNOWN}
