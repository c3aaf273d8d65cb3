"""How much of a list one answer holds: so many entries, and no more than so many bytes.

The number of entries alone bounds nothing: a frontmatter may take a megabyte once its aliases are written out, and a
page of fifty such skills fifty. The first entry is always there, so that every page goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from mcp_skills_server.model import Skill

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
        kept = len(json.dumps(skill.frontmatter if isinstance(skill.frontmatter, dict) else dict(skill.frontmatter)))
        kept += sum(_FILE + 3 * (len(skill.path) + len(path)) for path in skill.files)
        _weights[skill] = kept
    return kept


def portion(entries: Iterable[_T], weigh: Callable[[_T], int]) -> list[_T]:
    """The first of these entries, as many as fit; one at least. `weigh` returns the bytes of one."""
    out: list[_T] = []
    left = MOST_BYTES
    for entry in entries:
        left -= weigh(entry)
        if out and left < 0:
            break
        out.append(entry)
    return out
