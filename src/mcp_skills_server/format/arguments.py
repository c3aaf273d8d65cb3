"""Declared arguments of a skill, and bounded substitution of their values into its instructions.

Without a bound, the result has the size of a value times its placeholders: 300 placeholders and a
value of 0.9 MB made 270 MB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcp_skills_server.errors import RequestError, clipped, listed, quoted
from mcp_skills_server.format import fields
from mcp_skills_server.model import Json

MOST_ADDED: Final = 1 << 20
"""Most characters that the values may add to a text: as many as one request can carry."""
_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]++)\}\}")
"""One pattern for all names: an alternation of the names would be tried at each position."""


def declared(frontmatter: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Return the declared arguments that have a name; `field-type` reports the others."""
    return fields.entries(frontmatter.get("arguments"), "name")


def fill_in(
    instructions: str, arguments: Sequence[Mapping[str, Json]], given: Mapping[str, Any], skill: str
) -> str:
    """Replace `{{name}}` of each declared argument, in one pass; a name with a brace never matches.

    Raises:
        RequestError: an argument is unknown or not text, or a required one is missing, or the
            result would be longer than the instructions by more than `MOST_ADDED`.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        name = str(argument["name"])
        if name in given:
            if not isinstance(given[name], str):
                raise RequestError(
                    f"Argument {quoted(name)} of skill {quoted(skill)} must be a string"
                )
            values[name] = given[name]
        elif argument.get("required") is True:
            raise RequestError(f"Missing required argument {quoted(name)} of skill {quoted(skill)}")
        else:
            values[name] = fields.text(argument.get("default")) or ""
    unknown = [name for name in given if name not in values]
    if unknown:
        names = listed(values)
        raise RequestError(
            f"Skill {quoted(skill)} has no argument {quoted(unknown[0])}; it declares: {names}"
        )
    if not values:
        return instructions
    return replaced(instructions, _PLACEHOLDER, lambda found: values.get(found[1], found[0]), skill)


def replaced(
    text: str, placeholder: re.Pattern[str], value: Callable[[re.Match[str]], str], skill: str
) -> str:
    """Return the text with each placeholder replaced, after computing the length of the result.

    Raises:
        RequestError: the result would be longer than the text by more than `MOST_ADDED` characters.
    """
    added = 0
    for found in placeholder.finditer(text):
        added += len(value(found)) - len(found[0])
        if added > MOST_ADDED:
            raise RequestError(
                f"The arguments would make the instructions of skill {clipped(skill)!r} longer by "
                f"more than {MOST_ADDED:,} characters; give shorter ones"
            )
    return placeholder.sub(value, text)
