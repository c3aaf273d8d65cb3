"""Ranked full-text search of skills by name, title, tags, description, headings and path.

The index is in memory. The first query builds it; later queries reindex only changed skills.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import View
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.overlap import Overlap, group_copies, overlaps
from mcp_skills_server.runtime.search_index import MAX_HITS, SENTENCE_WEIGHTS, SearchIndex, Term
from mcp_skills_server.runtime.search_text import (
    COMMON_WORDS,
    MAX_KEYWORDS,
    MAX_QUERY_CHARACTERS,
    STOP_WORDS,
    words_of,
)
from mcp_skills_server.runtime.thesaurus import thesaurus

if TYPE_CHECKING:
    from mcp_skills_server.runtime.embeddings.index import Embeddings


Ranking: TypeAlias = Iterator[tuple[int, float]]
"""Rows of the index with their ranks, the lowest and best first."""

_RRF_K: Final = 60
"""The constant of reciprocal rank fusion; its usual value."""
FUSED: Final = 60
"""The number of places of each ranking that are fused."""
_MAX_EQUALS: Final = 1_000
_FULL_TEXT_WEIGHT: Final = 3.0
"""The weight of the full-text ranking in a fusion with embeddings, for queries of few words."""


def fuse(first: Ranking, second: Ranking, weight: float = 1.0) -> Ranking:
    """Yield rows by weighted reciprocal rank fusion, then the other rows of `first`.

    `weight` is that of `first`; that of `second` is 1.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    rest = _score(first, scores, weight)
    _score(second, scores, 1.0)
    yield from sorted(((row, -score) for row, score in scores.items()), key=itemgetter(1))
    yield from (hit for hit in rest if hit[0] not in scores)


def _score(ranking: Ranking, scores: defaultdict[int, float], weight: float) -> Ranking:
    """Add the scores of the first places, where ties share a place, and return the other rows."""
    position, previous = 0, None
    for count, (row, rank) in enumerate(ranking):
        if rank != previous:
            position, previous = count, rank
        if position >= FUSED or count >= _MAX_EQUALS:
            return chain([(row, rank)], ranking)
        scores[row] += weight / (_RRF_K + position)
    return ranking


_MAX_CORRECTED: Final = 6
"""The maximum number of words of a query whose spelling is corrected."""
_MIN_SENTENCE_WORDS: Final = 3
"""The minimum number of words, without stop words, of a query that is a task, not a name."""
_OPENING_WEIGHT: Final = 0.15
"""The weight of a body's opening relative to the fields; tuned with `bench.search`, as is that
of the concepts."""
_MAX_REPEATS: Final = 3
_COPY_FACTOR: Final = 10
"""The factor of hits that are fetched, in order to find copies."""
_CUTOFF_MIN_SKILLS: Final = 20
"""The minimum number of skills at which low scores are cut off."""
_CUTOFF_FACTOR: Final = 0.35
_CUTOFF_SHARE: Final = 0.3
"""The cut-off as a part of the best score; 97 % of the right answers of `bench.search` are above
this and `_CUTOFF_FACTOR`, which is a factor of the logarithm of the number of skills."""
_SUGGESTION_SIMILARITY: Final = 0.25
"""The minimum similarity of a word to a name that is suggested if nothing was found."""


class Hit(NamedTuple):
    """A result of a search."""

    skill: Skill
    score: float | None
    """The relevance, comparable within one query; None for an exact match of the name or path,
    which comes first."""
    copies: tuple[Skill, ...] = ()  # near-duplicates of the skill, at other paths


class FollowedIndex:
    """The index of a set of skills, which the searches of its parts share. Thread-safe."""

    def __init__(self, skill_set: SkillSet | View) -> None:
        self._skill_set = skill_set
        self._lock = threading.Lock()
        self._indexed: _Indexed | None = None

    @contextmanager
    def limited_to(self, skill_set: SkillSet | View) -> Generator[_Indexed]:
        """Lock the index, as the skills are now, for queries that find only those of a set."""
        with self._lock:
            # Put back only after the update: after an exception the next query rebuilds the index
            # instead of using a half-updated one.
            indexed, self._indexed = self._indexed, None
            if indexed is None:  # an empty one is false
                indexed = _Indexed()
            snapshot = self._skill_set.snapshot
            indexed.follow(snapshot)
            if skill_set is not self._skill_set:
                snapshot = skill_set.snapshot
            indexed.limit_to(snapshot)
            self._indexed = indexed
            yield indexed


_SIMILAR: Final = 20
"""Results of a search for a description that are compared with its skill."""
_MIN_OVERLAP: Final = 0.4
_MAX_CONFUSABLE: Final = 5


