"""Similarity of skills: pairs that a model may confuse, and near-duplicate copies.

A pair is compared by the words that decide a model's choice: those of name, title, tags and
description without stop words. The measure is the overlap coefficient: the shared words divided by
the words of the smaller set. A description contained in a longer one thus has overlap 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Final, NamedTuple

from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.search_text import STOP_WORDS, texts_of, words_of

_DECIDING: Final = 4
"""The number of `texts_of` that are compared: name, title, tags and description."""
_COMMON: Final = 200
"""Words of more skills than this select no candidate pairs."""
_COPY_SIMILARITY: Final = 0.8
"""The minimum Jaccard similarity of the descriptions of copies of one name."""
_MAX_COMPARED: Final = 16
"""The maximum number of skills of one name that each further one is compared with."""


class Overlap(NamedTuple):
    """Another skill, the overlap coefficient (0 to 1), and the shared words, sorted."""

    other: Skill
    share: float
    words: Sequence[str]


def deciding_words(skill: Skill) -> frozenset[str]:
    """Return the words of a skill's name, title, tags and description without stop words."""
    words = [word for text in texts_of(skill)[:_DECIDING] for word in words_of(text)]
    return frozenset(words) - STOP_WORDS


def overlaps(skill: Skill, others: Iterable[Skill]) -> list[Overlap]:
    """Return the overlaps of a skill with the other ones, the most similar first."""
    own = deciding_words(skill)
    measured = [
        _overlap(own, other, deciding_words(other)) for other in others if other is not skill
    ]
    return sorted(measured, key=lambda overlap: (-overlap.share, overlap.other.path))


def _overlap(own: frozenset[str], other: Skill, theirs: frozenset[str]) -> Overlap:
    both = own & theirs
    return Overlap(other, len(both) / max(1, min(len(own), len(theirs))), sorted(both))


def pairs(skills: Sequence[Skill], least: float) -> list[tuple[Skill, Overlap]]:
    """Return the pairs of skills with an overlap of at least `least`, the most similar first.

    A pair with that overlap shares one of the rarest words of its smaller skill (prefix filtering),
    so only the skills that hold these words are compared.
    """
    words = [deciding_words(skill) for skill in skills]
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for number, own in enumerate(words):
        for word in own:
            holders[word].append(number)
    overlapping: list[tuple[Skill, Overlap]] = []
    for number, own in enumerate(words):
        rarest = sorted(own, key=lambda word: (len(holders[word]), word))
        candidates: set[int] = set()
        for word in rarest[: len(own) - ceil(least * len(own)) + 1]:
            if len(holders[word]) <= _COMMON:
                candidates.update(holders[word])
        for other in candidates:
            if (len(words[other]), other) <= (len(own), number):
                continue  # compared as the smaller one
            first, second = sorted((number, other))
            overlap = _overlap(words[first], skills[second], words[second])
            if overlap.share >= least:
                overlapping.append((skills[first], overlap))
    return sorted(overlapping, key=lambda pair: (-pair[1].share, pair[0].path, pair[1].other.path))


def is_copy(one: Skill, other: Skill) -> bool:
    """Return whether two skills have the same name and nearly the same description."""
    if one.name != other.name:
        return False
    if one.description == other.description:
        return True
    first, second = {*words_of(one.description)}, {*words_of(other.description)}
    return len(first & second) >= _COPY_SIMILARITY * len(first | second)


def group_copies(skills: Iterable[Skill]) -> Iterator[tuple[Skill, list[Skill]]]:
    """Return each skill that is not a copy, with its later copies, in the order given.

    Of many skills of one name only the first few are compared by words, to keep the time linear.
    """
    copies_by_text: dict[tuple[str, str], list[Skill]] = {}
    compared_by_name: dict[str, list[tuple[Skill, list[Skill]]]] = {}
    groups: list[tuple[Skill, list[Skill]]] = []
    for skill in skills:
        text = skill.name, skill.description
        copies = copies_by_text.get(text)
        if copies is None:
            compared = compared_by_name.setdefault(skill.name, [])
            copies = next((copies for first, copies in compared if is_copy(first, skill)), None)
            if copies is None:
                copies_by_text[text] = []
                groups.append((skill, copies_by_text[text]))
                if len(compared) < _MAX_COMPARED:
                    compared.append(groups[-1])
                continue
            copies_by_text[text] = copies
        copies.append(skill)
    return iter(groups)
