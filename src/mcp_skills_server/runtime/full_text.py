"""The index of words in memory: SQLite's full text search (FTS5), which comes with Python's `sqlite3`.

Whoever asks folds words first (`search_text`), and nothing else ever reaches the query language of SQLite, so that no
question can be ill-formed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import finalize

from mcp_skills_server.dialects.runtime import LIST
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.full_text_support import missing, warn
from mcp_skills_server.runtime.search_text import Texts

if TYPE_CHECKING:
    from sqlite3 import Connection

WEIGHTS: Final = {"name": 10.0, "title": 5.0, "tags": 5.0, "description": 2.0, "headings": 1.5, "path": 1.0}
"""The columns, in the order of `Texts`, and how much a word in each weighs where few are asked for."""
SENTENCE_WEIGHTS: Final = {"name": 4.0, "title": 2.0, "tags": 2.0, "description": 2.0, "headings": 1.0, "path": 1.0}
"""How much it weighs where many are asked for: a name that has one word of many was hardly meant by it."""

_COLUMNS: Final = ", ".join(WEIGHTS)
# The tokenizer sees folded words, so it need not know more than ASCII.
_TABLES: Final = (
    f"CREATE VIRTUAL TABLE words USING fts5({_COLUMNS}, content='', tokenize='porter ascii')",
    "CREATE VIRTUAL TABLE openings USING fts5(opening, content='', columnsize=0, tokenize='porter ascii')",
)


class NoFullTextError(RequestError):
    """This Python cannot index words, so nothing can be searched."""


_PUT_IN_OPENING: Final = "INSERT INTO openings(rowid, opening) VALUES (?, ?)"
_TAKE_OUT_OPENING: Final = "INSERT INTO openings(openings, rowid, opening) VALUES ('delete', ?, ?)"


class Term(NamedTuple):
    """A folded word that is looked for, or the beginning of one."""

    word: str
    prefix: bool = False


class FullText:
    """An index of rows. It keeps no texts, so whoever takes a row out must know them. For one thread at a time.

    Raises:
        NoFullTextError: there is no FTS5.
    """

    def __init__(self) -> None:
        reason = missing()
        if reason is not None:
            warn(reason)
            raise NoFullTextError(f"Skills cannot be searched here, because {reason}; {LIST} goes through all of them")
        import sqlite3

        # Many threads use it, one at a time: `Search` has the lock.
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        finalize(self, self._db.close)
        marks = ", ".join("?" * len(WEIGHTS))
        for table in _TABLES:
            self._db.execute(table)
        self._put_in = f"INSERT INTO words(rowid, {_COLUMNS}) VALUES (?, {marks})"  # noqa: S608
        self._take_out = f"INSERT INTO words(words, rowid, {_COLUMNS}) VALUES ('delete', ?, {marks})"  # noqa: S608

    @property
    def database(self) -> Connection:
        """Where it lies; what else is about words may lie there too and is changed in the same transactions."""
        return self._db

    def change(self, gone: Iterable[tuple[int, Texts]], came: Iterable[tuple[int, Texts]]) -> None:
        """Take rows out, with the texts that they were put in with, and put others in."""
        self._db.execute("BEGIN")
        for row, (*fields, opening) in gone:
            self._db.execute(self._take_out, (row, *fields))
            if opening:
                self._db.execute(_TAKE_OUT_OPENING, (row, opening))
        for row, (*fields, opening) in came:
            self._db.execute(self._put_in, (row, *fields))
            if opening:
                self._db.execute(_PUT_IN_OPENING, (row, opening))
        self._db.execute("COMMIT")

    def hits(self, term: Term, most: int) -> int:
        """How many rows have it in a field; counted up to `most`."""
        query = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
        return int(self._db.execute(query, (_quoted(term), most)).fetchone()[0])

    def opening_hits(self, term: Term, most: int) -> int:
        """How many rows have it where their bodies begin; counted up to `most`."""
        query = "SELECT count(*) FROM (SELECT 1 FROM openings WHERE openings MATCH ? LIMIT ?)"
        return int(self._db.execute(query, (_quoted(term), most)).fetchone()[0])

    def ranked(
        self, terms: Sequence[Term], *, names_only: bool = False, weights: Mapping[str, float] = WEIGHTS
    ) -> Iterator[tuple[int, float]]:
        """The rows that have any of them in a field with their rank, the lowest and best first."""
        match = _any_of(terms)
        if names_only:
            match = f"name : ({match})"
        # SQLite sorts, and not FTS5 by its hidden column `rank`, for which it would weigh each row twice.
        how = ", ".join(map(str, weights.values()))
        return self._db.execute(
            f"SELECT rowid, bm25(words, {how}) AS rank_ FROM words WHERE words MATCH ? ORDER BY rank_",  # noqa: S608
            (match,),
        )

    def ranked_by_opening(self, terms: Sequence[Term], most: int) -> Iterator[tuple[int, float]]:
        """The rows whose bodies begin with a text that has any of them, at most so many, as `ranked` gives them."""
        return self._db.execute(
            "SELECT rowid, bm25(openings) AS rank_ FROM openings WHERE openings MATCH ? ORDER BY rank_ LIMIT ?",
            (_any_of(terms), most),
        )


def _any_of(terms: Sequence[Term]) -> str:
    return " OR ".join(map(_quoted, terms))


def _quoted(term: Term) -> str:
    return f'"{term.word}"*' if term.prefix else f'"{term.word}"'
