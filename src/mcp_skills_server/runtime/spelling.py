"""Which known word somebody may have meant who made a slip of the typist. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import nlargest
from typing import Final, TypeAlias

_LIKELY: Final = 30
"""Known words that are compared letter by letter."""
SpellingState: TypeAlias = "tuple[dict[str, int], dict[str, list[int]]]"
"""All that a `Spelling` knows: how many times each word, and the places there of those that have these two letters."""


class Spelling:
    """Words that are known, and which of them somebody may have meant.

    Args:
        state: what another one knew; None for nothing.
    """

    def __init__(self, state: SpellingState | None = None) -> None:
        self._words: Counter[str] = Counter()
        self._by_pair: defaultdict[str, set[str]] = defaultdict(set)
        if state is not None:
            counts, by_pair = state
            self._words.update(counts)
            words = list(counts)
            self._by_pair.update((pair, {words[place] for place in places}) for pair, places in by_pair.items())

    @property
    def state(self) -> SpellingState:
        """What it knows, to make another one of it."""
        places = {word: place for place, word in enumerate(self._words)}
        by_pair = {pair: [places[word] for word in words] for pair, words in self._by_pair.items()}
        return dict(self._words), by_pair

    def add(self, words: Iterable[str]) -> None:
        """Know these words, once more."""
        for word in words:
            if word not in self._words:
                for pair in _letter_pairs(word):
                    self._by_pair[pair].add(word)
            self._words[word] += 1

    def remove(self, words: Iterable[str]) -> None:
        """Know these words once less."""
        for word in words:
            self._words[word] -= 1
            if not self._words[word]:
                del self._words[word]
                for pair in _letter_pairs(word):
                    self._by_pair[pair].discard(word)

    def near(self, word: str) -> list[str]:
        """The words that are fewest slips away, at most two slips and at most five words.

        Of words as short as three letters, and of longer than people type, nothing is guessed. A word that stands for
        two known ones gives both.
        """
        if not 4 <= len(word) <= 40:
            return []
        for cut in range(2, len(word) - 1):
            if word[:cut] in self._words and word[cut:] in self._words:
                return [word[:cut], word[cut:]]
        shared: Counter[str] = Counter()
        for pair in _letter_pairs(word):
            shared.update(self._by_pair.get(pair, ()))
        likely = (each for each in shared if abs(len(each) - len(word)) <= 2 and each != word)
        near: dict[str, int] = {}
        for each in nlargest(_LIKELY, likely, key=lambda each: (shared[each] / (len(each) + len(word)), each)):
            slips = _slips(word, each)
            # With two slips of a few letters anything is near anything; people do get the first letter right.
            if slips == 1 or (slips == 2 and each[0] == word[0]):
                near[each] = slips
        least = min(near.values(), default=0)
        return [each for each, slips in near.items() if slips == least][:5]


def _letter_pairs(word: str) -> set[str]:
    padded = f" {word} "
    return {padded[start : start + 2] for start in range(len(padded) - 1)}


def _slips(one: str, other: str) -> int:
    """How many letters are wrong, missing, too many or swapped with the next; 3 where there are more than two."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        # Further than two letters from the diagonal there are three slips already.
        here = [3] * (len(other) + 1)
        here[0] = row
        for column in range(max(row - 2, 1), min(row + 2, len(other)) + 1):
            its = other[column - 1]
            cost = min(above[column] + 1, here[column - 1] + 1, above[column - 1] + (letter != its))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == its:
                cost = min(cost, before[column - 2] + 1)
            here[column] = cost
        if min(here) > 2 and min(above) > 2:
            return 3
        before, above = above, here
    return min(above[-1], 3)
