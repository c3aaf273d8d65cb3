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

MAX_ADDED: Final = 1 << 20
"""Most characters that the values may add to a text: as many as one request can carry."""
_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]++)\}\}|\\?\$([A-Za-z_]\w*+(?:-\w++){0,7})(?!\[)")
"""One pattern for all names: an alternation of the names would be tried at each position.

`$ARGUMENTS[0]` is no placeholder, because each host splits words in its own way.
"""
ALL: Final = "ARGUMENTS"
"""The placeholder of all that a user typed after a slash command."""


def declared(frontmatter: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Return the declared arguments that have a name; `field-type` reports the others."""
    return fields.entries(with_mappings(frontmatter.get("arguments")), "name")


def with_mappings(value: Json) -> Json:
    """Return `arguments` with a mapping for each name that stands alone, as in Claude Code.

    There it is a list of names, or one text of them. Other values stay.
    """
    if isinstance(value, str):
        value = [*value.split()]
    if not isinstance(value, list):
        return value
    return [{"name": entry} if isinstance(entry, str) else entry for entry in value]


def fill_in(
    instructions: str, frontmatter: Mapping[str, Json], given: Mapping[str, Any], skill: str
) -> str:
    """Replace the placeholders of the declared arguments; raise as `values_of`, `substitute`."""
    values = values_of(declared(frontmatter), given, skill)
    return substitute(instructions, values, typed_values(frontmatter, values), skill)[0]


def values_of(
    arguments: Sequence[Mapping[str, Json]], given: Mapping[str, Any], skill: str
) -> dict[str, str]:
    """Return the value of each argument: the given one, its default, or "".

    Raises:
        RequestError: an argument is unknown or not text, or a required one is missing.
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
    return values


def typed_values(frontmatter: Mapping[str, Json], values: Mapping[str, str]) -> dict[str, str]:
    """Return the values of `$name` placeholders: of arguments that are names alone, and of all."""
    given = frontmatter.get("arguments")
    alone = given.split() if isinstance(given, str) else fields.texts(given)
    typed = {name: values[name] for name in alone if name}
    if typed:
        typed.setdefault(ALL, " ".join(filter(None, typed.values())))
    return typed


def substitute(
    instructions: str, values: Mapping[str, str], typed: Mapping[str, str], skill: str
) -> tuple[str, bool]:
    """Replace `{{name}}` of `values` and `$name` of `typed` in one pass; `\\$name` stays literal.

    Returns:
        the text, and whether it has a value of `typed`.

    Raises:
        RequestError: the result would be longer than the instructions by more than `MAX_ADDED`.
    """
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        name = match[2] or ""
        while name and name not in typed:
            name = name.rpartition("-")[0]
        if not name:  # Claude Code leaves braces alone
            return match[0] if match[1] in typed else values.get(match[1], match[0])
        if match[0].startswith("\\"):
            return match[0][1:]
        used.add(name)
        return typed[name] + match[2][len(name) :]

    if not values and not typed:
        return instructions, False
    return replaced(instructions, _PLACEHOLDER, value, skill), bool(used)


def replaced(
    text: str, placeholder: re.Pattern[str], value: Callable[[re.Match[str]], str], skill: str
) -> str:
    """Return the text with each placeholder replaced, after computing the length of the result.

    Raises:
        RequestError: the result would be longer than the text by more than `MAX_ADDED` characters.
    """
    added = 0
    for match in placeholder.finditer(text):
        added += len(value(match)) - len(match[0])
        if added > MAX_ADDED:
            raise RequestError(
                f"The arguments would make the instructions of skill {clipped(skill)!r} longer by "
                f"more than {MAX_ADDED:,} characters; give shorter ones"
            )
    return placeholder.sub(value, text)
