"""The thesaurus: concepts, which are groups of synonyms and related words, in nine languages.

Each line of `thesaurus.txt` is a group. `_` joins the words of a phrase, and `*` matches any more
letters. Words have no accents, because queries are folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from mcp_skills_server.runtime.search_text import words_of

_ENDING: Final = 3
"""The longest inflectional ending that is ignored, in letters: plurals, cases and tenses."""
_LONG: Final = 5
_MAX_LENGTH: Final = 40
"""The maximum number of letters of a word that is looked up; the cost is quadratic in these."""
_MIN_PART: Final = 5
"""The minimum number of letters of a part of a compound."""


class Thesaurus:
    """The look-up tables of `thesaurus.txt`."""

    def __init__(self) -> None:
        self._words: dict[str, tuple[int, ...]] = {}
        self._stems: dict[str, tuple[int, ...]] = {}
        self._phrases: dict[str, list[tuple[list[str], int]]] = {}
        """Phrases and their groups by first word. Chinese and Japanese words are phrases of
        bigrams."""
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
        """Yield the concepts of folded words and of their phrases, as tokens such as `c12x`.

        With `parts` an unknown long word may be a compound of known words.
        """
        for start, word in enumerate(words):
            numbers = self._groups_of(word)
            if not numbers and parts and 2 * _MIN_PART <= len(word) <= _MAX_LENGTH:
                numbers = self._groups_of_parts(word)
            for phrase, number in self._phrases.get(word, ()):
                if words[start : start + len(phrase)] == phrase:
                    numbers += (number,)
            for number in dict.fromkeys(numbers):
                yield f"c{number}x"

    def _groups_of(self, word: str) -> tuple[int, ...]:
        if len(word) > _MAX_LENGTH:
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

    def _groups_of_parts(self, word: str) -> tuple[int, ...]:
        """Return the groups of both parts of a compound, or those of one part if that is known."""
        for cut in range(_MIN_PART, len(word) - _MIN_PART + 1):
            first, second = self._groups_of(word[:cut]), self._groups_of(word[cut:])
            if first and second:
                return first + second
        for cut in range(_MIN_PART, len(word) - _MIN_PART + 1):
            if synonyms := self._groups_of(word[:cut]) or self._groups_of(word[cut:]):
                return synonyms
        return ()


@lru_cache(maxsize=1)
def thesaurus() -> Thesaurus:
    """Return the shared thesaurus, read at the first call."""
    return Thesaurus()
