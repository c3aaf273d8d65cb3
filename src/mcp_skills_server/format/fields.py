"""Values of a frontmatter in the shapes that authors write them in; what is not of the shape is
passed over.

What is passed over is a Problem elsewhere (`validation/rules.py`, `field-type`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mcp_skills_server.format import hidden
from mcp_skills_server.model import Json

_IGNORED: Final = re.compile(r"[\x00-\x20\x7f-\xa0]+")
"""Browsers strip these from an address, even inside the scheme: `java\\tscript:` runs."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*+:", re.IGNORECASE)
_ALLOWED: Final = re.compile(r"https?:|data:image/|skill://", re.IGNORECASE)


def mapping(value: Json) -> dict[str, Json]:
    """Return the value where it is a mapping, else an empty one."""
    if isinstance(value, dict):
        return value
    return {}


def items(value: Json) -> list[Json]:
    """Return the items of a list; none of anything else."""
    if isinstance(value, list):
        return value
    return []


def text(value: Json) -> str | None:
    """Return the value where it is a text that says something."""
    if isinstance(value, str) and value:
        return value
    return None


def metadata(fields: Mapping[str, Json], key: str) -> Json:
    """Return the value of `metadata.KEY`, None where there is none."""
    return mapping(fields.get("metadata")).get(key)


def entries(value: Json, key: str) -> list[dict[str, Json]]:
    """Return the mappings of a list that have text under `key`, the first of each text."""
    out: dict[str, dict[str, Json]] = {}
    for each in map(mapping, items(value)):
        name = text(each.get(key))
        if name is not None:
            out.setdefault(name, each)
    return list(out.values())


def references(value: Json, key: str) -> list[str]:
    """Return the names in a list of references or of plain texts."""
    out: list[str] = []
    for each in items(value):
        name = text(each) or text(mapping(each).get(key))
        if name is not None:
            out.append(name)
    return out


def texts(value: Json) -> list[str]:
    """Return the texts of a list."""
    return [each for each in items(value) if isinstance(each, str)]


def tags_of(frontmatter: Mapping[str, Json]) -> list[Json]:
    """Return `tags` of the top level, else of `metadata`: a list, or one text split at commas, else
    at blanks.

    Hidden characters are left out.
    """
    value = frontmatter.get("tags", metadata(frontmatter, "tags"))
    if not isinstance(value, str):
        found = texts(value)
    elif "," in value:
        found = value.split(",")
    else:
        found = value.split()
    return [tag for each in found if (tag := hidden.without(each).strip())]


def is_allowed_icon(source: str) -> bool:
    """Tell whether an icon may have this `src`: https, http, a file of a skill by its URI, a
    picture as data, or a path.

    A host puts the address into a page, so it must not be one that does something there.
    """
    plain = _IGNORED.sub("", hidden.without(source))
    return _SCHEME.match(plain) is None or (
        _ALLOWED.match(plain) is not None and _ALLOWED.match(source) is not None
    )
