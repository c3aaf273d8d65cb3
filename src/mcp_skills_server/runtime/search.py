"""Which skills are meant by these words: by name, title, tags, description, headings and path, the best first.

The index lives in memory, is made by the first question and follows the snapshot from then on: only skills that are
other objects than before are indexed anew.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.runtime.search_index import SENTENCE_WEIGHTS, WEIGHTS, SearchIndex, Term
from mcp_skills_server.runtime.search_text import words_of
from mcp_skills_server.runtime.stop_words import STOP_WORDS

if TYPE_CHECKING:
    from mcp_skills_server.runtime.embeddings.index import Embeddings


Ranking: TypeAlias = Iterator[tuple[int, float]]
"""Rows with their ranks, the lowest and best first; rows of equal rank are equally good."""

_SOFTNESS: Final = 60
"""How little the first places differ; the usual number."""
FUSED: Final = 60
"""Places of each ranking that count."""
_MOST_EQUALS: Final = 1_000
_WEIGHT: Final = 3.0
"""How much a place in the first ranking weighs."""


def fused(first: Ranking, *others: Ranking, peer: Iterable[tuple[int, float]] = ()) -> Ranking:
    """Return the rows by the sum of 1 / (60 + place) over all rankings; then what is left of the first one, in its
    order.

    The first ranking and its peer count three times: the others correct them.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    rest = _score(first, scores, _WEIGHT)
    _score(iter(peer), scores, _WEIGHT)
    for other in others:
        _score(other, scores, 1.0)
    yield from sorted(((row, -score) for row, score in scores.items()), key=itemgetter(1))
    yield from (each for each in rest if each[0] not in scores)


def summed(first: Sequence[tuple[int, float]], second: Ranking) -> Ranking:
    """Return the rows of both rankings by the sum of their ranks, where a row that is not in one has none there."""
    known = dict(first)
    both = {row: rank + known.get(row, 0.0) for row, rank in second}
    return merge(
        sorted(both.items(), key=itemgetter(1)), (each for each in first if each[0] not in both), key=itemgetter(1)
    )


def _score(ranking: Ranking, scores: defaultdict[int, float], weight: float) -> Ranking:
    """Count the first places of a ranking, whole groups of equals, and give back what is left."""
    place, before = 0, None
    for count, (row, rank) in enumerate(ranking):
        if rank != before:
            place, before = count, rank
        if place >= FUSED or count >= _MOST_EQUALS:
            return chain([(row, rank)], ranking)
        scores[row] += weight / (_SOFTNESS + place)
    return ranking


_QUERY_LENGTH: Final = 2_000
_QUERY_WORDS: Final = 24
"""How much of a question counts."""
_MOST_HITS: Final = 3_000
"""How many occurrences a question may weigh; its commonest words give way, for they say the least."""
_COUNTED: Final = _MOST_HITS + 1
"""How far occurrences are counted: what has more gives way however many it has."""
_MOST_COUNTED: Final = 1 << 11
"""Words whose occurrences are known from earlier questions: the commonest are in many, and take longest to count."""
_FOLLOWED: Final = 6
"""How many words of a question are looked at for slips of the typist, or for what they look like."""
_SENTENCE: Final = 3
"""Words that say something: from so many on, what is asked is a task rather than a name."""
_DISTANT: Final = 0.25
"""How much a name must look like a word to be worth a look when nothing fits."""
_T = TypeVar("_T")


class Hit(NamedTuple):
    """A skill that is meant.

    Attributes:
        skill: which one.
        score: the higher the better, to be compared with those of the same question alone; None for a skill whose very
            name or path was asked for, which comes before all others.
    """

    skill: Skill
    score: float | None


