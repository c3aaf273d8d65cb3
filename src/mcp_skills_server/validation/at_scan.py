"""The rules that every scan runs: they look at the frontmatter and at plain counts of the body.

A module of its own, because a start does without the others.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import Problem
from mcp_skills_server.validation import body, fields, values
from mcp_skills_server.validation.rule import Rule, Rules, SkillMd, run

SKILL_MD_RULES: Final[tuple[Rules[SkillMd], ...]] = (fields.RULES, values.RULES, body.RULES)
"""All rules that read a SKILL.md, the deep ones included."""


def check(document: Document, directory: str, *, about: tuple[str, ...] = ("",)) -> tuple[Problem, ...]:
    """Return the problems that every scan looks for in a SKILL.md.

    Args:
        document: the file; nothing is found where its frontmatter could not be read.
        directory: the name of its directory, which the skill's name must equal.
        about: how the codes begin that are looked for.
    """
    if document.frontmatter is None:
        return ()
    skill = SkillMd(document, document.frontmatter, directory)
    return tuple(run(_chosen(SKILL_MD_RULES, about), skill))


@cache
def _chosen(tables: tuple[Rules[SkillMd], ...], about: tuple[str, ...]) -> tuple[Rule[SkillMd], ...]:
    return tuple(row for rules in tables for row in rules.chosen(deep=False, about=about))
