"""Values of a frontmatter in the shapes that authors write them in."""

from __future__ import annotations

import pytest

from mcp_skills_server.format import fields, manifest
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Json
from tables import each_row


@pytest.mark.requirement("X-14")
@each_row(
    ("frontmatter", "tags"),
    [
        ({}, []),
        ({"tags": "one two"}, ["one", "two"]),
        ({"tags": ", ,"}, []),
        ({"tags": ["top"], "metadata": {"tags": "meta"}}, ["top"]),
        ({"metadata": {"tags": ["one"]}}, ["one"]),
        ({"metadata": {"tags": "machine learning, data ,"}}, ["machine learning", "data"]),
        ({"tags": ["one", 2, " ", "two words"]}, ["one", "two words"]),
        ({"tags": [], "metadata": {"tags": "one"}}, []),
        ({"metadata": "text"}, []),
        ({"tags": 5}, []),
    ],
)
def test_tags_are_the_same_in_every_protocol(frontmatter: dict[str, Json], tags: list[str]) -> None:
    assert tags_of(frontmatter) == tags
    found = manifest.read(None, frontmatter, "a", {}).manifest
    assert found is not None and found.fields.get("tags", []) == tags


@each_row(("value", "text"), [("a", "a"), ("", None), (1, None), (None, None), (["a"], None)])
def test_a_text_says_something(value: Json, text: str | None) -> None:
    assert fields.text(value) == text


def test_metadata_is_looked_into_where_it_is_a_mapping() -> None:
    assert fields.metadata({"metadata": {"a": "b"}}, "a") == "b"
    assert fields.metadata({"metadata": {"a": "b"}}, "b") is None
    assert fields.metadata({"metadata": ["a"]}, "a") is fields.metadata({}, "a") is None


@each_row(
    ("value", "entries"),
    [
        ([{"name": "a", "x": 1}, {"name": "b"}, {"name": "a", "x": 2}], [{"name": "a", "x": 1}, {"name": "b"}]),
        ([{"name": ""}, {"name": 1}, {}, "a", None], []),
        ({"name": "a"}, []),
    ],
)
def test_entries_are_the_mappings_with_a_name_the_first_of_each(value: Json, entries: list[Json]) -> None:
    assert fields.entries(value, "name") == entries


def test_references_are_names_plain_or_in_a_mapping() -> None:
    assert fields.references(["a", {"name": "b"}, {"uri": "c"}, "", 1, None], "name") == ["a", "b"]
    assert fields.references("a", "name") == []


def test_texts_are_those_of_a_list() -> None:
    assert fields.texts(["a", 1, ""]) == ["a", ""]
    assert fields.texts("a") == []
