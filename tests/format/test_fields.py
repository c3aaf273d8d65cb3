"""Values of a frontmatter in the shapes that authors write them in; dependencies and icons."""

from __future__ import annotations

import pytest

from dialects.build import skill, snapshot, subject
from mcp_skills_server.dialects import prompts, sep2076
from mcp_skills_server.format import fields, manifest
from mcp_skills_server.format.dependencies import Dependencies, Served, resolve
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Json, Standing
from tables import each_row


@pytest.mark.requirement("X-14")
@each_row(("frontmatter", "tags"), [
    ({}, []), ({"tags": "one two"}, ["one", "two"]), ({"tags": ", ,"}, []),
    ({"tags": ["top"], "metadata": {"tags": "meta"}}, ["top"]), ({"metadata": {"tags": ["one"]}}, ["one"]),
    ({"metadata": {"tags": "machine learning, data ,"}}, ["machine learning", "data"]),
    ({"tags": ["one", 2, " ", "two words"]}, ["one", "two words"]), ({"tags": [], "metadata": {"tags": "one"}}, []),
    ({"metadata": "text"}, []), ({"tags": 5}, []),
])  # fmt: skip
def test_tags_are_the_same_in_every_protocol(frontmatter: dict[str, Json], tags: list[str]) -> None:
    assert tags_of(frontmatter) == tags
    found = manifest.read(None, frontmatter, "a", {}).manifest
    assert found is not None and found.fields.get("tags", []) == tags


def test_a_value_of_another_shape_is_passed_over() -> None:
    assert [fields.text(each) for each in ("a", "", 1, None, ["a"])] == ["a", None, None, None, None]
    assert fields.metadata({"metadata": {"a": "b"}}, "a") == "b"
    assert not any(fields.metadata(each, "a") for each in ({"metadata": {"b": "b"}}, {"metadata": ["a"]}, {}))
    named: list[Json] = [{"name": "a", "x": 1}, {"name": "b"}]
    odd: list[Json] = [{"name": "a", "x": 2}, {"name": ""}, {"name": 1}, "a", None]
    assert fields.entries(named + odd, "name") == named
    assert fields.references(["a", {"name": "b"}, {"uri": "c"}, "", 1, None], "name") == ["a", "b"]
    assert fields.texts(["a", 1, ""]) == ["a", ""]
    assert fields.entries({"name": "a"}, "name") == fields.references("a", "name") == fields.texts("a") == []


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
        "resources": ["file:///data/{id}", {"uri": "skill://b/SKILL.md"}, "skill://b/gone.md", "skill://c/SKILL.md"],
    }
    assert resolved(declared) == Dependencies(
        tools=("search",),
        prompts=("reply",),
        resources=("file:///data/{id}", "skill://b/SKILL.md"),
        missing=("tool other", "prompt gone", "resource skill://b/gone.md", "resource skill://c/SKILL.md"),
    )
    assert resolved({"resources": ["skill://c/SKILL.md"]}, Standing.LENIENT).resources == ("skill://c/SKILL.md",)


@each_row("declared", [None, "search", ["search"], {}, {"tools": "search", "prompts": 1}])
def test_what_is_of_another_shape_depends_on_nothing(declared: Json) -> None:
    assert resolved(declared) == Dependencies()


@each_row(("source", "fine"), [
    ("https://example.com/i.png", True), ("HTTP://example.com/i.png", True), ("data:image/png;base64,AAAA", True),
    ("skill://a/assets/icon.png", True), ("assets/icon.png", True), ("javascript:alert(1)", False),
    ("JavaScript:alert(1)", False), ("java\tscript:alert(1)", False), (" \njavascript:alert(1)", False),
    ("\x01javascript:alert(1)", False), ("java\u200bscript:alert(1)", False), ("file:///etc/passwd", False),
    ("data:text/html,<script>", False), ("vbscript:x", False), ("blob:https://example.com/x", False),
    ("ht\ttps://example.com/i.png", False),
])  # fmt: skip
def test_an_icon_comes_from_where_a_page_may_take_it(source: str, fine: bool):
    """What does not is no icon in an entry or a prompt (11.19)."""
    assert fields.is_allowed_icon(source) is fine
    each = skill("sound-skill", icons=[{"src": source}])
    entry = sep2076.entry(subject(each))
    assert ("icons" in entry) is fine
    shown = "icons" in prompts.descriptor(each, {**entry, "icons": [{"src": source}]})
    assert shown or not (fine and source.lower().startswith(("http", "data")))
    assert fine or not shown
