"""The template of a new skill."""

from __future__ import annotations

from mcp_skills_server.validation.template import DESCRIPTION, is_placeholder


def test_a_placeholder_of_a_description_is_found() -> None:
    todo = ("[TODO: say what it does]", "TODO: say what it does and when", "TODO", DESCRIPTION.replace(" ", "\n", 3))
    assert all(map(is_placeholder, todo))
    done = ("TODO comments of a code base, counted and sorted.", "Finds every [TODO] in a code base.")
    assert not any(map(is_placeholder, done))
