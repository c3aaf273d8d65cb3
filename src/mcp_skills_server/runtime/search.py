"""Ranked full-text search of skills by name, title, tags, description, headings and path.

The index is in memory. The first query builds it; later queries reindex only changed skills.
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
"""Rows of the index with their ranks, the lowest and best first."""

_SOFTNESS: Final = 60
"""The constant of reciprocal rank fusion; its usual value."""
FUSED: Final = 60
"""The number of places of each ranking that are fused."""
_MOST_EQUALS: Final = 1_000
_WEIGHT: Final = 3.0
"""The weight of the full-text ranking in a fusion with embeddings, for queries of few words."""


def fused(first: Ranking, second: Ranking, weight: float = 1.0) -> Ranking:
    """Yield rows by weighted reciprocal rank fusion, then the other rows of `first`.

    `weight` is that of `first`; that of `second` is 1.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    rest = _score(first, scores, weight)
    _score(second, scores, 1.0)
    yield from sorted(((row, -score) for row, score in scores.items()), key=itemgetter(1))
    yield from (each for each in rest if each[0] not in scores)


def _score(ranking: Ranking, scores: defaultdict[int, float], weight: float) -> Ranking:
    """Add the scores of the first places, where ties share a place, and return the other rows."""
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
"""The maximum number of characters, and of words, of a query that are used."""
_MOST_HITS: Final = 3_000
"""The maximum number of occurrences that a query ranks, which bounds its time. The most common
words are dropped first."""
_COUNTED: Final = _MOST_HITS + 1
"""The limit of counting: a word with this many occurrences is dropped in any case."""
_FOLLOWED: Final = 6
"""The maximum number of words of a query whose spelling is corrected."""
_SENTENCE: Final = 3
"""The minimum number of words, without stop words, of a query that is a task, not a name."""
_OPENING_WEIGHT: Final = 0.15
"""The weight of a body's opening relative to the fields; tuned with `bench.search`, as is that
of the concepts."""
_MOST_REPEATS: Final = 3
_COPIES: Final = 10
"""The factor of hits that are fetched, in order to find copies."""
_MANY: Final = 20
"""The minimum number of skills at which low scores are cut off."""
_WEAKEST: Final = 0.35
_WEAKEST_SHARE: Final = 0.3
"""The cut-off as a part of the best score; 97 % of the right answers of `bench.search` are above
this and `_WEAKEST`, which is a factor of the logarithm of the number of skills."""
_DISTANT: Final = 0.25
"""The minimum similarity of a word to a name that is suggested if nothing was found."""


class Hit(NamedTuple):
    """A result of a search.

    Attributes:
        score: the relevance, comparable within one query; None for an exact match of the name or
            path, which comes first.
        copies: near-duplicates of the skill, at other paths.
    """

    skill: Skill
    score: float | None
    copies: tuple[Skill, ...] = ()


class Search:
    """A thread-safe search over a set of skills; its ranks depend on no other skill."""

    def __init__(self, skill_set: SkillSet, embeddings: Embeddings | None = None) -> None:
        self._skill_set = skill_set
        self._embeddings = embeddings
        self._lock = threading.Lock()
        self._indexed: _Indexed | None = None

    def find(
        self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False
    ) -> list[Skill]:
        """Return up to `limit` skills that match `query` and are accepted, the best first.

        `accept` is called with the lock held, so it must be quick and must not search. `by_meaning`
        adds semantic search, which may call another machine and take two seconds.

        Raises:
            NoFullTextError: this Python has no full-text search.
        """
        return [hit.skill for hit in self.scored(query, limit, accept, by_meaning=by_meaning)]

    def scored(
        self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False
    ) -> list[Hit]:
        """Return the results of `find` with their scores and copies."""
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
        """Return up to `limit` accepted skills with names similar to words of `query`."""
        with self._lock:
            return list(islice(filter(accept, self._current().nearest(query)), max(limit, 0)))

    def _current(self) -> _Indexed:
        # Put back only after the update: after an exception the next query rebuilds the index
        # instead of using a half-updated one.
        indexed, self._indexed = self._indexed or _Indexed(), None
        indexed.index.follow(self._skill_set.snapshot)
        self._indexed = indexed
        return indexed


class _Indexed:
    """The query logic over the index of one snapshot."""

    def __init__(self) -> None:
        self.index = SearchIndex()

    def _hits(self, term: Term) -> int:
        return self.index.hits(term, _COUNTED)

    def find(self, query: str, meant: Sequence[tuple[str, float]] = ()) -> Iterator[Hit]:
        """Yield the matching skills: exact names and paths first, then by rank of their texts.

        `meant` has the paths of semantically similar skills with their similarities.
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
        # The query has stop words only, which may still be part of a name, or its beginning while
        # the user types.
        terms = [Term(word) for word in dict.fromkeys(words[:_QUERY_WORDS])]
        if len(words) == 1 and len(words[0]) > 1:
            terms.append(Term(words[0], prefix=True))
        return self.index.ranked(terms, names_only=True)

    def _by_texts(
        self, telling: list[str], words: list[str], by_meaning: list[tuple[int, float]]
    ) -> Ranking:
        """Rank by fields and concepts, for a sentence also by the openings of bodies.

        Embeddings have a third of the full-text weight for few words, and the same for a sentence.
        """
        is_sentence = len(telling) >= _SENTENCE or len(words) > _SENTENCE
        if is_sentence:
            telling = [word for word in telling if word not in COMMON_WORDS] or telling
        terms = self._terms(telling, words[-1])
        # A concept of several words counts several times: BM25 adds up the repetitions of a term.
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
        """Return the skills with names most similar to words of the query, the best first."""
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
        """Return the search terms: words, the last one as a prefix, and corrections of rare words.

        For a word without hits these are the words that are similar to it.
        """
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
        # If every word is in most skills, rank by the rarest one alone.
        rarest = sorted(found, key=lambda term: found[term] or len(self.index) + 1)[:1]
        return self._telling(found) or [term for term in rarest if found[term]]

    def _telling(self, found: Mapping[Term, int], most: int = _MOST_HITS) -> list[Term]:
        """Return the terms of at most half of the skills, rarest first, within `most` hits."""
        telling = {term: hits for term, hits in found.items() if 0 < hits <= len(self.index) // 2}
        chosen: list[Term] = []
        weighed = 0
        for term, hits in sorted(telling.items(), key=lambda each: (each[1], each[0].word)):
            weighed += hits
            if weighed <= most or not chosen:
                chosen.append(term)
        return chosen
