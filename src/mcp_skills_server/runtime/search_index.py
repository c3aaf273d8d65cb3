"""What a search knows of one snapshot: its skills as rows of texts, their names and their words.

It follows the next snapshot. All of it can be copied as plain values and an image of its database, and another index be
made of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_skills_server.model import SKILL_MD, Skill, Snapshot, Standing
from mcp_skills_server.runtime.full_text import TABLES, FullText
from mcp_skills_server.runtime.ngrams import TABLE, NGrams, NGramsState
from mcp_skills_server.runtime.search_text import Texts, described_words, names_of, spelt_words, texts_of
from mcp_skills_server.runtime.spelling import Spelling, SpellingState

if TYPE_CHECKING:
    from mmap import mmap
    from pathlib import Path

_MOST_OTHERS: Final = 2
"""Where more than one of so many rows are of other skills, making all of them anew costs less than putting it right."""
_NAMES: Final = "CREATE TABLE names(name TEXT, row INTEGER, PRIMARY KEY (name, row)) WITHOUT ROWID"
"""The rows by what is said to mean them and no others, as one folded word."""
_TABLES: Final = {**TABLES, "grams": TABLE, "names": _NAMES}


class SearchState(NamedTuple):
    """An index as plain values.

    Attributes:
        rows: their numbers.
        paths: the skill paths of the rows, in the same order.
        digests: of the SKILL.md of each, "" where none is known, which is equal to no other.
        spelling, ngrams: of these.
    """

    rows: list[int]
    paths: list[str]
    digests: list[str]
    spelling: SpellingState
    ngrams: NGramsState


class IndexCopy(NamedTuple):
    """What an index is at one moment beside its database.

    Attributes:
        state: all that it knows.
        skills: those of the rows, in the order of `state.rows`.
    """

    state: SearchState
    skills: Sequence[Skill]


class SearchIndex:
    """The rows of one snapshot. For one thread at a time.

    Args:
        state: what another index knew beside its database; None for nothing. `restored` compares it with the skills.
        image: of that database.

    Attributes:
        full_text: the texts by their rows.
        spelling: the words of names, titles and tags.
        ngrams: the longer words of these and of descriptions.
        changes: how many rows were put in and taken out by this index.

    Raises:
        NoFullTextError: this Python cannot index words.
        sqlite3.Error: the image is no database.
        ValueError: the image or the state is that of no index.
    """

    def __init__(self, state: SearchState | None = None, image: bytes | mmap | None = None) -> None:
        self.full_text = FullText(image)
        self._db = self.full_text.database
        if state is None:
            self._db.execute(_NAMES)
        elif not _are_ours(self.full_text.schema):
            raise ValueError("the database is none of ours")
        self.ngrams = NGrams(self._db, None if state is None else state.ngrams)
        self.spelling = Spelling(None if state is None else state.spelling)
        self.changes = 0
        self._snapshot = Snapshot({})
        self._rows: dict[str, int] = {}
        self._skills: dict[int, Skill] = {}
        self._last = 0 if state is None else max(state.rows, default=0)

    @classmethod
    def restored(
        cls, state: SearchState, image: bytes | mmap, snapshot: Snapshot, texts_at: Callable[[int], Texts]
    ) -> SearchIndex | None:
        """The index of this snapshot, made of what another one knew; None where too little of that still holds.

        A row is taken over for a skill of the same path whose SKILL.md has the same digest. Rows of others are taken
        out, and skills without a row put in.

        Args:
            state: of the other index.
            image: of its database.
            snapshot: the skills that there are.
            texts_at: gives the texts of a row by its place in the state.

        Raises:
            sqlite3.Error: the image is no database.
            ValueError: the image or the state is that of no index. Other errors that mean as much may come, too.
        """
        skills, rows, paths = snapshot.skills, state.rows, state.paths
        now = [_digest(skills.get(path)) for path in paths]
        pairs = enumerate(zip(now, state.digests, strict=True))
        others = [place for place, (digest, then) in pairs if digest != then or not then]
        if len(others) * _MOST_OTHERS > len(rows):
            return None
        index = cls(state, image)
        known = dict(zip(paths, rows, strict=True))
        if not len({*rows}) == len(known) == len(rows):
            raise ValueError("a row or a path is there twice")
        for place in others:
            del known[paths[place]]
        index._rows = known
        index._skills = {row: skills[path] for path, row in known.items()}
        came = [skill for path, skill in skills.items() if path not in known]
        gone = ((state.rows[place], texts_at(place)) for place in others)
        index.full_text.change(index._taken_out(gone), index._put_in(came))
        index._snapshot = snapshot
        return index

    def follow(self, snapshot: Snapshot) -> bool:
        """Bring the index up to this snapshot; whether anything had to be done."""
        if snapshot is self._snapshot:
            return False
        old, new = self._snapshot.skills, snapshot.skills
        # In one order in every process, since rows of equal rank come in the order of the index: at first that of the
        # snapshot, later that of the paths, so that no other skill is looked at.
        differing = sorted(snapshot.differing(self._snapshot)) if old else list(new)
        gone = [old[path] for path in differing if path in old]
        came = [new[path] for path in differing if path in new]
        self.full_text.change(self._taken_out(self._known(gone)), self._put_in(came))
        self._snapshot = snapshot
        return True

    def __len__(self) -> int:
        return len(self._skills)

    def skills(self, rows: Iterable[int]) -> list[Skill]:
        """The skills of these rows, by their paths.

        Raises:
            KeyError: there is no such row.
        """
        return sorted((self._skills[row] for row in rows), key=lambda skill: skill.path)

    def row(self, path: str) -> int | None:
        """The row of the skill at this path."""
        return self._rows.get(path)

    def named(self, name: str) -> Iterable[int]:
        """The rows of the skills that are meant by this and no others, in one folded word."""
        return [row for (row,) in self._db.execute("SELECT row FROM names WHERE name = ?", (name,))]

    def copy(self, place: Path) -> IndexCopy | None:
        """All of it as it is now, its database in an empty file; None where no other index could be made of it.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        if not self.full_text.copy_to(place):
            return None
        skills = [*self._skills.values()]
        paths, digests = [skill.path for skill in skills], [_digest(skill) for skill in skills]
        state = SearchState([*self._skills], paths, digests, self.spelling.state, self.ngrams.state)
        return IndexCopy(state, skills)

    def _known(self, gone: Iterable[Skill]) -> Iterator[tuple[int, Texts]]:
        """The rows of these skills, as far as they have some, with the texts that these were put in with."""
        for skill in gone:
            row = self._rows.pop(skill.path, 0)
            if row:
                del self._skills[row]
                yield row, texts_of(skill)

    def _taken_out(self, gone: Iterable[tuple[int, Texts]]) -> Iterator[tuple[int, Texts]]:
        for row, texts in gone:
            self.changes += 1
            names = [(name, row) for name in names_of(texts)]
            self._db.executemany("DELETE FROM names WHERE name = ? AND row = ?", names)
            self.spelling.remove(spelt_words(texts))
            self.ngrams.remove(described_words(texts))
            yield row, texts

    def _put_in(self, came: Iterable[Skill]) -> Iterator[tuple[int, Texts]]:
        for skill in came:
            if skill.standing > Standing.UNUSABLE:
                self.changes += 1
                self._last = row = self._last + 1
                self._rows[skill.path] = row
                self._skills[row] = skill
                texts = texts_of(skill)
                names = [(name, row) for name in names_of(texts)]
                self._db.executemany("INSERT INTO names VALUES (?, ?)", names)
                self.spelling.add(spelt_words(texts))
                self.ngrams.add(described_words(texts))
                yield row, texts


def _digest(skill: Skill | None) -> str:
    """Of its SKILL.md; "" where it is not known, or the skill has no row."""
    if skill is None or skill.standing <= Standing.UNUSABLE:
        return ""
    manifest = skill.files.get(SKILL_MD)
    return manifest.digest or "" if manifest is not None else ""


def _are_ours(schema: Iterable[tuple[str, str, str]]) -> bool:
    """Whether these are our tables and those that SQLite makes for them, and nothing else."""
    own = {name: sql for kind, name, sql in schema if kind == "table" and name in _TABLES}
    return own == _TABLES and all(kind == "table" and name.partition("_")[0] in own for kind, name, _ in schema)
