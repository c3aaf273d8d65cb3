"""The table of all rules, and the ways to run them.

`check` runs at every scan. All else is deep: `validate` alone runs it, through `lint.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import Problem, Snapshot
from mcp_skills_server.validation import catalog, names, text
from mcp_skills_server.validation.at_scan import SKILL_MD_RULES, check
from mcp_skills_server.validation.fields import MAX_COMPATIBILITY, MAX_DESCRIPTION, MAX_NAME
from mcp_skills_server.validation.rule import Rule, SkillMd

__all__ = ("MAX_COMPATIBILITY", "MAX_DESCRIPTION", "MAX_NAME", "RULES", "check", "check_catalog", "check_deeply")

RULES: Final[tuple[Rule[Any], ...]] = tuple(
    row for rules in (*SKILL_MD_RULES, text.RULES, names.RULES, catalog.RULES) for row in rules.rows
)


def check_deeply(document: Document, files: Collection[str]) -> tuple[Problem, ...]:
    """Return the problems that only `validate` looks for in a SKILL.md. `files` are the paths of the skill's files."""
    if document.frontmatter is None:
        return ()
    skill = SkillMd(document, document.frontmatter, "", files)
    return tuple(found for rules in SKILL_MD_RULES for found in rules.check(skill, deep=True))


def check_catalog(snapshot: Snapshot) -> list[Problem]:
    """Return the problems that show only among several skills, each with its skill path and the file's path in the
    skill.
    """
    return catalog.RULES.check(snapshot, deep=True)
