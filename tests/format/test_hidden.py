"""Detection and removal of hidden characters."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.format import hidden
from tables import each_row

_COMMON = "ab1#* \n\u00ad\u034f\u200b\u200c\u200d\u200e\u202e\u2066\u3164\ufe0e\ufe0f\ufeff😀葛م"
_RARE = "\U000e0041\U000e0100\U000e01ef\u180b\u1820"
ANY_TEXT = st.text(st.sampled_from(_COMMON + _RARE) | st.characters(), max_size=60)


@each_row("text", [
    "A\U000e0041\U000e0042",  # tag characters
    "\u202eevil",  # a direction override
    "in\u200bstall", "co\u00adop",
    "\u3164",  # the Hangul filler is a letter to most programs
    "\u115fx",
    "a\ufe0f",  # a variation selector without an effect
    "😀\ufe0f\ufe01",  # further variation selectors can carry data, a byte each
    "x\U000e0100", "a\u200db",
    "م\u200c\u200cم",  # a second joiner has no effect
    "end\u200d", "abc\u200fdef", "a\ufeffb", "\x1b[31mred", "a\u2028b", "\u2800a\u2062b",
])  # fmt: skip
def test_hidden_text_is_found_and_stripped(text: str) -> None:
    assert list(hidden.find(text)) and not list(hidden.find(hidden.strip(text)))


@each_row("text", [
    "plain text\twith a tab\r\nand lines", "👩\u200d👩\u200d👧", "❤\ufe0f\u200d🔥", "1\ufe0f\u20e3 #\ufe0f\u20e3",
    "→\ufe0f ©\ufe0e",
    "\u0645\u06cc\u200c\u062e",  # Persian
    "क\u094d\u200dष", "葛\U000e0100飾", "عربي\u200f abc", "\u1820\u180b",
    "\ufeffa byte order mark at the beginning", "licence\x0cpage two", "한글 日本語 e\u0301",
])  # fmt: skip
def test_visible_effects_of_invisible_characters_are_kept(text: str) -> None:
    """Emoji, joined scripts, direction marks and variants keep their form."""
    assert (list(hidden.find(text)), hidden.strip(text)) == ([], text)


@pytest.mark.hypothesis
@given(ANY_TEXT)
@example("ab\u00adc\u3164")
def test_strip_removes_exactly_the_characters_found(text: str) -> None:
    found = dict(hidden.find(text))
    assert all(text[at] == character for at, character in found.items())
    assert hidden.strip(text) == "".join(each for at, each in enumerate(text) if at not in found)
