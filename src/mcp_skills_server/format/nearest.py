"""Suggestions for an unknown name: the known names that look most like it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_COMPARED: Final = 64
"""Characters that are compared, from the end: the names of neighbours begin alike, and a comparison
is quadratic."""


def nearest(wanted: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return up to `most` of the names that look like this one, capital letters or not, the best
    first."""
    known = {name[-_COMPARED:].casefold(): name for name in names}
    return [
        known[each]
        for each in get_close_matches(wanted[-_COMPARED:].casefold(), known, most, cutoff=0.55)
    ]
