"""SEP-2076: entries of skills by name, and their definitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import sep2076
from mcp_skills_server.format.dependencies import Served, resolve
from mcp_skills_server.model import Json, Skill, Standing
from tables import each_row

from .build import skill, snapshot, subject

ENTRY_KEYS = {"name", "title", "description", "version", "tags", "icons", "arguments", "dependencies"}


def entry(
    one: Skill, *others: Skill, served: Served | None = None, least: Standing = Standing.VALID
) -> dict[str, Json]:
    return sep2076.entry(subject(one, *others, served=served, least=least))


@pytest.mark.requirement("S76-4")
def test_entry_and_definition_omit_absent_fields():
    assert entry(skill("a")) == {"name": "a", "description": "Does a."}
    bare = skill("a", only={}, standing=Standing.LENIENT)
    assert entry(bare, least=Standing.LENIENT) == {"name": "a"}
    assert sep2076.definition(subject(bare), "Do it.", {}) == {"instructions": "Do it.", "files": []}


@pytest.mark.requirement("S76-4")
@each_row(("icons", "expected"), [
    ([{"src": "i.png"}], [{"src": "skill://a/i.png", "mimeType": "image/png"}]),
    ([{"src": "i.png", "mimeType": "image/x"}], [{"src": "skill://a/i.png", "mimeType": "image/x"}]),
    ([{"src": "data"}], [{"src": "skill://a/data", "mimeType": "application/octet-stream"}]),
    ([{"src": "https://example.org/i.svg"}], [{"src": "https://example.org/i.svg"}]),
    ([{"src": "i.png"}, {"src": "i.png", "sizes": "any"}], [{"src": "skill://a/i.png", "mimeType": "image/png"}]),
    ([{"mimeType": "image/png"}, {"src": ""}, {"src": 3}, "i.png", None], None), ("i.png", None),
])  # fmt: skip
def test_icon_paths_become_uris(icons: Json, expected: list[Json] | None):
    assert entry(skill("a", ["i.png", "data"], icons=icons)).get("icons") == expected


@pytest.mark.requirement("S76-4")
@each_row(("arguments", "expected"), [
    ([{"name": "a", "title": "T", "description": "D"}], [{"name": "a", "title": "T", "description": "D"}]),
    ([{"name": "a", "required": False, "default": "x", "other": 1}], [{"name": "a", "required": False}]),
    ([{"name": "a", "title": "", "description": 3, "required": "yes"}], [{"name": "a"}]),
    ([{"name": "a"}, {"name": "b"}, {"name": "a", "title": "2"}], [{"name": "a"}, {"name": "b"}]),
    ([{"title": "no name"}, {"name": ""}, "", None], None), ({"a": {}}, None), (None, None),
])  # fmt: skip
def test_arguments_without_a_name_are_omitted(arguments: Json, expected: list[Json] | None):
    assert entry(skill("a", arguments=arguments)).get("arguments") == expected


@pytest.mark.requirement("S76-11", "X-14", "S76-9", "S76-10")
@each_row(("target", "resolves"), [
    ("file:///data/{id}", True), ("skill://a/SKILL.md", True), ("skill://a/references/x.md", True),
    ("skill://a/references/%78.md", True), ("skill://acme/b/SKILL.md", True), ("skill://acme/b/notes.md", True),
    ("skill://a/references/absent.md", False), ("skill://a/references", False), ("skill://a", False),
    ("skill://a/../acme/b/SKILL.md", False), ("skill://lenient/SKILL.md", False),
    ("skill://unusable/SKILL.md", False), ("file:///other", False), ("references/x.md", False),
])  # fmt: skip
def test_unreadable_resource_dependencies_are_omitted(target: str, resolves: bool):
    weak = skill("lenient", standing=Standing.LENIENT), skill("unusable", standing=Standing.UNUSABLE)
    others = (skill("acme/b", ["notes.md"]), *weak)
    served = Served(resources=["file:///data/{id}"])
    for declared in (target, {"uri": target, "type": "ref/resource"}):
        one = skill("a", ["references/x.md"], dependencies={"resources": [declared]})
        shown = entry(one, *others, served=served).get("dependencies")
        missing = resolve(one, snapshot(one, *others), served, Standing.VALID).missing
        if resolves:
            assert shown == {"resources": [{"type": "ref/resource", "uri": target}]}
            assert missing == ()
        else:
            assert shown is None
            assert missing == (f"resource {target}",)


@pytest.mark.requirement("S76-6", "S76-19", "X-14")
def test_files_merge_frontmatter_and_links_with_linked_files_first():
    described = {"title": "X", "description": "About x.", "required": True}
    declared = [
        {"path": "x.md", **described}, {"path": "x.md", "title": "second"},
        {"path": "y", "required": "yes", "title": 3}, {"path": "gone.md", "required": True}, {"title": "no path"},
    ]  # fmt: skip
    one = skill("a", ["x.md", "y", "z.md"], only={"name": "a", "files": declared})
    assert sep2076.files(one, {"z.md": "Link to z", "x.md": "Link to x"}) == [
        {"name": "z.md", "title": "Link to z", "uri": "skill://a/z.md", "mimeType": "text/markdown", "required": False},
        {"name": "x.md", "uri": "skill://a/x.md", "mimeType": "text/markdown", **described},
        {"name": "y", "uri": "skill://a/y", "required": False},
    ]


KEYS = st.sampled_from(["name", "src", "path", "uri", "tools", "resources", "title"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(ENTRY_KEYS - {"name"} | {"files", "metadata"})), VALUES))
def test_any_frontmatter_has_an_entry_of_known_keys(fields: dict[str, Any]):
    one = skill("a", ["x.md"], only={"name": "a", **fields}, standing=Standing.LENIENT)
    shown = entry(one, least=Standing.LENIENT)
    assert set(shown) <= ENTRY_KEYS
    for key in ("name", "title", "description", "version"):
        assert isinstance(shown.get(key, ""), str)
