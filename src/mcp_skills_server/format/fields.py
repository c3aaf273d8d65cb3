"""Values of a frontmatter in the shapes that authors write them in; what is not of the shape is passed over.

What is passed over is a Problem elsewhere (`validation/rules.py`, `field-type`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mcp_skills_server.format import hidden
from mcp_skills_server.model import Json

_IGNORED: Final = re.compile(r"[\x00-\x20\x7f-\xa0]+")
"""Browsers take these out of an address, of a scheme's middle too: `java\\tscript:` runs."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*+:", re.IGNORECASE)
_ALLOWED: Final = re.compile(r"https?:|data:image/|skill://", re.IGNORECASE)


def text(value: Json) -> str | None:
    """Return the value where it is a text that says something."""
    return value if isinstance(value, str) and value else None


def metadata(fields: Mapping[str, Json], key: str) -> Json:
    """Return the value of `metadata.KEY`, None where there is none."""
    found = fields.get("metadata")
    return found.get(key) if isinstance(found, dict) else None


def entries(value: Json, key: str) -> list[dict[str, Json]]:
    """Return the mappings of a list that have text under `key`, the first of each text."""
    out: dict[str, dict[str, Json]] = {}
    for each in value if isinstance(value, list) else []:
        name = each.get(key) if isinstance(each, dict) else None
        if isinstance(each, dict) and isinstance(name, str) and name:
            out.setdefault(name, each)
    return list(out.values())


def references(value: Json, key: str) -> list[str]:
    """Names out of a list of references or of plain texts."""
    out: list[str] = []
    for each in value if isinstance(value, list) else []:
        name = each.get(key) if isinstance(each, dict) else each
        if isinstance(name, str) and name:
            out.append(name)
    return out


def texts(value: Json) -> list[str]:
    """Return the texts of a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def tags_of(frontmatter: Mapping[str, Json]) -> list[Json]:
    """`tags` from the top level, else from `metadata`: a list, or one text with commas or blanks between.

    Hidden characters are left out.
    """
    value = frontmatter.get("tags", metadata(frontmatter, "tags"))
    if isinstance(value, str):
        found = value.split(",") if "," in value else value.split()
    else:
        found = texts(value)
    return [tag for each in found if (tag := hidden.without(each).strip())]


def is_allowed_icon(source: str) -> bool:
    """Tell whether an icon may have this `src`: https, http, a file of a skill by its URI, a picture as data, or a
    path.

    A host puts the address into a page, so it must not be one that does something there.
    """
    plain = _IGNORED.sub("", hidden.without(source))
    return _SCHEME.match(plain) is None or (_ALLOWED.match(plain) is not None and _ALLOWED.match(source) is not None)
