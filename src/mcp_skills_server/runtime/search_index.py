"""What a search knows of one snapshot: its skills as rows of texts, their names and their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.runtime.full_text import FullText
from mcp_skills_server.runtime.search_text import Texts, described_words, names_of, spelt_words, texts_of
from mcp_skills_server.runtime.vocabulary import Vocabulary

_NAMES: Final = "CREATE TABLE names(name TEXT, row INTEGER, PRIMARY KEY (name, row)) WITHOUT ROWID"
"""The rows by what is said to mean them and no others, as one folded word."""


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
                yield row, texts

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
                yield row, texts
