"""Texts that many skills have, as one object each: the names of fields, and short values such as licences."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from mcp_skills_server.model import Json

_LONGEST: Final = 32
_OWN: Final = "name"
"""The field whose value is hardly ever the same in two skills."""


def shared(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Equal fields, in which equal names and short values are the same objects from one skill to the next."""
    out: dict[str, Json] = {}
    for name, value in fields.items():
        if isinstance(value, str):
            out[sys.intern(name)] = value if len(value) > _LONGEST or name == _OWN else sys.intern(value)
        else:
            out[sys.intern(name)] = shared(value) if isinstance(value, dict) else value
    return out
