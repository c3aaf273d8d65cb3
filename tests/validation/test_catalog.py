"""The rules that show only among several skills."""

from __future__ import annotations

import pytest

from dialects.build import skill, snapshot
from mcp_skills_server.model import SKILL_MD, Skill, Standing
from mcp_skills_server.validation.lint import CATALOG as RULES


def found(*skills: Skill) -> list[tuple[str, str, str]]:
    return [(each.code, each.skill, each.path) for each in RULES.check(snapshot(*skills), deep=True)]


@pytest.mark.requirement("S40-37")
def test_skills_that_share_a_name_are_told_each() -> None:
    assert found(skill("a/x"), skill("b/x"), skill("b/y")) == [("name-shared", "a/x", ""), ("name-shared", "b/x", "")]


def test_a_skill_that_is_not_listed_shares_no_name() -> None:
    assert found(skill("a/x"), skill("b/x", standing=Standing.LENIENT)) == []


def test_of_very_many_that_share_a_name_a_few_are_named() -> None:
    first, *_ = RULES.check(snapshot(*(skill(f"{number}/x") for number in range(9))), deep=True)
    assert first.message == "the name x is also that of 1/x, 2/x, 3/x, 4/x, 5/x and 3 more"


@pytest.mark.requirement("S76-9", "S76-11")
def test_a_file_of_a_skill_that_is_depended_on_must_be_served() -> None:
    needs = skill("a", dependencies={"tools": ["t"], "resources": ["skill://b/SKILL.md", "skill://b/gone.md", "x://y"]})
    assert found(needs, skill("b")) == [("dependency-unresolved", "a", SKILL_MD)]
