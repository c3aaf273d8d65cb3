"""Access-filtered views: the skills that a principal's grants leave, as seen by one request.

Principals that can read the same skills share one snapshot, that of the registry if they can read
all. It holds all that a request can reach, so its readers check no access.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from weakref import ref

from mcp_skills_server.access.grants import Grant, Grants, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.caches import LruCache
from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.recalls import Advisory
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.threads import in_thread, off_loop
from mcp_skills_server.errors import REPEATS, StaleFileError, UnreadableError
from mcp_skills_server.model import SKILL_MD, Changes, Skill, Snapshot, Standing
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_MAX_SETS: Final = 4096
"""Cached `GrantedSkills`, of about a kilobyte with what is derived from them."""
_MAX_BYTES: Final = 1 << 24
"""Size of all cached filtered snapshots together."""
_SET_BYTES: Final = 40_000
_SKILL_BYTES: Final = 170
"""Size of a filtered snapshot: that of the texts for models, and of each skill."""
_INLINE_BYTES: Final = 1 << 18
"""Files of at most this size are read on the event loop."""
_INLINE_MARKDOWN: Final = 1 << 14
"""A SKILL.md of at most this size is parsed on the event loop: a thread switch would cost more."""
_V = TypeVar("_V")


class View:
    """The skills that one request is answered from.

    Attributes:
        snapshot: all that the request can read, as of the creation of the view.
    """

    __slots__ = ("skill_set", "snapshot")

    def __init__(self, skill_set: SkillSet, snapshot: Snapshot | None = None) -> None:
        self.skill_set = skill_set
        self.snapshot: Snapshot = snapshot or skill_set.snapshot

    async def read(self, skill: Skill, path: str) -> bytes:
        """Return the bytes of a file of a skill, verified against its digest.

        Raises:
            StaleFileError: the bytes differ from those that were scanned.
        """
        file = skill.files[path]
        raw = await off_loop(file.size <= _INLINE_BYTES, self.skill_set.read, file)
        events.record_read(skill, path)
        return raw

    async def body(self, skill: Skill) -> Body:
        """Return the skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        quick = skill.files[SKILL_MD].size <= _INLINE_MARKDOWN
        body = await off_loop(quick, self.skill_set.body, skill)
        events.record_read(skill, SKILL_MD)
        return body


async def retry_when_stale(skill_set: SkillSet, handler: Callable[[View], Awaitable[_V]]) -> _V:
    """Return the handler's result; after a changed file, rescan its skill and call it once more.

    Raises:
        UnreadableError: a file changed again, or stays unreadable.
    """
    try:
        return await handler(View(skill_set))
    except StaleFileError as stale:
        events.reset_uses()
        await in_thread(skill_set.rescan, stale.path)
    try:
        return await handler(View(skill_set))
    except StaleFileError as stale:
        logger.warning("cannot be read: %s", stale, extra=REPEATS)
        raise UnreadableError from None


class Views:
    """The filtered skills of each principal. Thread-safe.

    `grants` are read permissions, None for no restrictions. `replace` changes them, but never from
    or to None.
    """

    def __init__(self, registry: Registry, grants: Grants | None = None) -> None:
        self.registry = registry
        self._grants = grants
        self._granted = LruCache(partial(GrantedSkills, self), _MAX_SETS)
        self.parts = LruCache(
            partial(FilteredSkills, registry),
            _MAX_BYTES,
            weigh=lambda part: part.bytes,
            close=FilteredSkills.forget,
        )
        self._replaced: list[Callable[[Grants, Grants], None]] = []

    @property
    def grants(self) -> tuple[Grant, ...] | None:
        """The grants in force; None if every principal may see all skills."""
        return None if self._grants is None else self._grants.grants

    def permissions(self, principal: Principal | None) -> Permissions | None:
        """Return the permissions of a principal; None without grants."""
        grants = self._grants
        if grants is None:
            return None
        return grants.permissions(principal)

    def is_admin(self, principal: Principal | None) -> bool:
        """Tell whether a principal may see what only an operator may."""
        permissions = self.permissions(principal)
        return permissions is None or permissions.is_admin

    def for_principal(self, principal: Principal | None) -> SkillSet:
        """Return the skills of this principal; None is an anonymous client."""
        permissions = self.permissions(principal)
        if permissions is None:
            return self.registry
        return self.granted(permissions)

    def granted(self, permissions: Permissions) -> GrantedSkills:
        """Return the skills that these permissions can read, with the permissions."""
        return self._granted.get(permissions)

    def part(self, permissions: Permissions | None) -> Registry | FilteredSkills:
        """Return the set that is shared by all permissions to read the same skills."""
        if permissions is None or permissions.can_read_all:
            return self.registry
        return self.parts.get(permissions.to_read)

    def visible_changes(self, changes: Changes, permissions: Permissions | None) -> Changes:
        """Return the part of changes of all skills that concerns what can be read."""
        part = self.part(permissions)
        return part.filter_changes(changes) if isinstance(part, FilteredSkills) else changes

    def replace(self, grants: Sequence[Grant]) -> None:
        """Replace the grants.

        Raises:
            ValueError: the server started without grants, and cannot gain any.
        """
        before = self._grants
        if before is None:
            raise ValueError("grants replace grants")
        self._grants = now = Grants(grants, local=before.local)
        for listener in self._replaced:
            listener(before, now)

    def on_replaced(self, listener: Callable[[Grants, Grants], None]) -> None:
        """Call `listener` with the old and the new grants, in the thread that replaces them."""
        self._replaced.append(listener)

    def difference(self, before: Permissions, after: Permissions) -> Changes:
        """Return the changes that a principal sees when its permissions change."""
        old, new = self.part(before).snapshot.skills, self.part(after).snapshot.skills
        return Changes(_without_same(old, new), _without_same(new, old))


