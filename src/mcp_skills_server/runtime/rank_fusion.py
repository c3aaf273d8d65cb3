"""Several rankings of the same rows made one, by the places that a row has in them (reciprocal rank fusion). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Final, TypeAlias

Ranking: TypeAlias = Iterator[tuple[int, float]]
"""Rows with their ranks, the lowest and best first; rows of equal rank are equally good."""

_SOFTNESS: Final = 60
"""How little the first places differ; the usual number."""
FUSED: Final = 60
"""Places of each ranking that count."""
_MOST_EQUALS: Final = 1_000
_WEIGHT: Final = 3.0
"""How much a place in the first ranking weighs."""


def fused(first: Ranking, *others: Ranking, peer: Iterable[tuple[int, float]] = ()) -> Ranking:
    """The rows by the sum of 1 / (60 + place) over all rankings; then what is left of the first one, in its order.

    The first ranking and its peer count three times: the others correct them.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    rest = _score(first, scores, _WEIGHT)
    _score(iter(peer), scores, _WEIGHT)
    for other in others:
        _score(other, scores, 1.0)
    yield from sorted(((row, -score) for row, score in scores.items()), key=itemgetter(1))
    yield from (each for each in rest if each[0] not in scores)


def summed(first: Sequence[tuple[int, float]], second: Ranking) -> Ranking:
    """The rows of both rankings by the sum of their ranks, where a row that is not in one has none there."""
    known = dict(first)
    both = {row: rank + known.get(row, 0.0) for row, rank in second}
    return merge(
        sorted(both.items(), key=itemgetter(1)), (each for each in first if each[0] not in both), key=itemgetter(1)
    )


def _score(ranking: Ranking, scores: defaultdict[int, float], weight: float) -> Ranking:
    """Count the first places of a ranking, whole groups of equals, and give back what is left."""
    place, before = 0, None
    for count, (row, rank) in enumerate(ranking):
        if rank != before:
            place, before = count, rank
        if place >= FUSED or count >= _MOST_EQUALS:
            return chain([(row, rank)], ranking)
        scores[row] += weight / (_SOFTNESS + place)
    return ranking
