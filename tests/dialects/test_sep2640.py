"""SEP-2640: entries of skills by the URI of their SKILL.md."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.dialects import sep2640
from mcp_skills_server.errors import RequestError, clipped
from mcp_skills_server.model import Standing
from tables import each_row

from .build import JSON, skill, snapshot


@pytest.mark.requirement("S40-13")
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
@example({"description": " Blanks at both ends.\n"})
def test_entry_has_a_copy_of_the_frontmatter_in_its_order(fields: dict[str, Any]):
    before = copy.deepcopy(fields)
    one = skill("a", only=fields)
    frontmatter: Any = sep2640.entry(one)["frontmatter"]
    assert frontmatter == before and list(frontmatter) == list(before) and type(frontmatter) is dict
    frontmatter["name"] = "changed by a caller"
    assert sep2640.entry(one)["frontmatter"] == before


@pytest.mark.requirement("S40-5", "S40-24", "S40C-5", "X-2")
@each_row("target", [
    "skill://absent/SKILL.md", "skill://acme/a/notes.md", "skill://acme/a", "skill://acme/a/", "skill://acme",
    "skill://acme/a/references", "skill://acme/a/skill.md", "skill://acme/a/SKILL.md/",
    "skill://acme/a/SKILL.md?x", "skill://acme/b/../a/SKILL.md", "skill://acme%2Fa/SKILL.md",
    "skill://weak/SKILL.md", "skill://odd/SKILL.md", "https://acme/a/SKILL.md", "acme/a", "a", "",
    "skill://", "skill://" + "x" * 100_000,
])  # fmt: skip
def test_uri_of_no_valid_skill_md_is_refused_by_name(target: str):
    broken = (skill("weak", standing=Standing.LENIENT), skill("odd", standing=Standing.UNUSABLE))
    with pytest.raises(RequestError) as caught:
        sep2640.find(snapshot(skill("acme/a", ["notes.md", "references/x.md"]), *broken), target)
    assert str(caught.value) == f"Unknown skill URI: {clipped(target)}"


def test_skill_of_the_greatest_depth_is_found():
    deep = "/".join("a" * 2_000)
    assert sep2640.find(snapshot(skill(deep)), f"skill://{deep}/SKILL.md").path == deep
