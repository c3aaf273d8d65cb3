"""The order of the lists of skills, and the part of `skills/list` that a host shows by itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import permissions_of
from mcp_skills_server.dialects import jsonrpc, table
from mcp_skills_server.dialects.dialect import Dialect, EntryContext
from mcp_skills_server.format.cursors import entry_bytes, first_page
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.server.requests import Settings

_FIRST: Final = "\0"
"""Precedes the path of a preferred skill in its sort key; no path contains it."""
_kept: Final = WeakKeyDictionary[Snapshot, dict[Hashable, Any]]()
"""Sort keys by `Order`, and paths by `HostListing`, of each snapshot."""


class Order(NamedTuple):
    """The order of skills in a list: preferred ones, then the others, both by path.

    It depends only on the skills and on settings, so all pages of a list have the same order. A
    cursor holds the sort key of a page's last skill: skills that come or go between two pages
    neither skip nor repeat others.

    Attributes:
        least: the lowest standing of a listed skill.
        tags: the tags of preferred skills.
        paths: the paths of further preferred skills, such as recently used ones.
    """

    least: Standing
    tags: tuple[str, ...]
    paths: tuple[str, ...]

    def page(
        self, snapshot: Snapshot, size: int, after: str | None = None
    ) -> tuple[list[Skill], str | None]:
        """Return at most `size` skills within the page's byte limit, and the next cursor key."""
        keys = self._keys(snapshot)
        start = 0 if after is None else bisect_right(keys, after)
        chosen = keys[start : start + size]
        skills = [snapshot.skills[key.removeprefix(_FIRST)] for key in chosen]
        kept = first_page(skills, entry_bytes)
        if start + len(kept) < len(keys) and kept:
            return kept, chosen[len(kept) - 1]
        return kept, None

    def _keys(self, snapshot: Snapshot) -> Sequence[str]:
        if not self.tags and not self.paths:
            return snapshot.paths(self.least)
        kept = _kept.setdefault(snapshot, {})
        if self not in kept:
            skills = (snapshot.skills[path] for path in snapshot.paths(self.least))
            kept[self] = sorted(map(self._key, skills))
        return kept[self]

    def _key(self, skill: Skill) -> str:
        tags = map(str, tags_of(skill.frontmatter))
        if skill.path in self.paths or not set(self.tags).isdisjoint(tags):
            return _FIRST + skill.path
        return skill.path


def order_of(skill_set: SkillSet, settings: Settings) -> Order:
    """Return the order of these skills. With grants it does not show what others use."""
    paths = settings.preferred_paths
    if permissions_of(skill_set) is not None:
        paths = ()
    return Order(settings.least, settings.preferred_tags, paths)


class HostListing(NamedTuple):
    """A `skills/list` from which a host shows the first skills by itself.

    Attributes:
        dialects: the dialects of its entries.
        skills: the most skills that the host reads.
        size: the most bytes of entries that it reads.
    """

    order: Order
    dialects: tuple[Dialect, ...]
    skills: int
    size: int

    def shown(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the paths of the skills that the host shows, computed once for each snapshot."""
        kept = _kept.setdefault(snapshot, {})
        if self not in kept:
            kept[self] = self._read(snapshot)
        return kept[self]

    def _read(self, snapshot: Snapshot) -> frozenset[str]:
        paths: list[str] = []
        left = self.size
        for skill in self.order.page(snapshot, self.skills)[0]:
            context = EntryContext(skill, snapshot, self.order.least, Served())
            left -= len(jsonrpc.dump(table.entry(context, self.dialects)))
            if left < 0:
                break
            paths.append(skill.path)
        return frozenset(paths)


def host_listing(
    skill_set: SkillSet, settings: Settings, client: str | None, extensions: Mapping[str, Any]
) -> HostListing | None:
    """Return what a host shows of these skills by itself; None if it shows none."""
    limits = settings.spoken.native_limits(client, extensions)
    if limits is None:
        return None
    skills = min(limits.skills, limits.pages * settings.page_size)
    dialects = settings.spoken.for_client(extensions)
    return HostListing(order_of(skill_set, settings), dialects, skills, limits.size)
