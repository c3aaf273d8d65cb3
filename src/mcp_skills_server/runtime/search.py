"""Which skills are meant by these words: by name, title, tags, description, headings and path, the best first.

The index lives in memory, is built by the first question and follows the snapshot from then on: only skills that are
other objects than before are indexed anew. Words are cut and folded here, for texts and questions alike, and nothing
else ever reaches the query language of SQLite; so no question can be ill-formed.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from weakref import finalize

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.format import identity
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Skill, Snapshot, Standing

if TYPE_CHECKING:
    from sqlite3 import Connection

Texts: TypeAlias = tuple[str, ...]

_WEIGHTS: Final = {"name": 10.0, "title": 5.0, "tags": 5.0, "description": 2.0, "headings": 1.5, "path": 1.0}
"""What is indexed of a skill, and how much a word in it weighs."""
_TEXT_LENGTH: Final = 4_000
"""Characters that count of each text."""
_QUERY_LENGTH: Final = 2_000
_QUERY_WORDS: Final = 24
"""How much of a question counts."""
_MOST_HITS: Final = 12_000
"""How many occurrences a question may weigh; its commonest words give way, they tell the least."""
_FOLLOWED: Final = 8
"""How many words of a question are looked at for slips of the typist."""

_WORD: Final = re.compile(r"[^\W_]+")
STOP_WORDS: Final = frozenset(
    _WORD.findall(
        "a about after all also am an and any are as at be been before being but by can could d did do does doing don "
        "for from had has have having he help her here him his how i if in into is it its just ll m may me might more "
        "most my no not of off on once only or other our out over own please re s same shall she should so some such t "
        "than that the their them then there these they this those through to too us use used using ve very want was "
        "we were what when where which while who whom whose why will with would you your"
    )
)
"""English words that say nothing about what is looked for."""


class Search:
    """A search over what a registry holds.

    Args:
        registry: whose present snapshot is searched. Nothing is indexed before the first question.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._indexed: _Indexed | None = None

    def find(self, query: str, limit: int, accept: Callable[[Skill], bool]) -> list[Skill]:
        """Up to `limit` skills that are meant by `query` and accepted, the best first.

        Any text may be asked; one that says nothing finds nothing. `accept` is called while others wait, so it must
        return at once and not search.
        """
        with self._lock:
            # Put back once it is whole: what was left half changed is never used, the next question builds it anew.
            indexed, self._indexed = self._indexed or _Indexed(), None
            indexed.follow(self._registry.snapshot)
            self._indexed = indexed
            return list(islice(filter(accept, indexed.find(query)), max(limit, 0)))


@dataclass(frozen=True, slots=True)
class _Term:
    """A folded word that is looked for, or the beginning of one."""

    word: str
    prefix: bool = False


