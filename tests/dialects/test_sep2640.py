"""SEP-2640: skills asked for by the URI of their SKILL.md."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import sep2640
from mcp_skills_server.errors import RequestError, clipped
from mcp_skills_server.model import Skill, Standing
from tables import each_row

from .build import JSON, digest, skill, snapshot


def entry(one: Skill) -> Any:
    return sep2640.entry(one)


@pytest.mark.requirement("S40-12", "S40-13", "S40-15", "S40-16", "S40-18", "S40-14", "S40-6")
def test_an_entry_is_uri_frontmatter_and_resources():
    one = skill("x/y/a", ["b/c.md"], license="MIT", allowed_tools="Read")
    assert entry(one) == {
        "uri": "skill://x/y/a/SKILL.md",
        "frontmatter": {"name": "a", "description": "Does a.", "license": "MIT", "allowed-tools": "Read"},
        "resources": [
            {"uri": "skill://x/y/a/SKILL.md", "digest": digest("x/y/a/SKILL.md"), "size": 8},
            {"uri": "skill://x/y/a/b/c.md", "digest": digest("x/y/a/b/c.md"), "size": 6},
        ],
    }


@pytest.mark.requirement("S40-13")
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_frontmatter_is_passed_on_field_by_field_as_it_is(fields: dict[str, Any]):
    before = copy.deepcopy(fields)
    seen = entry(skill("a", only=fields))["frontmatter"]
    assert seen == before and list(seen) == list(before) and type(seen) is dict
    seen["name"] = "changed by a caller"
    assert entry(skill("a", only=fields))["frontmatter"] == before


@pytest.mark.requirement("S40-5", "S40-24", "S40C-5", "X-2")
@each_row("target", [
    "skill://absent/SKILL.md", "skill://acme/a/notes.md", "skill://acme/a", "skill://acme/a/", "skill://acme",
    "skill://acme/a/references", "skill://acme/a/skill.md", "skill://acme/a/SKILL.md/",
    "skill://acme/a/SKILL.md?x", "skill://acme/b/../a/SKILL.md", "skill://acme%2Fa/SKILL.md",
    "skill://weak/SKILL.md", "skill://odd/SKILL.md", "https://acme/a/SKILL.md", "acme/a", "a", "",
    "skill://", "skill://" + "x" * 100_000,
])  # fmt: skip
def test_what_is_no_skill_md_of_a_skill_is_refused_and_named(target: str):
    broken = (skill("weak", standing=Standing.LENIENT), skill("odd", standing=Standing.UNUSABLE))
    with pytest.raises(RequestError) as caught:
        sep2640.find(snapshot(skill("acme/a", ["notes.md", "references/x.md"]), *broken), target)
    assert str(caught.value) == f"Unknown skill URI: {clipped(target)}"
