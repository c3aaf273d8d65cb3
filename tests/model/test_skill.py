"""One skill: its name, its files, and how its problems read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mcp_skills_server.model import SKILL_MD, Problem, Reading, Skill, SkillFile, Standing
from tables import each_row


def skill(
    path: str,
    standing: Standing = Standing.VALID,
    *files: str,
    name: str | None = None,
    problems: tuple[Problem, ...] = (),
    empty: tuple[str, ...] = (),
) -> Skill:
    fields = {} if name == "" else {"name": name or path.rpartition("/")[2]}
    sizes = {file: SkillFile(0, f"{path}/{file}", 3, "3", True) for file in sorted({SKILL_MD, *files})}
    return Skill(path, 0, path, Reading(fields, None, standing, problems), sizes, (), standing, empty)


def at(path: str, code: str = "yaml-syntax") -> Problem:
    return Problem(code, "error", "what", "mend", 1, path)


def test_a_problem_reads_as_one_line_with_its_place():
    found = Problem("name-missing", "error", "there is no name", "add one")
    assert str(found.at("x/SKILL.md", "x")) == "x/SKILL.md: error: there is no name; add one [name-missing]"
    assert str(Problem("a", "warning", "what", "", 7, "x")) == "x:7: warning: what [a]"
    assert (found.path, found.at("p", "s").path, found.at("p", "s").skill) == ("", "p", "s")


@pytest.mark.requirement("X-2")
def test_standings_rise_from_unusable_to_valid():
    assert Standing.UNUSABLE < Standing.LENIENT < Standing.VALID


@each_row(
    ("fields", "name", "description"),
    [
        ({"name": "n", "description": "d"}, "n", "d"),
        ({}, "last", ""),
        ({"name": "", "description": ""}, "last", ""),
        ({"name": 7, "description": ["d"]}, "last", ""),
        ({"name": None}, "last", ""),
    ],
)
def test_a_skill_goes_by_its_name_or_by_its_directory(fields: Mapping[str, Any], name: str, description: str):
    one = Skill("acme/last", 0, "last", Reading(fields, None, Standing.LENIENT, ()), {}, (), Standing.LENIENT)
    assert (one.name, one.description) == (name, description)


def test_a_skill_sums_up_its_files_and_its_problems():
    read, judged = at("read"), at("judged", "too-deep")
    one = Skill(
        "a",
        0,
        "a",
        skill("a", problems=(read,)).reading,
        skill("a", Standing.VALID, "b").files,
        (judged,),
        Standing.VALID,
    )
    assert one.size == 6
    assert one.problems == (read, judged)