class _Indexed:
    """One snapshot, made ready to be asked."""

    def __init__(self) -> None:
        self._snapshot = Snapshot({})
        self._index = _index()
        self._spelling = _Spelling()
        self._rows: dict[str, int] = {}
        self._skills: dict[int, Skill] = {}
        self._names: dict[str, tuple[int, ...]] = {}
        self._last = 0

    def follow(self, snapshot: Snapshot) -> None:
        """Bring the index up to this snapshot."""
        if snapshot is self._snapshot:
            return
        old, new = self._snapshot.skills, snapshot.skills
        gone = [skill for path, skill in old.items() if new.get(path) is not skill]
        came = [skill for path, skill in new.items() if old.get(path) is not skill]
        self._index.change(self._remove(gone), self._add(came))
        self._snapshot = snapshot

    def _remove(self, gone: Iterable[Skill]) -> Iterator[tuple[int, Texts]]:
        for skill in gone:
            row = self._rows.pop(skill.path, 0)
            if row:
                del self._skills[row]
                texts = _texts(skill)
                for key in _keys(skill):
                    left = tuple(each for each in self._names[key] if each != row)
                    if left:
                        self._names[key] = left
                    else:
                        del self._names[key]
                self._spelling.remove(_spelt(texts))
                yield row, texts

    def _add(self, came: Iterable[Skill]) -> Iterator[tuple[int, Texts]]:
        for skill in came:
            if skill.standing > Standing.UNUSABLE:
                self._last = row = self._last + 1
                self._rows[skill.path] = row
                self._skills[row] = skill
                texts = _texts(skill)
                for key in _keys(skill):
                    self._names[key] = (*self._names.get(key, ()), row)
                self._spelling.add(_spelt(texts))
                yield row, texts

    def find(self, query: str) -> Iterator[Skill]:
        """The skills that are meant, the best first: by their very name, then by what is said of them."""
        words = _words(query[:_QUERY_LENGTH])
        exact = frozenset(self._names.get("".join(words), ()))
        yield from self._in_order(exact)
        for _, equals in groupby(self._ranked(words), key=itemgetter(1)):
            yield from self._in_order(row for row, _ in equals if row not in exact)

    def _in_order(self, rows: Iterable[int]) -> list[Skill]:
        return sorted((self._skills[row] for row in rows), key=lambda skill: skill.path)

    def _ranked(self, words: Sequence[str]) -> Iterator[tuple[int, float]]:
        telling = list(dict.fromkeys(word for word in words if word not in STOP_WORDS))[:_QUERY_WORDS]
        if telling:
            terms = self._terms(telling, unfinished=words[-1])
            return self._index.ranked(terms, names_only=False) if terms else iter(())
        # Only words that say nothing: still they may be in a name, or begin one while it is being typed.
        said = [_Term(word) for word in dict.fromkeys(words[:_QUERY_WORDS])]
        if len(words) == 1 and len(words[0]) > 1:
            said.append(_Term(words[0], prefix=True))
        return self._index.ranked(said, names_only=True) if said else iter(())

    def _terms(self, words: Sequence[str], unfinished: str) -> list[_Term]:
        """What to look for: the words, the beginning that the last one may be, and what rare ones may stand for."""
        found: dict[_Term, int] = {}
        looked_at = 0
        for word in words:
            terms = [_Term(word)]
            if word == unfinished and (len(word) > 1 or not word.isascii()):
                terms.append(_Term(word, prefix=True))
            hits = {term: self._index.hits(term) for term in terms}
            if max(hits.values()) * 1_000 <= len(self._skills) and looked_at < _FOLLOWED:
                looked_at += 1
                hits |= {term: self._index.hits(term) for term in map(_Term, self._spelling.near(word))}
            found |= hits
        telling = {term: hits for term, hits in found.items() if 0 < hits <= len(self._skills) // 2}
        chosen: list[_Term] = []
        weighed = 0
        for term, hits in sorted((telling or found).items(), key=itemgetter(1)):
            weighed += hits
            if hits and (weighed <= _MOST_HITS or not chosen):
                chosen.append(term)
        return chosen


# Texts and words

# Languages that do not put blanks between their words; Hangul does, but with endings.
_UNSPACED: Final = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def _fold(text: str) -> str:
    """The text with nothing but folded words and what stands between words in ASCII."""
    if text.isascii():
        return text.replace("\0", " ")
    whole = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(each for each in whole if not unicodedata.combining(each))
    spaced = _UNSPACED.sub(lambda found: f" {_pairs(found[0])} ", unicodedata.normalize("NFC", letters))
    return " ".join(_WORD.findall(spaced))


def _pairs(run: str) -> str:
    """Each character with the next one, which is the usual way to search what has no blanks between words."""
    return " ".join(run[start : start + 2] for start in range(max(len(run) - 1, 1)))


def _words(text: str) -> list[str]:
    return _WORD.findall(_fold(text).lower())


def _texts(skill: Skill) -> Texts:
    """What is indexed of a skill, in the order of the weights. Always the same of the same skill."""
    title = identity.title(skill) or ""
    headings = " ".join(each for each in skill.reading.headings if each != title)
    tags = " ".join(str(tag) for tag in tags_of(skill.frontmatter))
    told = (skill.name, title, tags, skill.description, headings, skill.path)
    return tuple(_fold(text[:_TEXT_LENGTH]) for text in told)


def _keys(skill: Skill) -> set[str]:
    """What to say to mean this skill and no other: its name or its path, however its words are held together."""
    return {"".join(_words(skill.name)), "".join(_words(skill.path))} - {""}


def _spelt(texts: Texts) -> set[str]:
    """The words of the name, the title and the tags, which people try to remember; of a plural the singular too."""
    words = {word for text in texts[:3] for word in _WORD.findall(text.lower()) if not word.isdecimal()}
    return words | {word[:-1] for word in words if len(word) > 4 and word[-1] == "s" != word[-2]}


# Slips of the typist


class _Spelling:
    """Words that are known, and which of them somebody may have meant."""

    def __init__(self) -> None:
        self._words: Counter[str] = Counter()
        self._by_pair: defaultdict[str, set[str]] = defaultdict(set)

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


_LIKELY: Final = 100


def _letter_pairs(word: str) -> set[str]:
    padded = f" {word} "
    return {padded[start : start + 2] for start in range(len(padded) - 1)}


def _slips(one: str, other: str) -> int:
    """How many letters are wrong, missing, too many or swapped with the next."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        here = [row]
        for column, its in enumerate(other, 1):
            cost = min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != its))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == its:
                cost = min(cost, before[column - 2] + 1)
            here.append(cost)
        before, above = above, here
    return above[-1]


# Indexes


class _Index(Protocol):
    """Words to rows."""

    def change(self, gone: Iterable[tuple[int, Texts]], came: Iterable[tuple[int, Texts]]) -> None:
        """Take rows out, with the texts that they were put in with, and put others in."""
        ...

    def hits(self, term: _Term) -> int:
        """How many rows have it."""
        ...

    def ranked(self, terms: Sequence[_Term], *, names_only: bool) -> Iterator[tuple[int, float]]:
        """The rows that have any of them with their rank, the lowest and best first."""
        ...


def _index() -> _Index:
    """SQLite's full text index, or where this Python came without it a plain list."""
    try:
        import sqlite3
    except ImportError:
        return _Plain()
    # Many threads use it, one at a time: `Search` has the lock.
    database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    try:
        return _FullText(database)
    except sqlite3.OperationalError:
        database.close()
        return _Plain()


class _FullText:
    """The index of SQLite (FTS5). It keeps no texts, so whoever takes a row out must know them."""

    def __init__(self, database: Connection) -> None:
        columns = ", ".join(_WEIGHTS)
        weights = ", ".join(map(str, _WEIGHTS.values()))
        marks = ", ".join("?" * len(_WEIGHTS))
        # The tokenizer sees folded words, so it need not know more than ASCII.
        database.execute(f"CREATE VIRTUAL TABLE words USING fts5({columns}, content='', tokenize='porter ascii')")
        database.execute("INSERT INTO words(words, rank) VALUES ('rank', ?)", (f"bm25({weights})",))
        self._put_in = f"INSERT INTO words(rowid, {columns}) VALUES (?, {marks})"  # noqa: S608
        self._take_out = f"INSERT INTO words(words, rowid, {columns}) VALUES ('delete', ?, {marks})"  # noqa: S608
        self._db = database
        finalize(self, database.close)

    def change(self, gone: Iterable[tuple[int, Texts]], came: Iterable[tuple[int, Texts]]) -> None:
        """As in `_Index`."""
        self._db.execute("BEGIN")
        self._db.executemany(self._take_out, ((row, *texts) for row, texts in gone))
        self._db.executemany(self._put_in, ((row, *texts) for row, texts in came))
        self._db.execute("COMMIT")

    def hits(self, term: _Term) -> int:
        """As in `_Index`."""
        asked = self._db.execute("SELECT count(*) FROM words WHERE words MATCH ?", (_quoted(term),))
        return int(asked.fetchone()[0])

    def ranked(self, terms: Sequence[_Term], *, names_only: bool) -> Iterator[tuple[int, float]]:
        """As in `_Index`."""
        match = " OR ".join(map(_quoted, terms))
        if names_only:
            match = f"name : ({match})"
        return self._db.execute("SELECT rowid, rank FROM words WHERE words MATCH ? ORDER BY rank", (match,))


def _quoted(term: _Term) -> str:
    return f'"{term.word}"*' if term.prefix else f'"{term.word}"'


class _Plain:
    """A list of texts that is read through for each question."""

    def __init__(self) -> None:
        self._rows: dict[int, Texts] = {}

    def change(self, gone: Iterable[tuple[int, Texts]], came: Iterable[tuple[int, Texts]]) -> None:
        """As in `_Index`."""
        for row, _ in gone:
            del self._rows[row]
        for row, texts in came:
            self._rows[row] = tuple(f" {' '.join(_words(text))} " for text in texts)

    def hits(self, term: _Term) -> int:
        """As in `_Index`."""
        looked_for = _looked_for(term)
        return sum(any(looked_for in text for text in texts) for texts in self._rows.values())

    def ranked(self, terms: Sequence[_Term], *, names_only: bool) -> Iterator[tuple[int, float]]:
        """As in `_Index`; the rank is the weight of the best place of each word, rare words counting more."""
        found: defaultdict[int, float] = defaultdict(float)
        weights = list(_WEIGHTS.values())[: 1 if names_only else None]
        for looked_for in map(_looked_for, terms):
            best = {
                row: max(
                    (weight for weight, text in zip(weights, texts, strict=False) if looked_for in text), default=0
                )
                for row, texts in self._rows.items()
            }
            having = sum(1 for weight in best.values() if weight)
            for row, weight in best.items():
                if weight:
                    found[row] += weight / (1 + having)
        return iter(sorted(((row, -rank) for row, rank in found.items()), key=itemgetter(1)))


def _looked_for(term: _Term) -> str:
    """The beginning of a word without the endings that English words change."""
    stem = re.sub(r"(?<=...)(?:ing|ed|es|s|e)\Z", "", term.word)
    return f" {stem}"
