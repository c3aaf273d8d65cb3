"""How a length is shared out, and where texts are cut."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.dialects.runtime.words import clipped, even, paragraphs

LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=20)


@given(LENGTHS, st.integers(0, 500))
def test_all_get_as_much_as_fits_and_not_a_character_more(lengths: list[int], room: int) -> None:
    most = even(lengths, room)
    assert sum(min(length, most) for length in lengths) <= room or most == 0
    if most < max(lengths):
        assert sum(min(length, most + 1) for length in lengths) > room
    else:
        assert most == max(lengths)


@given(st.text("ab &;<>", max_size=40), st.integers(0, 45))
@example("one two three", 9)
def test_a_text_is_cut_at_the_end_of_a_word(text: str, most: int) -> None:
    cut = clipped(text, most)
    assert len(cut) <= most or cut == text
    if cut != text and cut:
        kept = cut.removesuffix("...")
        assert text.startswith(kept)


def test_a_cut_leaves_no_half_of_a_word_or_of_an_entity() -> None:
    assert clipped("one two three", 12) == "one two..."
    assert clipped("one two three", 10) == "one two..."
    assert clipped("one two three", 9) == "one..."
    assert clipped("abcdefghij", 8) == "abcde..."
    assert clipped("abc&amp;def", 9) == "abc..."
    assert clipped("anything", 3) == ""


@given(st.text("ab\n", max_size=60), st.integers(1, 30))
@example("one\n\ntwo\n\nthree", 8)
def test_paragraphs_and_the_rest_make_the_text(text: str, most: int) -> None:
    kept, position = paragraphs(text, most)
    assert len(kept) <= most and text.startswith(kept)
    assert not text[len(kept) : position].strip("\n")
    assert position > 0 or not text


def test_a_cut_falls_between_paragraphs_else_between_lines_else_anywhere() -> None:
    assert paragraphs("one\n\ntwo\n\nthree", 9) == ("one\n\ntwo", 10)
    assert paragraphs("one\ntwo\nthree", 9) == ("one\ntwo", 8)
    assert paragraphs("onetwothree", 6) == ("onetwo", 6)
