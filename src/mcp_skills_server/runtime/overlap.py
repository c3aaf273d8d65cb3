"""Overlap of the descriptions of two skills, by which a model may take one for the other. Pure.

Compared is what decides whether a skill is chosen: name, title, tags and description, as words that say something. Two
skills overlap by the part of the smaller set of words that the other has too: a description that stands as a whole in
a longer one overlaps with it wholly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.search_text import texts_of, words_of
from mcp_skills_server.runtime.stop_words import STOP_WORDS

_DECIDING: Final = 4
"""The number of a skill's texts that count: name, title, tags and description."""
_COMMON: Final = 200
"""A word that more skills have tells none from another."""


class Overlap(NamedTuple):
    """The overlap of a skill with another one.

    Attributes:
        other: the other one.
        share: 0 for nothing, 1 where all words of one of them are the other's too.
        words: that both have, in the order of the alphabet.
    """

    other: Skill
    share: float
    words: Sequence[str]


def deciding_words(skill: Skill) -> frozenset[str]:
    """Return the words that a skill is chosen by."""
    return frozenset(word for text in texts_of(skill)[:_DECIDING] for word in words_of(text)) - STOP_WORDS


def overlaps(skill: Skill, others: Iterable[Skill]) -> list[Overlap]:
    """Return how far each of these overlaps with the skill, the most alike first; the skill itself is passed over."""
    own = deciding_words(skill)
    found: list[Overlap] = []
    for other in others:
        if other is not skill:
            theirs = deciding_words(other)
            both = own & theirs
            found.append(Overlap(other, len(both) / max(1, min(len(own), len(theirs))), sorted(both)))
    return sorted(found, key=lambda each: (-each.share, each.other.path))


def pairs(skills: Sequence[Skill], least: float) -> list[tuple[Skill, Overlap]]:
    """Return the pairs of skills that overlap at least so far, the most alike first.

    Only skills that share a word which few have are compared, so ten thousand skills are not compared each with each.
    """
    words = [deciding_words(skill) for skill in skills]
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for number, own in enumerate(words):
        for word in own:
            holders[word].append(number)
    found: list[tuple[Skill, Overlap]] = []
    for number, own in enumerate(words):
        near = {other for word in own if len(holders[word]) <= _COMMON for other in holders[word] if other > number}
        for other in near:
            both = own & words[other]
            share = len(both) / max(1, min(len(own), len(words[other])))
            if both and share >= least:
                found.append((skills[number], Overlap(skills[other], share, sorted(both))))
    return sorted(found, key=lambda each: (-each[1].share, each[0].path, each[1].other.path))
