"""Who gives way when all places are taken: nobody loses one to somebody who holds as many.

Used for connections and for legacy sessions. An owner may hold all places that nobody else wants. When all are taken,
a newcomer gets one of the owner who holds most; who holds most gets only its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def giver(held: Mapping[str, int], newcomer: str, able: Callable[[str], bool]) -> str | None:
    """The owner who gives a place to `newcomer`: of those who are able, the one who holds most.

    Args:
        held: how many places each owner holds.
        newcomer: the owner who wants one.
        able: whether an owner has a place that may be taken.
    """
    mine = held.get(newcomer, 0)
    able_ones = [owner for owner, count in held.items() if (count > mine or owner == newcomer) and able(owner)]
    return max(able_ones, key=held.__getitem__, default=None)
