"""Spelling correction and fuzzy matching of words against the words of the skills.

Candidates are the words that share character n-grams. An FTS5 table holds the n-grams, in a tenth
of the memory of Python sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlite3 import Connection

_MAX_LENGTH: Final = 40
"""The maximum number of letters of a word that are compared."""
_PART: Final = 6
"""The minimum number of letters of a word that matches as a part of another."""
_RARE: Final = 4
"""The number of a word's rarest n-grams that are looked up, as common ones are in most words."""
_MAX_CANDIDATES: Final = 60
"""The maximum number of candidates that a word is compared with."""
MIN_SIMILARITY: Final = 0.6
"""The minimum Dice coefficient of the n-grams of two forms of a word."""


class Vocabulary:
    """A multiset of known words with fuzzy look-up. Not thread-safe.

    `table` is the name of its SQL table, which must be trusted. `n` is the length of the n-grams:
    2 finds typing errors of short words, 3 finds similar words. `is_known` tells whether a word may
    be the result of a query.
    """

    def __init__(
        self, database: Connection, table: str, n: int, is_known: Callable[[str], bool]
    ) -> None:
        database.execute(
            f"CREATE VIRTUAL TABLE {table} USING fts5(ngrams, content='', tokenize='ascii')"
        )
        database.execute(f"CREATE VIRTUAL TABLE {table}_ngrams USING fts5vocab({table}, row)")
        self._db = database
        self._is_known = is_known
        self._insert = f"INSERT INTO {table}(rowid, ngrams) VALUES (?, ?)"  # noqa: S608
        self._delete = f"INSERT INTO {table}({table}, rowid, ngrams) VALUES ('delete', ?, ?)"  # noqa: S608
        self._rare = (
            f"SELECT term FROM {table}_ngrams WHERE term IN (%s) ORDER BY doc, term LIMIT {_RARE}"  # noqa: S608
        )
        order = f"ORDER BY bm25({table}), rowid LIMIT {_MAX_CANDIDATES}"
        self._sharing = f"SELECT rowid FROM {table} WHERE {table} MATCH ? {order}"  # noqa: S608
        self._n = n
        self._counts: Counter[str] = Counter()
        self._rows: dict[str, int] = {}
        self._words: dict[int, str] = {}
        self._last = 0

    def add(self, words: Set[str]) -> None:
        """Add one occurrence of each of these words."""
        # Deterministic, because the order of the rows breaks ties.
        for word in sorted(words - self._rows.keys()):
            self._last = row = self._last + 1
            self._rows[word], self._words[row] = row, word
            self._db.execute(self._insert, (row, " ".join(self._ngrams(word))))
        self._counts.update(words)

    def remove(self, words: Set[str]) -> None:
        """Remove one occurrence of each of these words."""
        for word in words:
            self._counts[word] -= 1
            if not self._counts[word]:
                del self._counts[word]
                row = self._rows.pop(word)
                del self._words[row]
                self._db.execute(self._delete, (row, " ".join(self._ngrams(word))))

    def similar(self, word: str, least: float = MIN_SIMILARITY) -> list[str]:
        """Return up to four similar words: by Dice coefficient (`least`), or one in the other."""
        word = word[:_MAX_LENGTH]
        ngrams = self._ngrams(word)
        alike: list[tuple[float, str]] = []
        rare = self._db.execute(self._rare % ", ".join("?" * len(ngrams)), ngrams)
        for other in self._sharing_one_of([ngram for (ngram,) in rare]):
            its = self._ngrams(other)
            share = 2 * len({*ngrams} & {*its}) / (len({*ngrams}) + len({*its}))
            if min(len(word), len(other)) >= _PART and (word in other or other in word):
                share = max(share, 0.99)
            if share >= least and other != word and self._is_known(other):
                alike.append((-share, other))
        return [other for _, other in sorted(alike)[:4]]

    def corrections(self, word: str) -> list[str]:
        """Return up to five known words at the least edit distance, which is at most two.

        A word of two joined known words returns these. A word of less than 4 or more than 40
        letters is not corrected.
        """
        if not 4 <= len(word) <= _MAX_LENGTH:
            return []
        for cut in range(2, len(word) - 1):
            parts = [word[:cut], word[cut:]]
            if all(part in self._rows and self._is_known(part) for part in parts):
                return parts
        near: dict[str, int] = {}
        for other in self._sharing_one_of(self._ngrams(word)):
            distance = _edit_distance(word, other)
            # At distance two many short words match, so the first letter must be right, as it
            # mostly is.
            is_near = distance == 1 or (distance == 2 and other[0] == word[0])
            if is_near and self._is_known(other):
                near[other] = distance
        least = min(near.values(), default=0)
        return [other for other, distance in near.items() if distance == least][:5]

    def _sharing_one_of(self, ngrams: list[str]) -> list[str]:
        """Return the words with any of these n-grams, by BM25 rank."""
        if not ngrams:
            return []
        rows = self._db.execute(self._sharing, (" OR ".join(f'"{ngram}"' for ngram in ngrams),))
        return [self._words[row] for (row,) in rows]

    def _ngrams(self, word: str) -> list[str]:
        """Return the n-grams of a word, padded with "0" at both ends."""
        padded = f"0{word}0"
        return [padded[start : start + self._n] for start in range(len(padded) - self._n + 1)]


def _edit_distance(one: str, other: str) -> int:
    """Return the Damerau-Levenshtein distance of two words, or 3 if it is more than two."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        # Cells more than two off the diagonal have a distance of three or more.
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