class Search:
    """A thread-safe search over a set of skills.

    With the `index` of a larger set it finds no other skill, and no word of another, but ranks and
    spelling corrections depend on which words the skills of the larger set have.
    """

    def __init__(
        self,
        skill_set: SkillSet | View,
        embeddings: Embeddings | None = None,
        index: FollowedIndex | None = None,
        is_stale: Callable[[Skill], bool] | None = None,
    ) -> None:
        self._skill_set = skill_set
        self._embeddings = embeddings
        self._index = index or FollowedIndex(skill_set)
        self._is_stale = is_stale

    def restricted_to(self, skill_set: SkillSet | View) -> Search:
        """Return the search of a part of these skills, with the same index."""
        if skill_set is self._skill_set:
            return self
        return Search(skill_set, self._embeddings, self._index, self._is_stale)

    def find(
        self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False
    ) -> list[Skill]:
        """Return up to `limit` skills that match `query` and are accepted, the best first.

        `accept` is called with the lock held, so it must be quick and must not search. `by_meaning`
        adds semantic search, which may call another machine and take two seconds.

        Raises:
            NoFullTextError: this Python has no full-text search.
        """
        return [hit.skill for hit in self.find_scored(query, limit, accept, by_meaning=by_meaning)]

    def confusable(
        self, skill: Skill, accept: Callable[[Skill], bool], rivals: Sequence[Skill] = ()
    ) -> list[Overlap]:
        """Return the accepted skills that a model may confuse with this one, the likeliest first.

        `rivals` match the same prompt.

        Raises:
            NoFullTextError: this Python has no full-text search.
        """
        similar = self.find(skill.description or skill.name, _SIMILAR, accept)
        others = overlaps(skill, dict.fromkeys([*rivals, *similar]))
        near = [other for other in others if other.share >= _MIN_OVERLAP]
        return near[:_MAX_CONFUSABLE]

    def find_scored(
        self, query: str, limit: int, accept: Callable[[Skill], bool], *, by_meaning: bool = False
    ) -> list[Hit]:
        """Return the results of `find` with their scores and copies."""
        semantic: list[tuple[str, float]] = []
        if by_meaning and self._embeddings is not None:
            semantic = self._embeddings.ranked(query, self._skill_set.snapshot.skills)
        most = max(limit, 0)
        with self._index.limited_to(self._skill_set) as index:
            accepted = (hit for hit in index.find(query, semantic) if accept(hit.skill))
            hits = list(islice(accepted, most * _COPY_FACTOR))
        scores = {hit.skill.path: hit.score for hit in hits}
        ordered = chain.from_iterable(
            self._fresh_first([hit.skill for hit in equals])
            for _, equals in groupby(hits, key=attrgetter("score"))
        )
        results: list[Hit] = []
        for skill, copies in islice(group_copies(ordered), most):
            first, *others = self._fresh_first([skill, *copies])
            results.append(Hit(first, scores[first.path], tuple(others)))
        return results

    def _fresh_first(self, equals: list[Skill]) -> list[Skill]:
        """Return skills of one rank, the stale ones last; a single one is not judged."""
        if self._is_stale is None or len(equals) == 1:
            return equals
        return sorted(equals, key=self._is_stale)

    def nearest(self, query: str, limit: int, accept: Callable[[Skill], bool]) -> list[Skill]:
        """Return up to `limit` accepted skills with names similar to words of `query`."""
        with self._index.limited_to(self._skill_set) as index:
            return list(islice(filter(accept, index.nearest(query)), max(limit, 0)))