class GrantedSkills:
    """The skills that a principal can read, and its permissions. Thread-safe.

    A `SkillSet`, made by `Views`.
    """

    def __init__(self, views: Views, permissions: Permissions) -> None:
        self.permissions = permissions
        self._views = views
        registry = views.registry
        # Unfiltered: these take only objects that came from a filtered snapshot.
        self.read, self.body, self.place = registry.read, registry.body, registry.place
        self.roots, self.loaded = registry.roots, registry.loaded

    @property
    def _part(self) -> Registry | FilteredSkills:
        return self._views.part(self.permissions)

    @property
    def snapshot(self) -> Snapshot:
        """The readable skills as they are now; the same object until one of them changes."""
        return self._part.snapshot

    def unread_sources(self) -> Sequence[str]:
        """Return no names: a principal may not know of sources that it cannot read."""
        return ()

    def remembered(self) -> None:
        """Return None: grants are not kept between processes."""
        return

    def advisory_on(self, skill: Skill | str, digest: str = "") -> Advisory | None:
        """Return the advisory on a skill or path that these permissions can read, or None."""
        if not self.permissions.can_read(skill if isinstance(skill, str) else skill.path):
            return None
        return self._views.registry.advisory_on(skill, digest)

    def rescan(self, path: str) -> Changes:
        """Run `Registry.rescan` and return the filtered changes."""
        return self._part.rescan(path)


def permissions_of(skill_set: SkillSet) -> Permissions | None:
    """Return the permissions that a set of skills was made for; None for all skills."""
    return skill_set.permissions if isinstance(skill_set, GrantedSkills) else None


class FilteredSkills:
    """Filtered part of a registry: the skills that some permissions can read. Thread-safe.

    Made by `Views`, for all principals that can read the same.
    """

    def __init__(self, registry: Registry, permissions: Permissions) -> None:
        self.permissions = permissions
        self._registry = registry
        self._lock = threading.Lock()
        self.forget()
        self.read, self.loaded = registry.read, registry.loaded  # unfiltered, as in `GrantedSkills`
        self.advisory_on = registry.advisory_on

    @property
    def snapshot(self) -> Snapshot:
        """The filtered skills as they are now; the same object until one of them changes."""
        whole = self._registry.snapshot
        with self._lock:
            if self._of is None or self._of() is not whole:
                self._rebuild(whole)
            return self._own

    def rescan(self, path: str) -> Changes:
        """Run `Registry.rescan` and return the filtered changes."""
        return self.filter_changes(self._registry.rescan(path))

    def forget(self) -> None:
        """Drop the cached snapshot; the next request rebuilds it."""
        with self._lock:
            self._own = Snapshot({})
            self._of: ref[Snapshot] | None = None
            """The registry's snapshot that the filtered one was made from."""
            self._paths: list[str] = []
            """The paths of all skills of the registry."""
            self._readable: list[str] = []
            self._outer: dict[str, Skill] = {}
            """By path, the registry's skill from which another object here was made."""

    @property
    def bytes(self) -> int:
        """Approximate size of the cached snapshot."""
        return _SET_BYTES + _SKILL_BYTES * len(self._readable)

    def filter_changes(self, changes: Changes) -> Changes:
        """Return the filtered changes."""
        before, after = self._all_left(changes.before), self._all_left(changes.after)
        return Changes(_without_same(before, after), _without_same(after, before))

    def _all_left(self, skills: Mapping[str, Skill]) -> dict[str, Skill]:
        return {
            path: self._without_withheld(skill)
            for path, skill in skills.items()
            if self.permissions.can_read(path)
        }

    def _without_withheld(self, skill: Skill) -> Skill:
        """Return a skill without the nested skills that have no grant of their own."""
        can_read = self.permissions.can_read
        withheld = [nested for nested in skill.nested if not can_read(f"{skill.path}/{nested}")]
        left = without_nested(skill, withheld, self._registry.roots[skill.root])
        return left if left is skill else replace(left, whole=skill)

    def _rebuild(self, whole: Snapshot) -> None:
        """Rebuild the filtered snapshot from `whole`; the same object if nothing differs."""
        paths = whole.paths(Standing.UNUSABLE)
        if paths != self._paths:
            self._paths, self._readable = paths, sorted(self.permissions.readable(paths))
        own, before, self._outer = self._own.skills, self._outer, {}
        made: dict[str, Skill] = {}
        for path in self._readable:
            skill, kept = whole.skills[path], own.get(path)
            if kept is not None and self.advisory_on(kept):
                kept = None  # only a withheld file differs from the recalled version
            # neither the registry's own object nor made from it: made from an earlier one
            if kept is None or (kept is not skill and before.get(path) is not skill):
                left = self._without_withheld(skill)
                if kept is None or not kept.has_same_content(left):
                    kept = left
            if kept is not skill:
                self._outer[path] = skill
            made[path] = kept
        # Problems of roots are for the operator only.
        can_read = self.permissions.can_read
        of_skills = (problem for problem in whole.problems if problem.skill)
        problems = tuple(problem for problem in of_skills if can_read(problem.skill))
        if made != {**own} or problems != self._own.problems:
            self._own = Snapshot(made, problems)
        self._of = ref(whole)


def _without_same(skills: Mapping[str, Skill], others: Mapping[str, Skill]) -> dict[str, Skill]:
    """Return the skills that have no equal under the same path in `others`."""
    return {
        path: skill
        for path, skill in skills.items()
        if path not in others or not others[path].has_same_content(skill)
    }
