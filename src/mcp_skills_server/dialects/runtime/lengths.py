"""How a bounded length is shared out, and where a text is cut. Lengths are characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_ELLIPSIS: Final = "..."
_HALF_AN_ENTITY: Final = re.compile(r"&#?\w*$")
_ENTITIES: Final = ("&amp;", "&lt;", "&gt;", "&quot;")
_LONGEST_WORD: Final = 30
"""A cut goes back to the end of a word over so many characters."""
_LEFT_OUT: Final = " ,;:-("
"""What does not stand before the dots."""


def one_line(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())


def even(lengths: Iterable[int], budget: int) -> int:
    """Return how long each of these may be, the same for all, so that together they fit: what short ones leave, long
    ones get.

    The greatest length where all of them fit.
    """
    ordered = sorted(lengths)
    for index, length in enumerate(ordered):
        share = max(budget, 0) // (len(ordered) - index)
        if length > share:
            return share
        budget -= length
    return max(ordered, default=0)


def clipped(text: str, most: int) -> str:
    """Return the text, or its beginning up to the end of a word and three dots, at most so long."""
    if len(text) <= most:
        return text
    budget = most - len(_ELLIPSIS)
    if budget <= 0:
        return ""
    kept = text[:budget]
    if not text[budget].isspace():
        # Where no blank is near, as in Chinese, the cut falls into a word, and must not leave half of an entity.
        whole = kept.rpartition(" ")[0]
        kept = whole if whole and len(whole) >= budget - _LONGEST_WORD else _HALF_AN_ENTITY.sub("", kept)
    while kept and kept[-1] in _LEFT_OUT and not kept.endswith(_ENTITIES):
        kept = kept[:-1]
    return kept + _ELLIPSIS


def paragraphs(text: str, most: int) -> tuple[str, int]:
    """Return the whole paragraphs at the beginning of a text, at most so long, and the position to go on from.

    A first paragraph that is longer is cut at the end of a line, a line that is longer anywhere.
    """
    if len(text) <= most:
        return text, len(text)
    for mark in ("\n\n", "\n"):
        end = text.rfind(mark, 0, most + len(mark))
        if end > 0:
            rest = text[end:]
            return text[:end], end + len(rest) - len(rest.lstrip("\n"))
    return text[:most], most
