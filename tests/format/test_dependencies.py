"""What a skill depends on, and how much of it is served."""

from __future__ import annotations

import pytest

from dialects.build import skill, snapshot
from mcp_skills_server.format.dependencies import Dependencies, Served, resolve
from mcp_skills_server.model import Json, Standing
from tables import each_row

SERVED = Served(tools={"search"}, prompts={"reply"}, resources=["file:///data/{id}"])


def resolved(declared: Json, least: Standing = Standing.VALID) -> Dependencies:
    """What is found of these dependencies beside another skill and one that breaks the specification."""
    one = skill("a", dependencies=declared)
    return resolve(one, snapshot(one, skill("b"), skill("c", standing=Standing.LENIENT)), SERVED, least)


@pytest.mark.requirement("S76-9", "S76-10", "S76-11")
def test_what_is_served_is_told_apart_from_what_is_missing() -> None:
    declared: Json = {
        "tools": ["other", "search", 3],
        "prompts": [{"name": "reply"}, "gone", None],
        "resources": ["file:///data/{id}", {"uri": "skill://b/SKILL.md"}, "skill://b/gone.md"],
    }
    assert resolved(declared) == Dependencies(
        tools=("search",),
        prompts=("reply",),
        resources=("file:///data/{id}", "skill://b/SKILL.md"),
        missing=("tool other", "prompt gone", "resource skill://b/gone.md"),
    )


def test_a_skill_that_stands_too_low_is_no_resource() -> None:
    declared: Json = {"resources": ["skill://c/SKILL.md"]}
    assert resolved(declared).missing == ("resource skill://c/SKILL.md",)
    assert resolved(declared, Standing.LENIENT).resources == ("skill://c/SKILL.md",)


@each_row("declared", [None, "search", ["search"], {}, {"tools": "search", "prompts": 1}])
def test_what_is_of_another_shape_depends_on_nothing(declared: Json) -> None:
    assert resolved(declared) == Dependencies()
