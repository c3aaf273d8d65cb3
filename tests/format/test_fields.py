"""Frontmatter fields of any shape: tags, texts, references, dependencies and icons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot, subject
from mcp_skills_server.dialects import prompts, sep2076
from mcp_skills_server.format import fields, manifest
from mcp_skills_server.format.dependencies import Dependencies, Served, resolve
from mcp_skills_server.format.fields import split_tools, tags_of
from mcp_skills_server.model import Json, Standing
from steps import step_growth
from tables import each_row


@pytest.mark.requirement("X-14")
@each_row(("frontmatter", "tags"), [
    ({}, []), ({"tags": "one two"}, ["one", "two"]), ({"tags": ", ,"}, []),
    ({"tags": ["top"], "metadata": {"tags": "meta"}}, ["top"]), ({"metadata": {"tags": ["one"]}}, ["one"]),
    ({"metadata": {"tags": "machine learning, data ,"}}, ["machine learning", "data"]),
    ({"tags": ["one", 2, " ", "two words"]}, ["one", "two words"]), ({"tags": [], "metadata": {"tags": "one"}}, []),
    ({"metadata": "text"}, []), ({"tags": 5}, []),
])  # fmt: skip
def test_tags_are_read_from_the_top_level_or_from_metadata(frontmatter: dict[str, Json], tags: list[str]) -> None:
    assert tags_of(frontmatter) == tags
    found = manifest.read(None, frontmatter, "a", {}).manifest
    assert found is not None
    assert found.fields.get("tags", []) == tags


def test_values_of_another_type_are_ignored() -> None:
    assert [fields.text(each) for each in ("a", "", 1, None, ["a"])] == ["a", None, None, None, None]
    assert fields.metadata({"metadata": {"a": "b"}}, "a") == "b"
    for frontmatter in ({"metadata": {"b": "b"}}, {"metadata": ["a"]}, {}):
        assert not fields.metadata(frontmatter, "a")
    named: list[Json] = [{"name": "a", "x": 1}, {"name": "b"}]
    ignored: list[Json] = [{"name": "a", "x": 2}, {"name": ""}, {"name": 1}, "a", None]
    assert fields.entries(named + ignored, "name") == named
    assert fields.references(["a", {"name": "b"}, {"uri": "c"}, "", 1, None], "name") == ["a", "b"]
    assert fields.texts(["a", 1, ""]) == ["a", ""]
    assert fields.entries({"name": "a"}, "name") == []
    assert fields.references("a", "name") == []
    assert fields.texts("a") == []


SERVED = Served(tools={"search"}, prompts={"reply"}, resources=["file:///data/{id}"])


def resolve_dependencies(declared: Json, least: Standing = Standing.VALID) -> Dependencies:
    """Resolve the dependencies of a skill that is served with a valid and a lenient one."""
    one = skill("a", dependencies=declared)
    return resolve(one, snapshot(one, skill("b"), skill("c", standing=Standing.LENIENT)), SERVED, least)


@pytest.mark.requirement("S76-9", "S76-10", "S76-11")
def test_dependencies_are_resolved_or_missing() -> None:
    declared: Json = {
        "tools": ["other", "search", 3],
        "prompts": [{"name": "reply"}, "gone", None],
        "resources": ["file:///data/{id}", {"uri": "skill://b/SKILL.md"}, "skill://b/gone.md", "skill://c/SKILL.md"],
    }
    assert resolve_dependencies(declared) == Dependencies(
        tools=("search",),
        prompts=("reply",),
        resources=("file:///data/{id}", "skill://b/SKILL.md"),
        missing=("tool other", "prompt gone", "resource skill://b/gone.md", "resource skill://c/SKILL.md"),
    )
    assert resolve_dependencies({"resources": ["skill://c/SKILL.md"]}, Standing.LENIENT).resources == (
        "skill://c/SKILL.md",
    )


@each_row("declared", [None, "search", ["search"], {}, {"tools": "search", "prompts": 1}])
def test_dependencies_of_another_shape_are_ignored(declared: Json) -> None:
    assert resolve_dependencies(declared) == Dependencies()


@each_row(("source", "is_allowed"), [
    ("https://example.com/i.png", True), ("HTTP://example.com/i.png", True), ("data:image/png;base64,AAAA", True),
    ("skill://a/assets/icon.png", True), ("assets/icon.png", True), ("javascript:alert(1)", False),
    ("JavaScript:alert(1)", False), ("java\tscript:alert(1)", False), (" \njavascript:alert(1)", False),
    ("\x01javascript:alert(1)", False), ("java\u200bscript:alert(1)", False), ("file:///etc/passwd", False),
    ("data:text/html,<script>", False), ("vbscript:x", False), ("blob:https://example.com/x", False),
    ("ht\ttps://example.com/i.png", False),
])  # fmt: skip
def test_icon_source_of_an_unsafe_scheme_is_in_no_listing(source: str, is_allowed: bool):
    assert fields.is_allowed_icon(source) is is_allowed
    one = skill("sound-skill", icons=[{"src": source}])
    entry = sep2076.entry(subject(one))
    assert ("icons" in entry) is is_allowed
    is_url = source.lower().startswith(("http", "data"))
    is_in_prompt = "icons" in prompts.descriptor(one, {**entry, "icons": [{"src": source}]})
    assert is_in_prompt is (is_allowed and is_url)


@pytest.mark.requirement("ACP-6")
@each_row(("text", "tools"), [
    ("Bash Read", ["Bash", "Read"]), ("a) b", ["a)", "b"]), ("", []), (" , ", []), (None, []), (7, []),
    ("Bash(git add:*, git commit:*) Read", ["Bash(git add:*, git commit:*)", "Read"]),
    ("Bash(a (b, c) d),Read,\tWrite ", ["Bash(a (b, c) d)", "Read", "Write"]),
    ("Bash(never closed Read", ["Bash(never", "closed", "Read"]), (["Bash(git:*)", " ", 5], ["Bash(git:*)"]),
])  # fmt: skip
def test_allowed_tools_are_split_outside_parentheses(text: Any, tools: list[str]) -> None:
    assert split_tools(text) == tools


@each_row("shape", ["(", "a(b ", "()", "(,", ")(", "(()"])
def test_split_tools_takes_linear_time(shape: str) -> None:
    assert step_growth(lambda times: lambda: split_tools(shape * times), 300) <= 5


@given(st.text(alphabet="ab(), \t*"))
@pytest.mark.requirement("ACP-6")
def test_split_tools_loses_only_separators(text: str) -> None:
    tools = split_tools(text)
    assert all(tool.strip(" \t,") for tool in tools)
    assert [each for each in "".join(tools) if each not in ", \t"] == [each for each in text if each not in ", \t"]