class _Indexed(SearchIndex):
    """An index with the logic of queries."""

    def find(self, query: str, semantic: Sequence[tuple[str, float]] = ()) -> Iterator[Hit]:
        """Yield the matching skills: exact names and paths first, then by rank of their texts.

        `semantic` has the paths of semantically similar skills with their similarities.
        """
        words = words_of(query[:MAX_QUERY_CHARACTERS])
        exact = self.exact_matches("".join(words))
        yield from (Hit(skill, None) for skill in self.skills(exact))
        for rank, equals in groupby(self._ranked(words, semantic), key=itemgetter(1)):
            rows = [row for row, _ in equals if row not in exact]
            yield from (Hit(skill, -rank) for skill in self.skills(rows))

    def _ranked(self, words: list[str], semantic: Sequence[tuple[str, float]]) -> Ranking:
        keywords = list(dict.fromkeys(word for word in words if word not in STOP_WORDS))
        if keywords:
            # rows begin with 1
            alike = [(row, -share) for path, share in semantic if (row := self._rows.get(path))]
            return self._by_texts(keywords[:MAX_KEYWORDS], words, alike)
        # The query has stop words only, which may still be part of a name, or its beginning while
        # the user types.
        terms = [Term(word) for word in dict.fromkeys(words[:MAX_KEYWORDS])]
        if len(words) == 1 and len(words[0]) > 1:
            terms.append(Term(words[0], prefix=True))
        return self.ranked(terms, names_only=True)

    def _by_texts(
        self, keywords: list[str], words: list[str], by_meaning: list[tuple[int, float]]
    ) -> Ranking:
        """Rank by fields and concepts, for a sentence also by the openings of bodies.

        Embeddings have a third of the full-text weight for few words, and the same for a sentence.
        """
        is_sentence = len(keywords) >= _MIN_SENTENCE_WORDS or len(words) > _MIN_SENTENCE_WORDS
        if is_sentence:
            keywords = [word for word in keywords if word not in COMMON_WORDS] or keywords
        terms = self._terms(keywords, words[-1])
        # A concept of several words counts several times: BM25 adds up the repetitions of a term.
        meanings = Counter(thesaurus().concepts(words[:MAX_KEYWORDS], parts=True))
        concepts = self._selective(self.hits(map(Term, meanings)))
        terms += [term for term in concepts for _ in range(min(meanings[term.word], _MAX_REPEATS))]
        if terms and not is_sentence:
            ranked = self.ranked(terms)
            if not by_meaning:
                return ranked
            return fuse(ranked, iter(by_meaning), _FULL_TEXT_WEIGHT)
        scores: defaultdict[int, float] = defaultdict(float)
        for row, rank in self.ranked(terms, weights=SENTENCE_WEIGHTS):
            scores[row] += rank
        also = dict.fromkeys([*map(Term, keywords), *terms])
        opening = self._selective(self.hits(also, "openings"), MAX_HITS // 2)
        for row, rank in self.ranked_by_opening(opening, _MAX_EQUALS):
            scores[row] += _OPENING_WEIGHT * rank
        by_words = sorted(scores.items(), key=itemgetter(1))
        if by_meaning:
            return fuse(iter(by_words), iter(by_meaning))
        if by_words and len(self) >= _CUTOFF_MIN_SKILLS:
            floor = max(_CUTOFF_FACTOR * math.log(len(self)), -by_words[0][1] * _CUTOFF_SHARE)
            by_words = [(row, rank) for row, rank in by_words if -rank >= floor]
        return iter(by_words)

    def nearest(self, query: str) -> Iterator[Skill]:
        """Return the skills with names most similar to words of the query, the best first."""
        words = dict.fromkeys(words_of(query[:MAX_QUERY_CHARACTERS])[:MAX_KEYWORDS])
        keywords = [word for word in words if word not in STOP_WORDS]
        similar = [self.descriptions.similar(word, _SUGGESTION_SIMILARITY) for word in keywords]
        rows = self.ranked([*map(Term, chain(*similar))], names_only=True)
        return (skill for row, _ in rows for skill in self.skills([row]))

    def _terms(self, words: Sequence[str], unfinished: str) -> list[Term]:
        """Return the search terms: words, the last one as a prefix, and corrections of rare words.

        For a word without hits these are the words that are similar to it.
        """
        counts: dict[Term, int] = {}
        corrected = 0
        for word in words:
            terms = [Term(word)]
            if word == unfinished and (len(word) > 1 or not word.isascii()):
                terms.append(Term(word, prefix=True))
            hits = self.hits(terms)
            if max(hits.values()) * 1_000 <= len(self) and corrected < _MAX_CORRECTED:
                corrected += 1
                hits |= self.hits(map(Term, self.titles.corrections(word)))
            if not any(hits.values()):
                hits |= self.hits(map(Term, self.descriptions.similar(word)))
            counts |= hits
        # If every word is in most skills, rank by the rarest one alone.
        rarest = sorted(counts, key=lambda term: counts[term] or len(self) + 1)[:1]
        return self._selective(counts) or [term for term in rarest if counts[term]]

    def _selective(self, terms: Mapping[Term, int], most: int = MAX_HITS) -> list[Term]:
        """Return the terms of at most half of the skills, rarest first, within `most` hits."""
        selective = {term: hits for term, hits in terms.items() if 0 < hits <= len(self) // 2}
        chosen: list[Term] = []
        total = 0
        for term, hits in sorted(selective.items(), key=lambda pair: (pair[1], pair[0].word)):
            total += hits
            if total <= most or not chosen:
                chosen.append(term)
        return chosen
