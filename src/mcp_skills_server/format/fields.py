"""Lenient accessors of frontmatter values, which skip a value of another type.

The rule `field-type` (`validation/rules.py`) reports each skipped value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from mcp_skills_server.format import hidden
from mcp_skills_server.model import Json

_IGNORED: Final = re.compile(r"[\x00-\x20\x7f-\xa0]+")
"""Browsers strip these characters from a URL, even in its scheme: `java\\tscript:` runs."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*+:", re.IGNORECASE)
_ALLOWED: Final = re.compile(r"https?:|data:image/|skill://", re.IGNORECASE)

FLAGS: Final = {"disable-model-invocation": False, "user-invocable": True}
"""Flags that hide a skill from models, or from users, with the value that does not."""


def hides(frontmatter: Mapping[str, Json], flag: str) -> bool:
    """Return whether a flag hides its skill: any value does but the one that says otherwise."""
    return frontmatter.get(flag, FLAGS[flag]) is not FLAGS[flag]


def mapping(value: object) -> dict[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {}


def items(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return []


def text(value: Json) -> str | None:
    """Return the value if it is a string that is not empty, else None."""
    if isinstance(value, str) and value:
        return value
    return None


def metadata(fields: Mapping[str, Json], key: str) -> Json:
    """Return the value of `metadata.KEY`, or None."""
    return mapping(fields.get("metadata")).get(key)


def entries(value: Json, key: str) -> list[dict[str, Json]]:
    """Return the mappings of a list that have text under `key`, without repeats of that text."""
    out: dict[str, dict[str, Json]] = {}
    for entry in map(mapping, items(value)):
        name = text(entry.get(key))
        if name is not None:
            out.setdefault(name, entry)
    return list(out.values())


def references(value: Json, key: str) -> list[str]:
    """Return the names in a list whose items are strings, or mappings with a string under `key`."""
    out: list[str] = []
    for item in items(value):
        name = text(item) or text(mapping(item).get(key))
        if name is not None:
            out.append(name)
    return out


def texts(value: Json) -> list[str]:
    """Return the strings of a list."""
    return [item for item in items(value) if isinstance(item, str)]


def tags_of(frontmatter: Mapping[str, Json]) -> list[Json]:
    """Return `tags`, else `metadata.tags`, without hidden characters.

    A string is split at its commas, or at blanks if it has none.
    """
    value = frontmatter.get("tags", metadata(frontmatter, "tags"))
    if not isinstance(value, str):
        tags = texts(value)
    elif "," in value:
        tags = value.split(",")
    else:
        tags = value.split()
    return [tag for text in tags if (tag := hidden.strip(text).strip())]


def is_allowed_icon(source: str) -> bool:
    """Tell whether an icon's `src` is safe: http, https, skill or `data:image/` URI, or a path.

    A host puts the URL into a page, where a scheme such as `javascript:` would run code.
    """
    plain = _IGNORED.sub("", hidden.strip(source))
    return _SCHEME.match(plain) is None or (
        _ALLOWED.match(plain) is not None and _ALLOWED.match(source) is not None
    )


def split_tools(value: Json) -> list[str]:
    """Split `allowed-tools`: a list of strings, or one string with blanks or commas between tools.

    Balanced parentheses are kept whole; an unclosed parenthesis is an ordinary character.
    """
    if isinstance(value, str):
        return list(_tools(value))
    return [item.strip() for item in texts(value) if item.strip()]


def _tools(text: str) -> Iterator[str]:
    start = position = 0
    closing = _closing_parentheses(text)
    while position < len(text):
        if text[position] == "(":
            position = closing.get(position, position)
        elif text[position] == "," or text[position].isspace():
            if start < position:
                yield text[start:position]
            start = position + 1
        position += 1
    if start < len(text):
        yield text[start:]


def _closing_parentheses(text: str) -> dict[int, int]:
    """Return the offset of the closing parenthesis by that of the opening one, in one pass."""
    closing: dict[int, int] = {}
    unclosed: list[int] = []
    for match in re.finditer(r"[()]", text):
        if match[0] == "(":
            unclosed.append(match.start())
        elif unclosed:
            closing[unclosed.pop()] = match.start()
    return closing
