"""Bounds of one page of a list, in entries and in bytes.

The number of entries alone bounds nothing: a frontmatter may take a megabyte once its aliases are written out, and a
page of fifty such skills fifty. The first entry is always there, so that every page goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from mcp_skills_server.model import Json, Skill

MOST_BYTES: Final = 4 << 20
"""About how many bytes of skills one answer holds; what SDKs take in one message."""
_FILE: Final = 160
"""Bytes of a file in an entry beside its paths: a digest, a size and names of fields."""
_weights: Final[WeakKeyDictionary[Skill, int]] = WeakKeyDictionary()
_T = TypeVar("_T")


def weight(skill: Skill) -> int:
    """About how many bytes an entry of the skill takes: its frontmatter, and its files by their URIs."""
    kept = _weights.get(skill)
    if kept is None:
        kept = _length(skill.frontmatter) + len(skill.files) * (_FILE + 3 * len(skill.path))
        kept += 3 * sum(map(len, skill.files))
        _weights[skill] = kept
    return kept


def _length(value: Json | Mapping[str, Json]) -> int:
    """About how long the JSON is, which need not be written for it."""
    if isinstance(value, str):
        return len(value) + 2 if value.isascii() and value.isprintable() else len(json.dumps(value))
    if isinstance(value, Mapping):
        return 2 + sum([len(key) + 4 + _length(each) for key, each in value.items()])
    return len(json.dumps(value))


def portion(entries: Iterable[_T], weigh: Callable[[_T], int]) -> list[_T]:
    """Return the first of these entries, as many as fit; one at least. `weigh` returns the bytes of one."""
    out: list[_T] = []
    left = MOST_BYTES
    for entry in entries:
        left -= weigh(entry)
        if out and left < 0:
            break
        out.append(entry)
    return out