class Search:
    """A search over a set of skills. It ranks as if there were no others.

    Args:
        skill_set: whose present snapshot is searched. Nothing is indexed before the first question.
        embeddings: what knows of the skills' meanings, if something does.
    """

    def __init__(self, skill_set: SkillSet, embeddings: Embeddings | None = None) -> None:
        self._skill_set = skill_set
        self._embeddings = embeddings
        self._lock = threading.Lock()
        self._indexed: _Indexed | None = None

    def find(self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False) -> list[Skill]:
        """Return up to `limit` skills that are meant by `query` and accepted, the best first.

        Any text may be asked; one that says nothing finds nothing. `accept` is called while others wait, so it must
        return at once and not search. With `by_meaning` the embeddings are asked too, which may be on another machine:
        it can take two seconds.

        Raises:
            NoFullTextError: this Python cannot index words.
        """
        return [hit.skill for hit in self.scored(query, limit, accept, by_meaning=by_meaning)]

    def scored(self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False) -> list[Hit]:
        """Return what `find` finds, with the scores that put it in its order.

        Raises:
            NoFullTextError: this Python cannot index words.
        """
        meant: list[tuple[str, float]] = []
        if by_meaning and self._embeddings is not None:
            among = None if self._skill_set.permissions is None else self._skill_set.snapshot.skills
            meant = self._embeddings.ranked(query, among)
        return self._ask(
            lambda indexed: list(
                islice((hit for hit in indexed.find(query, meant) if accept(hit.skill)), max(limit, 0))
            )
        )

    def nearest(self, query: str, limit: int, accept: Callable[[Skill], bool]) -> list[Skill]:
        """Return up to `limit` accepted skills whose names look like words of `query`, the most alike first.

        It is for a question that found nothing.

        Raises:
            NoFullTextError: this Python cannot index words.
        """
        return self._ask(lambda indexed: list(islice(filter(accept, indexed.nearest(query)), max(limit, 0))))

    def _ask(self, question: Callable[[_Indexed], list[_T]]) -> list[_T]:
        with self._lock:
            return question(self._current())

    def _current(self) -> _Indexed:
        # Put back once it is whole: what was left half changed is never used, the next question builds it anew.
        indexed, self._indexed = self._indexed or _Indexed(SearchIndex()), None
        indexed.follow(self._skill_set.snapshot)
        self._indexed = indexed
        return indexed


