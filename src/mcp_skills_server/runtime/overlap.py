"""Overlap of the descriptions of two skills, by which a model may take one for the other; and
copies of one skill.

Compared is what decides whether a skill is chosen: name, title, tags and description, as words that
say something. Two skills overlap by the part of the smaller set of words that the other has too: a
description that stands as a whole in a longer one overlaps with it wholly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.search_text import STOP_WORDS, texts_of, words_of

_DECIDING: Final = 4
"""The number of a skill's texts that count: name, title, tags and description."""
_COMMON: Final = 200
"""A word that more skills have tells none from another."""
_ALIKE: Final = 0.8
"""The part of the words of two descriptions that both have, from which on skills of one name are
copies."""

_COMPARED: Final = 16
"""Skills of one name that a further one is compared with."""


class Overlap(NamedTuple):
    """The overlap with another skill, 1 where all words of one are the other's too, and the shared
    words, sorted."""

    other: Skill
    share: float
    words: Sequence[str]


def deciding_words(skill: Skill) -> frozenset[str]:
    """Return the words that a skill is chosen by."""
    return (
        frozenset(word for text in texts_of(skill)[:_DECIDING] for word in words_of(text))
        - STOP_WORDS
    )


def overlaps(skill: Skill, others: Iterable[Skill]) -> list[Overlap]:
    """Return how far each of these overlaps with the skill, the most alike first; the skill itself
    is passed over."""
    own = deciding_words(skill)
    found = [_overlap(own, other, deciding_words(other)) for other in others if other is not skill]
    return sorted(found, key=lambda each: (-each.share, each.other.path))


def _overlap(own: frozenset[str], other: Skill, theirs: frozenset[str]) -> Overlap:
    both = own & theirs
    return Overlap(other, len(both) / max(1, min(len(own), len(theirs))), sorted(both))


def pairs(skills: Sequence[Skill], least: float) -> list[tuple[Skill, Overlap]]:
    """Return the pairs of skills that overlap at least so far, the most alike first.

    Only skills that share a word which few have are compared, so ten thousand skills are not
    compared each with each.
    """
    words = [deciding_words(skill) for skill in skills]
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for number, own in enumerate(words):
        for word in own:
            holders[word].append(number)
    found: list[tuple[Skill, Overlap]] = []
    for number, own in enumerate(words):
        near = {
            other
            for word in own
            if len(holders[word]) <= _COMMON
            for other in holders[word]
            if other > number
        }
        for other in near:
            overlap = _overlap(own, skills[other], words[other])
            if overlap.share >= least:
                found.append((skills[number], overlap))
    return sorted(found, key=lambda each: (-each[1].share, each[0].path, each[1].other.path))


def is_copy(one: Skill, other: Skill) -> bool:
    """Return whether two skills have one name and say nearly the same of themselves."""
    if one.name != other.name:
        return False
    if one.description == other.description:
        return True
    first, second = {*words_of(one.description)}, {*words_of(other.description)}
    return len(first & second) >= _ALIKE * len(first | second)


def grouped(skills: Iterable[Skill]) -> Iterator[tuple[Skill, list[Skill]]]:
    """Yield each skill that is no copy of one before it, with its copies, in order of first places.

    Of many skills of one name only the first few are compared word by word, so that the time is
    linear.
    """
    same: dict[tuple[str, str], list[Skill]] = {}
    firsts: dict[str, list[tuple[Skill, list[Skill]]]] = {}
    order: list[tuple[Skill, list[Skill]]] = []
    for skill in skills:
        key = skill.name, skill.description
        copies = same.get(key)
        if copies is None:
            known = firsts.setdefault(skill.name, [])
            copies = next((copies for first, copies in known if is_copy(first, skill)), None)
            if copies is None:
                same[key] = []
                order.append((skill, same[key]))
                if len(known) < _COMPARED:
                    known.append(order[-1])
                continue
            same[key] = copies
        copies.append(skill)
    return iter(order)
