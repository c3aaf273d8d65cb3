"""Full-text search of skills by name, title, tags, description, headings and path, the best first.

The index lives in memory, is made by the first question and follows the snapshot from then on: only
skills that are other objects than before are indexed anew.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mcp_skills_server.catalog.views import SkillSet
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.overlap import grouped
from mcp_skills_server.runtime.search_index import SENTENCE_WEIGHTS, SearchIndex, Term
from mcp_skills_server.runtime.search_text import COMMON_WORDS, STOP_WORDS, words_of
from mcp_skills_server.runtime.thesaurus import thesaurus

if TYPE_CHECKING:
    from mcp_skills_server.runtime.embeddings.index import Embeddings


Ranking: TypeAlias = Iterator[tuple[int, float]]
"""Rows with their ranks, the lowest and best first; rows of equal rank are equally good."""

_SOFTNESS: Final = 60
"""The constant of reciprocal rank fusion; its usual value."""
FUSED: Final = 60
"""Places of each ranking that count."""
_MOST_EQUALS: Final = 1_000
_WEIGHT: Final = 3.0
"""Weight of a place in the first ranking of few words, beside one by meaning."""


def fused(first: Ranking, second: Ranking, weight: float = 1.0) -> Ranking:
    """Return the rows by reciprocal rank fusion, where the first ranking has this weight; then what
    is left of it."""
    scores: defaultdict[int, float] = defaultdict(float)
    rest = _score(first, scores, weight)
    _score(second, scores, 1.0)
    yield from sorted(((row, -score) for row, score in scores.items()), key=itemgetter(1))
    yield from (each for each in rest if each[0] not in scores)


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
"""Characters and words of a question that count."""
_MOST_HITS: Final = 3_000
"""Occurrences that a question may weigh; its commonest words are dropped first, since they say the
least."""
_COUNTED: Final = _MOST_HITS + 1
"""The bound of a count of occurrences: a word with more is dropped however many it has."""
_FOLLOWED: Final = 6
"""Words of a question that are corrected for typing errors."""
_SENTENCE: Final = 3
"""Words that say something: from so many on, what is asked is a task rather than a name."""
_OPENING_WEIGHT: Final = 0.15
"""Weight of the opening of a body beside the fields, measured by `bench.search`; as is that of the
concepts."""
_MOST_REPEATS: Final = 3
_COPIES: Final = 10
"""The factor of hits that are looked through for copies."""
_MANY: Final = 20
"""Skills from which on scores tell what fits from what does not."""
_WEAKEST: Final = 0.35
_WEAKEST_SHARE: Final = 0.3
"""Of the best score. Of the right answers of `bench.search` 97 % are above both."""
_DISTANT: Final = 0.25
"""The least similarity of a name to a word that is suggested when nothing fits."""


class Hit(NamedTuple):
    """A skill that is meant.

    Attributes:
        score: the higher the better, comparable within one question; None for a skill whose very
            name or path was asked for, which comes before all others.
        copies: the same skill at other places.
    """

    skill: Skill
    score: float | None
    copies: tuple[Skill, ...] = ()


class Search:
    """A search over a set of skills, which ranks as if there were no others. The first question
    builds the index."""

    def __init__(self, skill_set: SkillSet, embeddings: Embeddings | None = None) -> None:
        self._skill_set = skill_set
        self._embeddings = embeddings
        self._lock = threading.Lock()
        self._indexed: _Indexed | None = None

    def find(
        self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False
    ) -> list[Skill]:
        """Return up to `limit` skills that are meant by `query` and accepted, the best first.

        Any text may be asked; one that says nothing finds nothing. `accept` is called while others
        wait, so it must return at once and not search. With `by_meaning` the embeddings are asked
        too, which may be on another machine and take two seconds.

        Raises:
            NoFullTextError: this Python cannot index words.
        """
        return [hit.skill for hit in self.scored(query, limit, accept, by_meaning=by_meaning)]

    def scored(
        self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False
    ) -> list[Hit]:
        """Return what `find` finds, with the scores that put it in its order."""
        meant: list[tuple[str, float]] = []
        if by_meaning and self._embeddings is not None:
            among = None if self._skill_set.permissions is None else self._skill_set.snapshot.skills
            meant = self._embeddings.ranked(query, among)
        most = max(limit, 0)
        with self._lock:
            accepted = (hit for hit in self._current().find(query, meant) if accept(hit.skill))
            hits = list(islice(accepted, most * _COPIES))
        scores = {hit.skill.path: hit.score for hit in hits}
        found = grouped(hit.skill for hit in hits)
        return [
            Hit(skill, scores[skill.path], tuple(copies)) for skill, copies in islice(found, most)
        ]

    def nearest(self, query: str, limit: int, accept: Callable[[Skill], bool]) -> list[Skill]:
        """Return up to `limit` accepted skills whose names look like words of `query`, which found
        nothing."""
        with self._lock:
            return list(islice(filter(accept, self._current().nearest(query)), max(limit, 0)))

    def _current(self) -> _Indexed:
        # Put back once it is whole: what was left half changed is never used, the next question
        # builds it anew.
        indexed, self._indexed = self._indexed or _Indexed(), None
        indexed.index.follow(self._skill_set.snapshot)
        self._indexed = indexed
        return indexed


class _Indexed:
    """One snapshot, made ready to be asked."""

    def __init__(self) -> None:
        self.index = SearchIndex()

    def _hits(self, term: Term) -> int:
        return self.index.hits(term, _COUNTED)

    def find(self, query: str, meant: Sequence[tuple[str, float]] = ()) -> Iterator[Hit]:
        """Yield the skills that are meant, the best first: by their very name, then by their texts.

        `meant` are the paths of those that mean the same, and how nearly.
        """
        words = words_of(query[:_QUERY_LENGTH])
        exact = self.index.named("".join(words))
        yield from (Hit(skill, None) for skill in self.index.skills(exact))
        for rank, equals in groupby(self._ranked(words, meant), key=itemgetter(1)):
            yield from (
                Hit(skill, -rank)
                for skill in self.index.skills(row for row, _ in equals if row not in exact)
            )

    def _ranked(self, words: list[str], meant: Sequence[tuple[str, float]]) -> Ranking:
        telling = list(dict.fromkeys(word for word in words if word not in STOP_WORDS))[
            :_QUERY_WORDS
        ]
        if telling:
            by_meaning = [(row, -share) for path, share in meant if (row := self.index.row(path))]
            return self._by_texts(telling, words, by_meaning)
        # Only words that say nothing: still they may be in a name, or begin one while it is being
        # typed.
        terms = [Term(word) for word in dict.fromkeys(words[:_QUERY_WORDS])]
        if len(words) == 1 and len(words[0]) > 1:
            terms.append(Term(words[0], prefix=True))
        return self.index.ranked(terms, names_only=True)

    def _by_texts(
        self, telling: list[str], words: list[str], by_meaning: list[tuple[int, float]]
    ) -> Ranking:
        """Rank by the fields and the concepts of the words, for a sentence also by how bodies
        begin.

        Embeddings correct the ranking of few words, and count as much as that of a sentence.
        """
        is_sentence = len(telling) >= _SENTENCE or len(words) > _SENTENCE
        if is_sentence:
            telling = [word for word in telling if word not in COMMON_WORDS] or telling
        terms = self._terms(telling, words[-1])
        # What several words stand for weighs as often; BM25 adds a term up each time that it is
        # asked for.
        meanings = Counter(thesaurus().concepts(words[:_QUERY_WORDS], parts=True))
        concepts = self._telling({(term := Term(each)): self._hits(term) for each in meanings})
        terms += [term for term in concepts for _ in range(min(meanings[term.word], _MOST_REPEATS))]
        if terms and not is_sentence:
            found = self.index.ranked(terms)
            if not by_meaning:
                return found
            return fused(found, iter(by_meaning), _WEIGHT)
        scores: defaultdict[int, float] = defaultdict(float)
        for row, rank in self.index.ranked(terms, weights=SENTENCE_WEIGHTS):
            scores[row] += rank
        also = dict.fromkeys([*map(Term, telling), *terms])
        opening = self._telling(
            {term: self.index.opening_hits(term, _COUNTED) for term in also}, _MOST_HITS // 2
        )
        for row, rank in self.index.ranked_by_opening(opening, _MOST_EQUALS):
            scores[row] += _OPENING_WEIGHT * rank
        by_words = sorted(scores.items(), key=itemgetter(1))
        if by_meaning:
            return fused(iter(by_words), iter(by_meaning))
        if by_words and len(self.index) >= _MANY:
            floor = max(_WEAKEST * math.log(len(self.index)), -by_words[0][1] * _WEAKEST_SHARE)
            by_words = [(row, rank) for row, rank in by_words if -rank >= floor]
        return iter(by_words)

    def nearest(self, query: str) -> Iterator[Skill]:
        """Skills whose names look most like words of the question, the best first."""
        words = dict.fromkeys(words_of(query[:_QUERY_LENGTH])[:_QUERY_WORDS])
        telling = [word for word in words if word not in STOP_WORDS]
        alike = [
            Term(each) for word in telling for each in self.index.descriptions.like(word, _DISTANT)
        ]
        return (
            skill
            for row, _ in self.index.ranked(alike, names_only=True)
            for skill in self.index.skills([row])
        )

    def _terms(self, words: Sequence[str], unfinished: str) -> list[Term]:
        """Return what to look for: the words, the beginning that the last one may be, and what rare
        ones mean."""
        found: dict[Term, int] = {}
        looked_at = 0
        for word in words:
            terms = [Term(word)]
            if word == unfinished and (len(word) > 1 or not word.isascii()):
                terms.append(Term(word, prefix=True))
            hits = {term: self._hits(term) for term in terms}
            if max(hits.values()) * 1_000 <= len(self.index) and looked_at < _FOLLOWED:
                looked_at += 1
                hits |= {
                    term: self._hits(term) for term in map(Term, self.index.titles.meant(word))
                }
            if not any(hits.values()):
                hits |= {
                    term: self._hits(term) for term in map(Term, self.index.descriptions.like(word))
                }
            found |= hits
        # Where every word is in most skills, the rarest one still says more than nothing.
        rarest = sorted(found, key=lambda term: found[term] or len(self.index) + 1)[:1]
        return self._telling(found) or [term for term in rarest if found[term]]

    def _telling(self, found: Mapping[Term, int], most: int = _MOST_HITS) -> list[Term]:
        """Return those that are somewhere and not everywhere, the rarest first, as far as there is
        time to weigh them.
        """
        telling = {term: hits for term, hits in found.items() if 0 < hits <= len(self.index) // 2}
        chosen: list[Term] = []
        weighed = 0
        for term, hits in sorted(telling.items(), key=lambda each: (each[1], each[0].word)):
            weighed += hits
            if weighed <= most or not chosen:
                chosen.append(term)
        return chosen
