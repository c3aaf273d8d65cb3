"""Tags, in every form that authors write."""

from __future__ import annotations

import pytest

from mcp_skills_server.format import manifest
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Json


@pytest.mark.requirement("X-14")
@pytest.mark.parametrize(
    ("frontmatter", "tags"),
    [
        ({}, []),
        ({"tags": "one two"}, ["one", "two"]),
        ({"metadata": {"tags": "machine learning, data ,"}}, ["machine learning", "data"]),
        ({"tags": ["one", 2, " ", "two words"]}, ["one", "two words"]),
        ({"tags": [], "metadata": {"tags": "one"}}, []),
        ({"metadata": "text"}, []),
        ({"tags": 5}, []),
    ],
)
def test_they_are_the_same_in_every_protocol(frontmatter: dict[str, Json], tags: list[str]) -> None:
    assert tags_of(frontmatter) == tags
    found = manifest.read(None, frontmatter, "a", {}).manifest
    assert found is not None and found.fields.get("tags", []) == tags
