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
    return {sys.intern(name): value if name == _OWN else _shared(value) for name, value in fields.items()}


def _shared(value: Json) -> Json:
    if isinstance(value, str):
        return sys.intern(value) if len(value) <= _LONGEST else value
    if isinstance(value, dict):
        return shared(value)
    return [_shared(each) for each in value] if isinstance(value, list) else value
