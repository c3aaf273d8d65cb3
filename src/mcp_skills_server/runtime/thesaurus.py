"""Concepts: groups of words of the trade that are asked for each other, in nine languages.

`thesaurus.txt` has a group a line. `_` joins the words of a phrase, `*` stands for any further
letters. Words of other languages than English stand without their accents, as questions are folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from mcp_skills_server.runtime.search_text import words_of

_ENDING: Final = 3
"""Letters that a long word may have beyond its entry: the endings of plurals, cases and tenses."""
_LONG: Final = 5
_LONGEST: Final = 40
"""Letters of a word that is looked up: what is longer is none, and would cost the square of its
length."""
_SHORTEST_PART: Final = 5
"""Letters of a word that may be a part of a compound."""


class Thesaurus:
    """The groups of `thesaurus.txt`."""

    def __init__(self) -> None:
        self._words: dict[str, tuple[int, ...]] = {}
        self._stems: dict[str, tuple[int, ...]] = {}
        self._phrases: dict[str, list[tuple[list[str], int]]] = {}
        """Phrases and their groups by first words. Chinese and Japanese words are phrases of pairs
        of letters."""
        text = Path(__file__).with_name("thesaurus.txt").read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines()):
            for entry in line.replace("|", " ").split():
                self._add(entry, number)

    def _add(self, entry: str, number: int) -> None:
        words = words_of(entry.rstrip("*").replace("_", " "))
        if len(words) > 1:
            self._phrases.setdefault(words[0], []).append((words, number))
            return
        table = self._stems if entry.endswith("*") else self._words
        for word in words:
            table[word] = (*table.get(word, ()), number)

    def concepts(self, words: list[str], *, parts: bool = False) -> Iterator[str]:
        """Yield the concepts of each of these folded words and of the phrases they form, as words
        of the index.

        With `parts` a long word that is none may be a compound of two.
        """
        for start, word in enumerate(words):
            numbers = self._of(word)
            if not numbers and parts and 2 * _SHORTEST_PART <= len(word) <= _LONGEST:
                numbers = self._of_parts(word)
            for phrase, number in self._phrases.get(word, ()):
                if words[start : start + len(phrase)] == phrase:
                    numbers += (number,)
            for number in dict.fromkeys(numbers):
                yield f"c{number}x"

    def _of(self, word: str) -> tuple[int, ...]:
        if len(word) > _LONGEST:
            return ()
        numbers = self._words.get(word, ())
        if not numbers and len(word) > _LONG:
            for ending in range(1, _ENDING + 1):
                stem = word[:-ending]
                if len(stem) >= _LONG and stem in self._words:
                    numbers = self._words[stem]
                    break
        if not numbers and word[-1:] == "s":
            numbers = self._words.get(word[:-1], ())
        for length in range(3, len(word) + 1):
            numbers += self._stems.get(word[:length], ())
        return numbers

    def _of_parts(self, word: str) -> tuple[int, ...]:
        for cut in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1):
            first, second = self._of(word[:cut]), self._of(word[cut:])
            if first and second:
                return first + second
        for cut in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1):
            if found := self._of(word[:cut]) or self._of(word[cut:]):
                return found
        return ()


@lru_cache(maxsize=1)
def thesaurus() -> Thesaurus:
    """Return the one thesaurus, read at the first question."""
    return Thesaurus()
