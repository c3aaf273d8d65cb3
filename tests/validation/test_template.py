"""The template of a new skill."""

from __future__ import annotations

from mcp_skills_server.validation.template import DESCRIPTION, is_placeholder
from tables import each_row


@each_row(
    ("description", "found"),
    [
        ("[TODO: say what it does]", True),
        ("TODO: say what it does and when", True),
        ("TODO", True),
        (DESCRIPTION.replace(" ", "\n", 3), True),
        ("TODO comments of a code base, counted and sorted.", False),
        ("Finds every [TODO] in a code base.", False),
    ],
)
def test_a_placeholder_of_a_description_is_found(description: str, found: bool) -> None:
    assert is_placeholder(description) is found
