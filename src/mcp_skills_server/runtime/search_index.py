"""The in-memory SQLite full-text index of one snapshot, with a row for each skill."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple
from weakref import finalize

from mcp_skills_server.dialects.runtime import LIST, SEARCH
from mcp_skills_server.errors import REPEATS, RequestError
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.runtime.search_text import (
    Texts,
    description_words,
    names_of,
    texts_of,
    title_words,
    words_of,
)
from mcp_skills_server.runtime.thesaurus import thesaurus
from mcp_skills_server.runtime.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

WEIGHTS: Final = {
    "name": 10.0,
    "title": 5.0,
    "tags": 5.0,
    "description": 2.0,
    "headings": 1.5,
    "path": 1.0,
    "concepts": 0.5,
}
"""BM25 weights of the columns for queries of few words. The columns are those of `Texts`, with the
concepts instead of the opening."""
SENTENCE_WEIGHTS: Final = WEIGHTS | {
    "name": 4.0,
    "title": 2.0,
    "tags": 2.0,
    "headings": 1.0,
    "concepts": 1.0,
}
"""The weights for queries of many words, where one word in a name is weak evidence."""

MAX_HITS: Final = 3_000
"""The maximum number of occurrences that a query ranks, which bounds its time. The most common
words are dropped first."""
_COLUMNS: Final = ", ".join(WEIGHTS)
_CONTENTLESS: Final = "content='', tokenize='porter ascii'"  # enough, as the texts are folded
_TABLES: Final = (
    f"CREATE VIRTUAL TABLE words USING fts5({_COLUMNS}, {_CONTENTLESS})",
    f"CREATE VIRTUAL TABLE openings USING fts5(opening, columnsize=0, {_CONTENTLESS})",
    "CREATE TABLE names(name TEXT, row INTEGER, PRIMARY KEY (name, row)) WITHOUT ROWID",
)
"""`names` maps a folded name or path, without separators, to the rows that it names exactly."""
_ROWS: Final = "SELECT rowid FROM words WHERE words MATCH ?"
_MARKS: Final = ", ".join("?" * len(WEIGHTS))
_INSERT: Final = f"INSERT INTO words(rowid, {_COLUMNS}) VALUES (?, {_MARKS})"  # noqa: S608
_DELETE: Final = f"INSERT INTO words(words, rowid, {_COLUMNS}) VALUES ('delete', ?, {_MARKS})"  # noqa: S608
_INSERT_OPENING: Final = "INSERT INTO openings(rowid, opening) VALUES (?, ?)"
_DELETE_OPENING: Final = "INSERT INTO openings(openings, rowid, opening) VALUES ('delete', ?, ?)"


class NoFullTextError(RequestError):
    """An error for a search in a Python without full-text search."""


def _no_full_text(reason: str) -> NoFullTextError:
    hint = "run the server with a Python whose sqlite3 has FTS5"
    logger.warning("%s finds nothing, because %s; %s", SEARCH, reason, hint, extra=REPEATS)
    return NoFullTextError(
        f"Skills cannot be searched here, because {reason}; {LIST} lists all of them"
    )


class Term(NamedTuple):
    """A folded word of a query, or with `prefix` the beginning of one."""

    word: str
    prefix: bool = False


class SearchIndex:
    """A contentless FTS5 index: removing a skill takes the same texts as adding it.

    Not thread-safe. `titles` has the words of names, titles and tags; `descriptions` the longer
    words of these and of descriptions. NoFullTextError: this Python has no full-text search.
    """

    def __init__(self) -> None:
        try:
            import sqlite3
        except ImportError:
            raise _no_full_text("its Python was built without sqlite3") from None
        # `Search` has a lock for the threads that share this connection.
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        finalize(self, self._db.close)
        try:
            for table in _TABLES:
                self._db.execute(table)
        except sqlite3.OperationalError:
            raise _no_full_text("its SQLite was built without FTS5") from None
        self.titles = Vocabulary(self._db, "titles", 2, self._is_known)
        self.descriptions = Vocabulary(self._db, "descriptions", 3, self._is_known)
        self._snapshot = Snapshot({})
        self._shown: Mapping[str, Skill] = {}
        self._visible: set[int] | None = None
        """The rows of the skills that queries are limited to; None for all."""
        self._rows: dict[str, int] = {}
        self._skills: dict[int, Skill] = {}
        self._last = 0

    def follow(self, snapshot: Snapshot) -> None:
        """Update the index to a snapshot, by its differences."""
        if snapshot is self._snapshot:
            return
        old, new = self._snapshot.skills, snapshot.skills
        # Deterministic, since ties come in the order of the rows: a first snapshot in its order,
        # later differences by path, which needs no look at other skills.
        differing = sorted(snapshot.differing(self._snapshot)) if old else list(new)
        self._db.execute("BEGIN")
        for path in differing:
            if path in old:
                self._remove(path)
        for path in differing:
            if path in new and new[path].standing > Standing.UNUSABLE:
                self._add(new[path])
        self._db.execute("COMMIT")
        self._snapshot = snapshot

    def limit_to(self, snapshot: Snapshot) -> None:
        """Limit the next queries to these skills; those that are not indexed are not found."""
        self._shown, self._visible = snapshot.skills, None
        if snapshot is not self._snapshot:
            self._visible = {self._rows[path] for path in self._shown.keys() & self._rows.keys()}

    def __len__(self) -> int:
        return len(self._skills if self._visible is None else self._visible)

    def skills(self, rows: Iterable[int]) -> list[Skill]:
        """Return the skills of these rows, sorted by path."""
        return [self._shown[path] for path in sorted(self._skills[row].path for row in rows)]

    def exact_matches(self, name: str) -> Iterable[int]:
        """Return the rows of the skills with exactly this name or path, in folded form."""
        return [row for (row,) in self._rows_of("SELECT row FROM names WHERE name = ?", name)]

    def _rows_of(self, query: str, *values: object) -> Iterator[Any]:
        """Return the rows of a query, the first column of which is a row of the index."""
        rows, visible = self._db.execute(query, values), self._visible
        if visible is None:
            return rows
        return (row for row in rows if row[0] in visible)

    def hits(
        self, terms: Iterable[Term], table: Literal["words", "openings"] = "words"
    ) -> dict[Term, int]:
        """Count the rows with each term in a field, or in the opening of the body.

        Beyond `MAX_HITS` the count ends, since such a term is not used.
        """
        query = f"SELECT rowid FROM {table} WHERE {table} MATCH ?"  # noqa: S608
        count = f"SELECT count(*) FROM ({query} LIMIT {MAX_HITS + 1})"  # noqa: S608
        counts: dict[Term, int] = {}
        for term in terms:
            if self._visible is None:
                counts[term] = self._db.execute(count, (_quoted(term),)).fetchone()[0]
            else:
                rows = islice(self._rows_of(query, _quoted(term)), MAX_HITS + 1)
                counts[term] = sum(1 for _ in rows)
        return counts

    def _is_known(self, word: str) -> bool:
        """Tell whether queries find this word; without a limit they find all of a vocabulary."""
        if self._visible is None:
            return True
        match = f'{{name title tags description}} : "{word}"'
        return any(True for _ in self._rows_of(_ROWS, match))

    def ranked(
        self,
        terms: Sequence[Term],
        *,
        names_only: bool = False,
        weights: Mapping[str, float] = WEIGHTS,
    ) -> Iterator[tuple[int, float]]:
        """Return (row, BM25 rank) of rows with any of the terms, the lowest and best first."""
        if not terms:
            return iter(())
        match = _any_of(terms)
        if names_only:
            match = f"name : ({match})"
        # An explicit `bm25`: FTS5's hidden column `rank` would compute each rank twice.
        how = ", ".join(map(str, weights.values()))
        rank = f"SELECT rowid, bm25(words, {how}) AS rank_ FROM words"  # noqa: S608
        return self._rows_of(f"{rank} WHERE words MATCH ? ORDER BY rank_", match)

    def ranked_by_opening(self, terms: Sequence[Term], most: int) -> Iterator[tuple[int, float]]:
        """Return (row, rank) as `ranked`, by the openings of bodies, at most `most` of them."""
        if not terms:
            return iter(())
        rank = "SELECT rowid, bm25(openings) AS rank_ FROM openings"
        query = f"{rank} WHERE openings MATCH ? ORDER BY rank_"
        return islice(self._rows_of(query, _any_of(terms)), most)

    def _remove(self, path: str) -> None:
        row = self._rows.pop(path, None)
        if row is None:
            return
        texts = texts_of(self._skills.pop(row))
        named = [(name, row) for name in names_of(texts)]
        self._db.executemany("DELETE FROM names WHERE name = ? AND row = ?", named)
        self.titles.remove(title_words(texts))
        self.descriptions.remove(description_words(texts))
        *fields, opening = _with_concepts(texts)
        self._db.execute(_DELETE, (row, *fields))
        if opening:
            self._db.execute(_DELETE_OPENING, (row, opening))

    def _add(self, skill: Skill) -> None:
        self._last = row = self._last + 1
        self._rows[skill.path] = row
        self._skills[row] = skill
        texts = texts_of(skill)
        named = [(name, row) for name in names_of(texts)]
        self._db.executemany("INSERT INTO names VALUES (?, ?)", named)
        self.titles.add(title_words(texts))
        self.descriptions.add(description_words(texts))
        *fields, opening = _with_concepts(texts)
        self._db.execute(_INSERT, (row, *fields))
        if opening:
            self._db.execute(_INSERT_OPENING, (row, opening))


def _any_of(terms: Sequence[Term]) -> str:
    return " OR ".join(map(_quoted, terms))


def _quoted(term: Term) -> str:
    if term.prefix:
        return f'"{term.word}"*'
    return f'"{term.word}"'


def _with_concepts(texts: Texts) -> Texts:
    """Insert the concepts of name, title, tags and description before the opening.

    Headings and bodies have too many concepts.
    """
    concepts = [dict.fromkeys(thesaurus().concepts(words_of(text))) for text in texts[:4]]
    return (*texts[:-1], " ".join(chain(*concepts)), texts[-1])
