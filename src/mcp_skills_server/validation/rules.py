"""The table of all rules, and the ways to run them.

`check` runs at every scan: it looks at the frontmatter and at plain counts of the body. All else is deep: `validate`
alone runs it, through `lint.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, Final

from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import Problem, Snapshot
from mcp_skills_server.validation import body, catalog, fields, names, text, values
from mcp_skills_server.validation.fields import MAX_COMPATIBILITY, MAX_DESCRIPTION, MAX_NAME
from mcp_skills_server.validation.rule import Rule, SkillMd, run

__all__ = ("MAX_COMPATIBILITY", "MAX_DESCRIPTION", "MAX_NAME", "RULES", "check", "check_catalog", "check_deeply")

_SKILL_MD: Final = (fields.RULES, values.RULES, body.RULES)
RULES: Final[tuple[Rule[Any], ...]] = tuple(
    row for rules in (*_SKILL_MD, text.RULES, names.RULES, catalog.RULES) for row in rules.rows
)


def check(document: Document, directory: str, *, about: tuple[str, ...] = ("",)) -> tuple[Problem, ...]:
    """The problems that every scan looks for in a SKILL.md.

    Args:
        document: the file; nothing is found where its frontmatter could not be read.
        directory: the name of its directory, which the skill's name must equal.
        about: how the codes begin that are looked for.
    """
    if document.frontmatter is None:
        return ()
    skill = SkillMd(document, document.frontmatter, directory)
    return tuple(run(_at_scan(about), skill))


@cache
def _at_scan(about: tuple[str, ...]) -> tuple[Rule[SkillMd], ...]:
    return tuple(row for rules in _SKILL_MD for row in rules.chosen(deep=False, about=about))


def check_deeply(document: Document, files: Collection[str]) -> tuple[Problem, ...]:
    """The problems that only `validate` looks for in a SKILL.md. `files` are the paths of the skill's files."""
    if document.frontmatter is None:
        return ()
    skill = SkillMd(document, document.frontmatter, "", files)
    return tuple(found for rules in _SKILL_MD for found in rules.check(skill, deep=True))


def check_catalog(snapshot: Snapshot) -> list[Problem]:
    """The problems that show only among several skills, each with its skill path and the file's path in the skill."""
    return catalog.RULES.check(snapshot, deep=True)
