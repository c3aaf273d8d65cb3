"""Access-filtered views: the skills that a principal's grants leave, as seen by one request.

Principals with equal permissions share one filtered snapshot. It holds all that a request can
reach, so its readers check no access.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary, ref

from mcp_skills_server.access.grants import Grant, Grants, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.registry import Body, Listeners, Registry
from mcp_skills_server.catalog.threads import in_thread, off_loop
from mcp_skills_server.errors import REPEATS, StaleFileError, UnreadableError
from mcp_skills_server.model import SKILL_MD, Changes, Skill, Snapshot, Standing
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_MOST_SKILLS: Final = 400_000
"""Skills in all cached filtered snapshots together, about 150 bytes each."""
_EMPTY: Final = 50
"""Base weight of each cached object, in skills."""
_INLINE_BYTES: Final = 1 << 18
"""Files of at most this size are read on the event loop."""
_INLINE_MARKDOWN: Final = 1 << 14
"""A SKILL.md of at most this size is parsed on the event loop: a thread switch would cost more."""
_K = TypeVar("_K")
_V = TypeVar("_V")

SkillSet: TypeAlias = "Registry | FilteredSkills"
"""The skills behind a view, a conversation or a publication: all, or a filtered part."""


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
        found = await off_loop(quick, self.skill_set.body, skill)
        events.record_read(skill, SKILL_MD)
        return found


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
        self._live: WeakValueDictionary[Permissions, FilteredSkills] = WeakValueDictionary()
        self._cached = LruCache(
            self._granted, lambda _, each: each.weight, _MOST_SKILLS, FilteredSkills.forget
        )
        self._replaced: list[Callable[[Grants, Grants], None]] = []
        if grants is not None:
            registry.subscribe(self._note)

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

    def of(self, principal: Principal | None) -> SkillSet:
        """Return the skills of this principal; None is an anonymous client."""
        permissions = self.permissions(principal)
        if permissions is None:
            return self.registry
        return self.filtered(permissions)

    def filtered(self, permissions: Permissions) -> FilteredSkills:
        """Return the skills that these permissions can read."""
        return self._cached.of(permissions)

    def _granted(self, permissions: Permissions) -> FilteredSkills:
        found = self._live.get(permissions)
        if found is None:
            found = self._live[permissions] = FilteredSkills(self.registry, permissions)
        return found

    def replace(self, grants: Sequence[Grant]) -> None:
        """Replace the grants.

        Raises:
            ValueError: the server started without grants, and cannot gain any.
        """
        before = self._grants
        if before is None:
            raise ValueError("grants replace grants")
        self._grants = now = Grants(grants, local=before.local)
        for each in self._replaced:
            each(before, now)

    def on_replaced(self, listener: Callable[[Grants, Grants], None]) -> None:
        """Call `listener` with the old and the new grants, in the thread that replaces them."""
        self._replaced.append(listener)

    def difference(self, before: Permissions, after: Permissions) -> Changes:
        """Return the changes that a principal sees when its permissions change."""
        old, new = (self.filtered(before).snapshot.skills, self.filtered(after).snapshot.skills)
        return Changes(_without_same(old, new), _without_same(new, old))

    def _note(self, changes: Changes) -> None:
        for each in list(self._live.values()):
            each.notify(changes)


class FilteredSkills:
    """Filtered part of a registry: the skills that some permissions can read. Thread-safe.

    Made by `Views`. It has the members of a `Registry` that a `SkillSet` needs.
    """

    def __init__(self, registry: Registry, permissions: Permissions) -> None:
        self.permissions = permissions
        self._registry = registry
        self._is_whole = permissions.can_read_all
        self._lock = threading.Lock()
        self._listeners = Listeners()
        self.forget()
        # Unfiltered: these take only objects that came from a filtered snapshot.
        self.read, self.body, self.place = registry.read, registry.body, registry.place
        self.roots, self.loaded = registry.roots, registry.loaded

    @property
    def snapshot(self) -> Snapshot:
        """The filtered skills as they are now; the same object until one of them changes."""
        whole = self._registry.snapshot
        if self._is_whole:
            return whole
        with self._lock:
            if self._of is None or self._of() is not whole:
                self._rebuild(whole)
            return self._own

    def unread_sources(self) -> Sequence[str]:
        """Return no names: a principal may not know of sources that it cannot read."""
        return ()

    def remembered(self) -> None:
        """Return None: grants are not kept between processes."""
        return

    def rescan(self, path: str) -> Changes:
        """Run `Registry.rescan` and return the filtered changes."""
        return self.filter_changes(self._registry.rescan(path))

    def subscribe(
        self, listener: Callable[[Changes], None], *, problems: bool = False
    ) -> Callable[[], None]:
        """Subscribe as to `Registry.subscribe`, to changes of the filtered skills."""
        return self._listeners.subscribe(listener, problems=problems)

    def notify(self, changes: Changes) -> None:
        """Notify the listeners of the filtered changes."""
        if len(self._listeners):
            self._listeners.notify(self.filter_changes(changes))

    def forget(self) -> None:
        """Drop the cached snapshot; the next request rebuilds it."""
        with self._lock:
            self._own = Snapshot({})
            self._of: ref[Snapshot] | None = None
            """The registry's snapshot that the filtered one was made from."""
            self._whole: dict[str, Skill] = {}
            """The readable skills by path, as the registry has them, nested skills included."""

    @property
    def weight(self) -> int:
        """Number of skills in the cached snapshot."""
        return len(self._whole)

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
        withheld = [each for each in skill.nested if not can_read(f"{skill.path}/{each}")]
        return without_nested(skill, withheld, self._registry.roots[skill.root])

    def _rebuild(self, whole: Snapshot) -> None:
        """Rebuild the filtered snapshot from `whole`; the same object if nothing differs."""
        own, before = self._own.skills, self._whole
        paths = whole.paths(Standing.UNUSABLE)
        now = {path: whole.skills[path] for path in self.permissions.readable(paths)}
        made: dict[str, Skill] = {}
        for path, skill in now.items():
            made[path] = own[path] if before.get(path) is skill else self._without_withheld(skill)
            if path in own and own[path].has_same_content(made[path]):
                made[path] = own[path]
        # Problems of roots are for the operator only.
        can_read = self.permissions.can_read
        problems = tuple(each for each in whole.problems if each.skill and can_read(each.skill))
        if made != {**own} or problems != self._own.problems:
            self._own = Snapshot(made, problems)
        self._of, self._whole = ref(whole), now


