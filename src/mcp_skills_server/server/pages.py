"""Pages of lists, and a cache of the items in them by skill."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from mcp_skills_server.format.portions import portion, weight
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.server.requests import Settings

_T = TypeVar("_T")


def page_of(snapshot: Snapshot, settings: Settings, after: str | None) -> tuple[list[Skill], str | None]:
    """Return the skills of a page, and the path to go on from: fewer than `page_size` where they are large."""
    page, more = snapshot.page(after, settings.page_size, settings.least)
    kept = portion(page, weight)
    return (page, more) if len(kept) == len(page) else (kept, kept[-1].path)


class ItemCache(Generic[_T]):
    """What was last written of each skill, for as long as there is the skill. Do not change what it holds."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Skill, tuple[Hashable, _T]] = WeakKeyDictionary()

    def get(self, skill: Skill, varies: Hashable = None) -> _T | None:
        """Return the item of a skill if what it varies with beside the skill is the same as when it was put."""
        kept = self._kept.get(skill)
        return kept[1] if kept is not None and kept[0] == varies else None

    def put(self, skill: Skill, item: _T, varies: Hashable = None) -> _T:
        """Keep the item of a skill and return it."""
        self._kept[skill] = varies, item
        return item
