"""Suggestions for an unknown name: the known names that look most like it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_COMPARED: Final = 64
"""Compared characters at a name's end: related names begin alike, and comparing is quadratic."""


def nearest(wanted: str, names: Iterable[str], most: int = 3, least: float = 0.55) -> list[str]:
    """Return up to `most` names that resemble `wanted`, ignoring case, the most similar first.

    `least` is the minimum of their similarity, by difflib.
    """
    known = {name[-_COMPARED:].casefold(): name for name in names}
    close = get_close_matches(wanted[-_COMPARED:].casefold(), known, most, least)
    return [known[folded] for folded in close]
