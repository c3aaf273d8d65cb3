"""The vocabulary: spelling corrections, and known words similar to an unknown one."""

from __future__ import annotations

import sqlite3
from weakref import finalize

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.runtime.search_text import description_words, title_words
from mcp_skills_server.runtime.vocabulary import Vocabulary
from tables import each_row


def vocabulary(*words: str, letters: int = 2) -> Vocabulary:
    database = sqlite3.connect(":memory:")
    built = Vocabulary(database, "words", letters, lambda _: True)
    finalize(built, database.close)
    built.add({*words})
    return built


@each_row(("word", "similar"), [
    ("phylogenetik", ["phylogenetic"]), ("zeitreihenanalyse", ["zeitreihen"]), ("visualisation", ["visualization"]),
    ("visualization", []),  # the word itself is left out
    ("times", ["time"]), ("timetable", []),  # a short word is a part of too many words
    ("imagemagickwand", []), ("colourizationing", ["colour"]),
    ("x" * 50, []),  # truncated to the known word
    ("qqqq", []), ("ab", []), ("", []),
])  # fmt: skip
def test_similar_words_share_trigrams(word: str, similar: list[str]) -> None:
    known = ("phylogenetic", "zeitreihen", "visualization", "time", "image", "colour", "x" * 40)
    assert vocabulary(*known, letters=3).similar(word) == similar


def test_similar_words_and_corrections_are_limited() -> None:
    known = vocabulary("visualization", *(f"visualization{letter}" for letter in "abcdef"), letters=3)
    assert known.similar("visualizations") == ["visualization"] + [f"visualization{letter}" for letter in "abc"]
    assert known.similar("visualize", least=0.99) == []
    assert len(vocabulary(*(f"tool{letter}" for letter in "abcdefgh")).corrections("toolx")) == 5


def test_title_words_include_singulars() -> None:
    texts = ("release-notes", "Glass", "tags 2", "description")
    assert title_words(texts) == {"release", "notes", "note", "glass", "tags"}


def test_description_words_have_4_to_40_letters() -> None:
    words = {"abcd", "x" * 40}
    assert description_words(("abc", *words, "y" * 41)) == words
    assert description_words(("abc", *words, f"{'y' * 41} ünïcode")) == {*words, "ünïcode"}


KNOWN = ("commit", "release", "refund", "palette", "color", "notes", "at", "a", "nest", "x" * 40)


@each_row(("typed", "corrections"), [
    ("comit", ["commit"]), ("commmit", ["commit"]), ("kommit", ["commit"]), ("ocmmit", ["commit"]),
    ("cmomti", ["commit"]),  # two transpositions
    ("kommti", []),  # two errors, one of them in the first letter
    ("releasenotes", ["release", "notes"]), ("commit", []),
    ("atnotes", ["at", "notes"]), ("notesat", ["notes", "at"]),
    ("anotes", ["notes"]), ("notesa", ["notes"]),  # a single letter is not split off
    ("next", ["nest"]), ("x" * 39 + "y", ["x" * 40]),
    ("nst", []), ("x" * 41, []),  # too short, too long
])  # fmt: skip
def test_corrections_have_the_smallest_edit_distance(typed: str, corrections: list[str]) -> None:
    assert vocabulary(*KNOWN).corrections(typed) == corrections


@each_row(
    ("typed", "word"),
    [("grpah", "graph"), ("rgaph", "graph"), ("garph", "graph"), ("graoh", "graph"), ("gaph", "graph"),
     ("grraph", "graph"), ("gitt", "gits"), ("lnit", "lint")],
)  # fmt: skip
def test_single_typo_is_corrected_in_large_vocabulary(typed: str, word: str) -> None:
    many = (f"{first}{rest}" for first in "abcdefghijklmnop" for rest in ("alpha", "graphs", "itch", "rapid", "lint"))
    assert word in vocabulary("graph", "gits", "lint", *many).corrections(typed)


def test_word_is_known_until_removed_as_often_as_added() -> None:
    known = vocabulary("image", letters=3)
    known.add({"image"})
    known.remove({"image"})
    assert known.similar("images") == known.corrections("imgae") == ["image"]
    known.remove({"image"})
    assert known.similar("images") == known.corrections("imgae") == []
    known.add({"image"})
    assert known.similar("images") == ["image"]


@given(st.from_regex(r"[^\W_]{0,50}", fullmatch=True))
def test_any_word_can_be_looked_up(typed: str) -> None:
    known = vocabulary(*KNOWN, typed)
    assert {*known.corrections(typed), *known.similar(typed)} <= {*KNOWN}
