"""Sorted lists of texts that change by a few: an insertion costs less than a sort of all that was there."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import Final

_FEW: Final = 100


def resorted(order: list[str], gone: Collection[str], came: Collection[str]) -> list[str]:
    """Return a new sorted list: `order`, which is sorted, without `gone`, which are in it, and with `came`, which are
    not.
    """
    if len(gone) + len(came) > _FEW:
        without = set(gone)
        return sorted([*(each for each in order if each not in without), *came])
    out = order.copy()
    for each in gone:
        del out[bisect_left(out, each)]
    for each in came:
        insort(out, each)
    return out
