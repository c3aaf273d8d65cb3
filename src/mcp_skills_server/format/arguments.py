"""The arguments that a skill declares, and its instructions filled in with values for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp_skills_server.errors import RequestError, listed, quoted
from mcp_skills_server.format import fields
from mcp_skills_server.format.placeholders import replaced
from mcp_skills_server.model import Json


def declared(frontmatter: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The declared arguments that have a name; what else is wrong with them is a Problem (`field-type`)."""
    return fields.entries(frontmatter.get("arguments"), "name")


_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]++)\}\}")
"""One pattern for all names: an alternative for each would be tried at each place, names times places."""


def fill_in(instructions: str, arguments: Sequence[Mapping[str, Json]], given: Mapping[str, Any], skill: str) -> str:
    """Replace `{{name}}` of every declared argument, in one pass, and nothing else. A name with a brace has no place.

    Raises:
        RequestError: an argument is unknown or not text, or a required one is missing (S76-8), or the result would be
            longer than the instructions by more than `placeholders.MOST_ADDED`.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        name = str(argument["name"])
        if name in given:
            if not isinstance(given[name], str):
                raise RequestError(f"Argument {quoted(name)} of skill {quoted(skill)} must be a string")
            values[name] = given[name]
        elif argument.get("required") is True:
            raise RequestError(f"Missing required argument {quoted(name)} of skill {quoted(skill)}")
        else:
            values[name] = fields.text(argument.get("default")) or ""
    unknown = [name for name in given if name not in values]
    if unknown:
        told = listed(values)
        raise RequestError(f"Skill {quoted(skill)} has no argument {quoted(unknown[0])}; it declares: {told}")
    return (
        replaced(instructions, _PLACEHOLDER, lambda found: values.get(found[1], found[0]), skill)
        if values
        else instructions
    )
