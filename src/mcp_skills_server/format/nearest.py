"""Suggestions for an unknown name: the known names that look most like it.

Compared by the pairs of letters that two names share, in a time that grows with their lengths alone: both may come from
outside, and a distance that counts edits can be made to take seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import Final

_COMPARED: Final = 64
"""Characters that are looked at, from the end: the names of neighbours begin alike."""
_ALIKE: Final = 0.5


def nearest(wanted: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return up to `most` of the names that look like this one, the best first.

    Half of the pairs of letters must be the same (Sørensen-Dice), capital letters or not.
    """
    pairs = _pairs(wanted)
    scored = ((_likeness(pairs, _pairs(name)), name) for name in names)
    # A name may itself hold the character that pads the pairs, so that another has the same pairs.
    alike = ((score, name == wanted, name) for score, name in scored if score >= _ALIKE)
    return [name for *_, name in nlargest(most, alike, key=lambda each: each[:2])]


def _pairs(name: str) -> frozenset[str]:
    padded = f"\0{name[-_COMPARED:].casefold()}\0"
    return frozenset(padded[place : place + 2] for place in range(len(padded) - 1))


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))
