"""The rules that read a SKILL.md: those that every scan runs, and the deep ones, which `validate` alone runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import Problem
from mcp_skills_server.validation import body, fields, values
from mcp_skills_server.validation.rule import Rules, SkillMd

SKILL_MD_RULES: Final[tuple[Rules[SkillMd], ...]] = (fields.RULES, values.RULES, body.RULES)


def check(document: Document, directory: str) -> tuple[Problem, ...]:
    """Return the problems that every scan looks for in a SKILL.md.

    Args:
        document: the file; nothing is found where its frontmatter could not be read.
        directory: the name of its directory, which the skill's name must equal.
    """
    return _check(document, directory, (), deep=False)


def check_deeply(document: Document, files: Collection[str]) -> tuple[Problem, ...]:
    """Return the problems that only `validate` looks for in a SKILL.md. `files` are the paths of the skill's files."""
    return _check(document, "", files, deep=True)


def _check(document: Document, directory: str, files: Collection[str], *, deep: bool) -> tuple[Problem, ...]:
    if document.frontmatter is None:
        return ()
    skill = SkillMd(document, document.frontmatter, directory, files)
    return tuple(found for rules in SKILL_MD_RULES for found in rules.check(skill, deep=deep))