class _Indexed:
    """One snapshot, made ready to be asked."""

    def __init__(self, index: SearchIndex) -> None:
        self.index = index
        words = index.full_text
        self._words = words
        counted = lru_cache(_MOST_COUNTED)
        self._hits = counted(partial(words.hits, most=_COUNTED))
        self._opening_hits = counted(partial(words.opening_hits, most=_COUNTED))

    def follow(self, snapshot: Snapshot) -> None:
        """Bring the index up to this snapshot."""
        if self.index.follow(snapshot):
            self._hits.cache_clear()
            self._opening_hits.cache_clear()

    def find(self, query: str, meant: Sequence[tuple[str, float]] = ()) -> Iterator[Hit]:
        """Yield the skills that are meant, the best first: by their very name, then by their texts.

        `meant` are the paths of those that mean the same, and how nearly.
        """
        words = words_of(query[:_QUERY_LENGTH])
        exact = self.index.named("".join(words))
        yield from (Hit(skill, None) for skill in self.index.skills(exact))
        for rank, equals in groupby(self._ranked(words, meant), key=itemgetter(1)):
            yield from (Hit(skill, -rank) for skill in self.index.skills(row for row, _ in equals if row not in exact))

    def _ranked(self, words: Sequence[str], meant: Sequence[tuple[str, float]]) -> Ranking:
        telling = list(dict.fromkeys(word for word in words if word not in STOP_WORDS))[:_QUERY_WORDS]
        if telling:
            by_meaning = [(row, -share) for path, share in meant if (row := self.index.row(path))]
            return self._by_texts(telling, words[-1], by_meaning)
        # Only words that say nothing: still they may be in a name, or begin one while it is being typed.
        terms = [Term(word) for word in dict.fromkeys(words[:_QUERY_WORDS])]
        if len(words) == 1 and len(words[0]) > 1:
            terms.append(Term(words[0], prefix=True))
        return self._words.ranked(terms, names_only=True) if terms else iter(())

    def _by_texts(self, words: Sequence[str], unfinished: str, by_meaning: list[tuple[int, float]]) -> Ranking:
        """By the fields; where these say little or much is asked, how bodies begin and what looks alike count too.

        What means the same corrects the fields where few words are asked for, and else counts as much as they do.
        """
        terms, rare = self._terms(words, unfinished)
        sentence = len(words) >= _SENTENCE
        weights = SENTENCE_WEIGHTS if sentence else WEIGHTS
        if terms and not sentence:
            found = self._words.ranked(terms, weights=weights)
            return fused(found, iter(by_meaning)) if by_meaning else found
        by_fields = list(self._words.ranked(terms, weights=weights)) if terms else []
        more = [*dict.fromkeys([*terms, *map(Term, rare)])]
        opening = self._telling({term: self._opening_hits(term) for term in more}, _MOST_HITS // 2)
        by_opening = self._words.ranked_by_opening(opening, FUSED) if opening else iter(())
        alike = {Term(each) for word in rare for each in self.index.descriptions.like(word)} - {*terms}
        near = self._telling({term: self._hits(term) for term in alike}, _MOST_HITS // 4)
        # BM25 is a sum over the words, so what was weighed already is not weighed again.
        by_alike = summed(by_fields, self._words.ranked(near, weights=weights)) if near else iter(())
        return fused(iter(by_fields), by_opening, by_alike, peer=by_meaning)

    def nearest(self, query: str) -> Iterator[Skill]:
        """Skills whose names look most like words of the question, the best first."""
        words = dict.fromkeys(words_of(query[:_QUERY_LENGTH])[:_QUERY_WORDS])
        alike = [
            Term(each)
            for word in words
            if word not in STOP_WORDS
            for each in self.index.descriptions.like(word, _DISTANT)
        ]
        rows = self._words.ranked(alike, names_only=True) if alike else iter(())
        return (skill for row, _ in rows for skill in self.index.skills([row]))

    def _terms(self, words: Sequence[str], unfinished: str) -> tuple[list[Term], list[str]]:
        """Return what to look for: the words, the beginning that the last one may be, and what rare ones may stand for.

        Second come the rarest of the words, those included of which there is nothing in any field.
        """
        found: dict[Term, int] = {}
        frequency: dict[str, int] = {}
        looked_at = 0
        for word in words:
            terms = [Term(word)]
            if word == unfinished and (len(word) > 1 or not word.isascii()):
                terms.append(Term(word, prefix=True))
            hits = {term: self._hits(term) for term in terms}
            if max(hits.values()) * 1_000 <= len(self.index) and looked_at < _FOLLOWED:
                looked_at += 1
                hits |= {term: self._hits(term) for term in map(Term, self.index.titles.meant(word))}
            frequency[word] = sum(hits.values())
            found |= hits
        # Where every word is in most skills, the rarest one still says more than nothing.
        rarest = sorted(found, key=lambda term: found[term] or len(self.index) + 1)[:1]
        chosen = self._telling(found) or [term for term in rarest if found[term]]
        return chosen, sorted(frequency, key=lambda word: frequency[word])[:_FOLLOWED]

    def _telling(self, found: Mapping[Term, int], most: int = _MOST_HITS) -> list[Term]:
        """Return those that are somewhere and not everywhere, the rarest first, as far as there is time to weigh
        them.
        """
        telling = {term: hits for term, hits in found.items() if 0 < hits <= len(self.index) // 2}
        chosen: list[Term] = []
        weighed = 0
        for term, hits in sorted(telling.items(), key=lambda each: (each[1], each[0].word)):
            weighed += hits
            if weighed <= most or not chosen:
                chosen.append(term)
        return chosen
