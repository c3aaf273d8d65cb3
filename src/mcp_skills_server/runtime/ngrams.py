"""Which known words look like a word that nobody knows: in another form, language or composition.

Words are compared by the runs of three letters that they share. The runs lie in a table of SQLite's full text search,
which is a tenth of the size of sets.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from sqlite3 import Connection

_LONGEST: Final = 40
"""Letters of a word that are compared."""
_PART: Final = 6
"""Letters of a word that may be a part of another."""
_ASKED: Final = 4
_LIKELY: Final = 60
"""Runs of a word that are looked up, and words that are compared with it."""
_MOST: Final = 4
LIKE: Final = 0.6
"""The part of the runs that two words share which mean the same."""
TABLE: Final = "CREATE VIRTUAL TABLE grams USING fts5(runs, content='', tokenize='ascii')"
NGramsState: TypeAlias = "tuple[dict[str, int], dict[str, int], dict[str, int]]"
"""What an `NGrams` knows beside its table: the row of each word, how many times it is known, and how often each run is
in words."""


class NGrams:
    """Words that are known, and which of them look like another one.

    Args:
        database: where the table is made.
        state: what belongs to the table that is there already; None makes a new one.
    """

    def __init__(self, database: Connection, state: NGramsState | None = None) -> None:
        self._db = database
        self._counts: Counter[str] = Counter()
        self._rows: dict[str, int] = {}
        self._frequency: Counter[str] = Counter()
        if state is None:
            self._db.execute(TABLE)
        else:
            rows, counts, frequency = state
            self._rows.update(rows)
            self._counts.update(counts)
            self._frequency.update(frequency)
        self._words = {row: word for word, row in self._rows.items()}
        self._last = max(self._words, default=0)

    @property
    def state(self) -> NGramsState:
        """What it knows, to make another one of it and of a copy of its table."""
        return dict(self._rows), dict(self._counts), dict(self._frequency)

    def add(self, words: set[str]) -> None:
        """Know these words, once more."""
        self._counts.update(words)
        # In one order in every process: the rows decide between words that are equally near.
        for word in sorted(words.difference(self._rows)):
            self._last = row = self._last + 1
            self._rows[word], self._words[row] = row, word
            runs = _runs(word)
            self._frequency.update(runs)
            self._db.execute("INSERT INTO grams(rowid, runs) VALUES (?, ?)", (row, " ".join(runs)))

    def remove(self, words: set[str]) -> None:
        """Know these words once less."""
        for word in words:
            self._counts[word] -= 1
            if not self._counts[word]:
                del self._counts[word]
                row = self._rows.pop(word)
                del self._words[row]
                runs = _runs(word)
                self._frequency.subtract(runs)
                self._db.execute("INSERT INTO grams(grams, rowid, runs) VALUES ('delete', ?, ?)", (row, " ".join(runs)))

    def near(self, word: str, least: float = LIKE) -> list[str]:
        """The known words that share this part of their runs with it, or that are a part of it; at most four."""
        word = word[:_LONGEST]
        runs = set(_runs(word))
        # What looks alike shares one of the rare runs; the common ones have every word in them.
        rare = sorted((run for run in runs if self._frequency[run] > 0), key=lambda run: (self._frequency[run], run))
        asked = " OR ".join(f'"{run}"' for run in rare[:_ASKED])
        query = "SELECT rowid FROM grams WHERE grams MATCH ? ORDER BY bm25(grams) LIMIT ?"
        found = self._db.execute(query, (asked, _LIKELY)) if asked else None
        alike: list[tuple[float, str]] = []
        for (row,) in found or ():
            other = self._words[row]
            its = set(_runs(other))
            shared = len(runs & its)
            part = min(len(word), len(other)) >= _PART and (word in other or other in word)
            alike.append((max(2 * shared / (len(runs) + len(its)), 0.99 * part), other))
        return [other for share, other in sorted(alike, key=_best_first)[:_MOST] if share >= least and other != word]


def _best_first(alike: tuple[float, str]) -> tuple[float, str]:
    return -alike[0], alike[1]


def _runs(word: str) -> list[str]:
    return [word[start : start + 3] for start in range(len(word) - 2)]
