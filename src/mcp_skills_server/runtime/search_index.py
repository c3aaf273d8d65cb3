"""The full-text index of one snapshot: its skills as rows of texts, their names and their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import finalize

from mcp_skills_server.dialects.runtime import LIST
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.runtime.full_text_support import missing, warn
from mcp_skills_server.runtime.search_text import (
    Texts,
    described_words,
    names_of,
    spelt_words,
    texts_of,
    words_of,
)
from mcp_skills_server.runtime.thesaurus import thesaurus
from mcp_skills_server.runtime.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sqlite3 import Connection


WEIGHTS: Final = {
    "name": 10.0,
    "title": 5.0,
    "tags": 5.0,
    "description": 2.0,
    "headings": 1.5,
    "path": 1.0,
    "concepts": 0.5,
}
"""The columns, in the order of `Texts` and before the opening the concepts, and how much a word in each weighs where
few are asked for.
"""
SENTENCE_WEIGHTS: Final = WEIGHTS | {"name": 4.0, "title": 2.0, "tags": 2.0, "headings": 1.0, "concepts": 1.0}
"""The weights where many words are asked for: a name that has one of them was hardly meant by it."""

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
    """An index of rows. It keeps no texts, so a caller that takes a row out must know them. For one thread at a time.

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
        """Return how many rows have it in a field; counted up to `most`."""
        query = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
        return int(self._db.execute(query, (_quoted(term), most)).fetchone()[0])

    def opening_hits(self, term: Term, most: int) -> int:
        """Return how many rows have it where their bodies begin; counted up to `most`."""
        query = "SELECT count(*) FROM (SELECT 1 FROM openings WHERE openings MATCH ? LIMIT ?)"
        return int(self._db.execute(query, (_quoted(term), most)).fetchone()[0])

    def ranked(
        self, terms: Sequence[Term], *, names_only: bool = False, weights: Mapping[str, float] = WEIGHTS
    ) -> Iterator[tuple[int, float]]:
        """Return the rows that have any of them in a field with their rank, the lowest and best first."""
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
        """Return the rows whose bodies begin with a text that has any of them, at most so many, as `ranked` gives
        them.
        """
        return self._db.execute(
            "SELECT rowid, bm25(openings) AS rank_ FROM openings WHERE openings MATCH ? ORDER BY rank_ LIMIT ?",
            (_any_of(terms), most),
        )


def _any_of(terms: Sequence[Term]) -> str:
    return " OR ".join(map(_quoted, terms))


def _quoted(term: Term) -> str:
    return f'"{term.word}"*' if term.prefix else f'"{term.word}"'


_NAMES: Final = "CREATE TABLE names(name TEXT, row INTEGER, PRIMARY KEY (name, row)) WITHOUT ROWID"
"""The rows by what is said to mean them and no others, as one folded word."""


def _with_concepts(texts: Texts) -> Texts:
    """Insert the concepts of the name, the title, the tags and the description; headings and bodies name too many."""
    concepts = [each for text in texts[:4] for each in dict.fromkeys(thesaurus().concepts(words_of(text)))]
    return (*texts[:-1], " ".join(concepts), texts[-1])


class SearchIndex:
    """The rows of one snapshot. For one thread at a time.

    Attributes:
        full_text: the texts by their rows.
        titles: the words of names, titles and tags.
        descriptions: the longer words of these and of descriptions.

    Raises:
        NoFullTextError: this Python cannot index words.
    """

    def __init__(self) -> None:
        self.full_text = FullText()
        self._db = self.full_text.database
        self._db.execute(_NAMES)
        self.titles = Vocabulary(self._db, "titles", letters=2)
        self.descriptions = Vocabulary(self._db, "descriptions", letters=3)
        self._snapshot = Snapshot({})
        self._rows: dict[str, int] = {}
        self._skills: dict[int, Skill] = {}
        self._last = 0

    def follow(self, snapshot: Snapshot) -> bool:
        """Bring the index up to this snapshot, and return whether anything had to be done."""
        if snapshot is self._snapshot:
            return False
        old, new = self._snapshot.skills, snapshot.skills
        # In one order in every process, since rows of equal rank come in the order of the index: at first that of the
        # snapshot, later that of the paths, so that no other skill is looked at.
        differing = sorted(snapshot.differing(self._snapshot)) if old else list(new)
        gone = [old[path] for path in differing if path in old]
        came = [new[path] for path in differing if path in new]
        self.full_text.change(self._taken_out(gone), self._put_in(came))
        self._snapshot = snapshot
        return True

    def __len__(self) -> int:
        return len(self._skills)

    def skills(self, rows: Iterable[int]) -> list[Skill]:
        """Return the skills of these rows, by their paths.

        Raises:
            KeyError: there is no such row.
        """
        return sorted((self._skills[row] for row in rows), key=lambda skill: skill.path)

    def row(self, path: str) -> int | None:
        """Return the row of the skill at this path."""
        return self._rows.get(path)

    def named(self, name: str) -> Iterable[int]:
        """Return the rows of the skills that are meant by this and no others, in one folded word."""
        return [row for (row,) in self._db.execute("SELECT row FROM names WHERE name = ?", (name,))]

    def _taken_out(self, gone: Iterable[Skill]) -> Iterator[tuple[int, Texts]]:
        for skill in gone:
            row = self._rows.pop(skill.path, 0)
            if row:
                del self._skills[row]
                texts = texts_of(skill)  # the same as when it was put in
                names = [(name, row) for name in names_of(texts)]
                self._db.executemany("DELETE FROM names WHERE name = ? AND row = ?", names)
                self.titles.remove(spelt_words(texts))
                self.descriptions.remove(described_words(texts))
                yield row, _with_concepts(texts)

    def _put_in(self, came: Iterable[Skill]) -> Iterator[tuple[int, Texts]]:
        for skill in came:
            if skill.standing > Standing.UNUSABLE:
                self._last = row = self._last + 1
                self._rows[skill.path] = row
                self._skills[row] = skill
                texts = texts_of(skill)
                names = [(name, row) for name in names_of(texts)]
                self._db.executemany("INSERT INTO names VALUES (?, ?)", names)
                self.titles.add(spelt_words(texts))
                self.descriptions.add(described_words(texts))
                yield row, _with_concepts(texts)
