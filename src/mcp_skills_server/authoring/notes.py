"""The notes that a reviewer would make on skills: collected for `validate` alone, from every rule of that severity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import media
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing
from mcp_skills_server.runtime.overlap import pairs
from mcp_skills_server.validation import advice

MOST_TEXT: Final = 1 << 20
"""Bytes of a text file that is looked through for the names of other files."""


def notes(registry: Registry, skills: Sequence[Skill]) -> list[Problem]:
    """Return the notes on these skills, which were checked. A file that cannot be read is passed over."""
    found = [
        each for skill in skills for each in (*skill.problems, *registry.checks.of(skill)) if each.severity == "note"
    ]
    usable = [skill for skill in skills if skill.standing > Standing.UNUSABLE and SKILL_MD in skill.files]
    for skill in usable:
        # Most skills name all of their files in SKILL.md, and then no other is read again.
        unused = advice.unnamed_files(_texts(registry, skill, [SKILL_MD]), skill.files)
        if unused:
            unused = advice.unnamed_files(_texts(registry, skill, skill.files), unused)
        if unused:
            found.append(advice.unused_files(unused).at(_place(registry, skill), skill.path))
    nearest: dict[Skill, tuple[Skill, float]] = {}
    counts: Counter[Skill] = Counter()
    for skill, near in pairs(usable, advice.COLLIDES):  # the most alike first
        for one, other in ((skill, near.other), (near.other, skill)):
            nearest.setdefault(one, (other, near.share))
            counts[one] += 1
    for skill, (other, share) in nearest.items():
        found.append(advice.overlap(skill, other, share, counts[skill] - 1).at(_place(registry, skill), skill.path))
    return found


def _texts(registry: Registry, skill: Skill, paths: Iterable[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in paths:
        file = skill.files[path]
        if file.size > MOST_TEXT:
            continue
        try:
            text = media.as_text(registry.read(file), media.media_type(path))
        except StaleFileError:
            continue
        if text is not None:
            texts[path] = text
    return texts


def _place(registry: Registry, skill: Skill) -> str:
    return registry.roots[skill.root].show(skill.files[SKILL_MD].location)
