"""AvailableSkill, with plain values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot
from mcp_skills_server.dialects import acp
from mcp_skills_server.model import ORIGIN, Standing
from tables import each_row
from wire import ROOT

GOLDEN = ROOT / "tests" / "golden"
SEED = """---
name: pdf-processing
description: Extract text and tables from PDF files, fill forms, merge documents.
license: Apache-2.0
metadata:
  author: example-org
  version: "1.0"
---
"""


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"acp.{name}.json").read_text(encoding="utf-8"))


@pytest.mark.requirement("ACP-1", "ACP-3", "ACP-7")
def test_metadata_travels_in_meta() -> None:
    from mcp_skills_server.format import frontmatter

    fields = frontmatter.parse(SEED.encode()).frontmatter
    entry = acp.entry(skill("pdf-processing", only=fields))
    assert entry == golden("skill") and acp.refusal(entry) is None


def test_where_a_skill_of_others_comes_from_travels_with_it() -> None:
    entry = acp.entry(replace(skill("a", metadata={"k": "v"}), origin="https://example.com"))
    assert entry.get("_meta") == {"k": "v", ORIGIN: "https://example.com"}


@pytest.mark.requirement("ACP-4", "ACP-5", "ACP-6")
def test_empty_fields_are_left_out() -> None:
    bare = {"name": "a", "description": "Does a."}
    assert acp.entry(skill("a", license="", compatibility=None, allowed_tools="", metadata={})) == bare
    full = acp.entry(skill("a", license="MIT", compatibility="git", allowed_tools=["Bash", "Read"]))
    assert full == {**bare, "license": "MIT", "compatibility": "git", "allowedTools": ["Bash", "Read"]}


@pytest.mark.requirement("ACP-6")
@each_row(
    ("text", "tools"),
    [
        ("Bash Read", ["Bash", "Read"]),
        ("Bash(git add:*, git commit:*) Read", ["Bash(git add:*, git commit:*)", "Read"]),
        ("Bash(a (b, c) d),Read,\tWrite ", ["Bash(a (b, c) d)", "Read", "Write"]),
        ("Bash(never closed Read", ["Bash(never", "closed", "Read"]),
        ("a) b", ["a)", "b"]),
        ("", []),
        (" , ", []),
        (["Bash(git:*)", " ", 5], ["Bash(git:*)"]),
        (None, []),
        (7, []),
    ],
)
def test_tools_are_split_outside_parentheses(text: Any, tools: list[str]) -> None:
    assert acp.split_tools(text) == tools


@given(st.text(alphabet="ab(), \t*"))
@pytest.mark.requirement("ACP-6")
def test_splitting_loses_nothing_but_separators(text: str) -> None:
    tools = acp.split_tools(text)
    assert all(tool.strip(" \t,") for tool in tools)
    assert [each for each in "".join(tools) if each not in ", \t"] == [each for each in text if each not in ", \t"]


@pytest.mark.requirement("ACP-1", "ACP-2", "ACP-3", "ACP-5", "ACP-6", "ACPX-1")
@each_row(("change", "word"), [
    ({"name": "a--b"}, "name"), ({"name": "-a"}, "name"), ({"name": "a-"}, "name"), ({"name": "A"}, "name"),
    ({"name": "a\n"}, "name"), ({"name": ""}, "name"), ({"name": "a" * 65}, "name"), ({"name": None}, "name"),
    ({"description": ""}, "description"), ({"description": "x" * 1025}, "description"),
    ({"license": 1}, "license"), ({"compatibility": "x" * 501}, "compatibility"),
    ({"allowedTools": "Bash"}, "allowedTools"), ({"allowedTools": [1]}, "allowedTools"), ({"_meta": []}, "_meta"),
    ({"metadata": {}}, "metadata"),
])  # fmt: skip
def test_what_is_no_available_skill_is_refused(change: dict[str, Any], word: str) -> None:
    good = {"name": "a", "description": "Does a."}
    assert acp.refusal(good) is None and acp.refusal({**good, "name": "a" * 64, "compatibility": "x" * 500}) is None
    assert word in (acp.refusal({**good, **change}) or "")
    assert acp.refusal("a") == "it is no object"


@pytest.mark.requirement("ACPX-14")
def test_of_one_name_the_earlier_root_is_told_and_the_rest_is_accounted_for() -> None:
    first = replace(skill("z/same"), root=0)
    later = replace(skill("a/same"), root=1)
    found = acp.available(snapshot(later, first, skill("weak", standing=Standing.LENIENT), skill("odd", license=["x"])))
    assert [each["name"] for each in found.skills] == ["same"]
    assert [path for path, _ in found.left_out] == ["odd", "a/same"]
    assert "z/same" in dict(found.left_out)["a/same"]