def _without_same(skills: Mapping[str, Skill], others: Mapping[str, Skill]) -> dict[str, Skill]:
    """Return the skills that have no equal under the same path in `others`."""
    return {
        path: each
        for path, each in skills.items()
        if path not in others or not others[path].has_same_content(each)
    }


def weigh(skill_set: SkillSet, _: object) -> int:
    """Return the weight of a value keyed by a set of skills, for an `LruCache`."""
    return skill_set.weight


class LruCache(Generic[_K, _V]):
    """Thread-safe LRU cache, bounded by weight in skills; values are made on a miss.

    `make` is called under the lock, so it must be quick. Above the weight `most` the least recently
    used values are evicted and closed.
    """

    def __init__(
        self,
        make: Callable[[_K], _V],
        weigh: Callable[[_K, _V], int],
        most: int,
        close: Callable[[_V], object] | None = None,
    ) -> None:
        self._make = make
        self._weigh = weigh
        self._most = most
        self._close = close
        self._lock = threading.Lock()
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def of(self, key: _K) -> _V:
        """Return the value of this key, made on a miss."""
        going: list[_V] = []
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make(key)
                total = sum(_EMPTY + self._weigh(*item) for item in self._values.items())
                while total > self._most and len(self._values) > 1:
                    oldest, gone = self._values.popitem(last=False)
                    total -= _EMPTY + self._weigh(oldest, gone)
                    going.append(gone)
            self._values.move_to_end(key)
            found = self._values[key]
        if self._close is not None:
            for gone in going:
                self._close(gone)
        return found
