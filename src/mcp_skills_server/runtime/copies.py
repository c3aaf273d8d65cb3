"""Copies of one skill: several roots hold it, or one repository holds it in several places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.search_text import words_of

_ALIKE: Final = 0.8
"""The part of the words of two descriptions that both have, from which on skills of one name are copies."""

_COMPARED: Final = 16
"""Skills of one name that a further one is compared with."""


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

    Of many skills of one name only the first few are compared word by word, so that the time is linear.
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
