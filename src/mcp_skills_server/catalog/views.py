"""The skills of each principal, what its grants leave of the registry, and the view of one request.

There is one filtered snapshot for each set of grants, shared by all who have it. All that a request
can reach is in its snapshot, so a reader of one needs to judge nothing.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary, ref

from mcp_skills_server import codes
from mcp_skills_server.access.grants import Grant, Grants, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.path_index import join, within
from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.registry import Listeners, Registry
from mcp_skills_server.catalog.threads import in_thread, off_loop
from mcp_skills_server.errors import REPEATS, StaleFileError, UnreadableError
from mcp_skills_server.model import SKILL_MD, Changes, Skill, Snapshot, Standing
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_MOST_SKILLS: Final = 400_000
"""Skills that all filtered snapshots hold together, about 150 bytes each."""
_EMPTY: Final = 50
"""The fixed weight of each cached object, in skills."""
_INLINE_BYTES: Final = 1 << 18
"""Larger files are read off the event loop."""
_INLINE_MARKDOWN: Final = 1 << 14
"""A longer SKILL.md is parsed off the event loop; for a shorter one the switch of threads would
cost more."""
_K = TypeVar("_K")
_V = TypeVar("_V")

SkillSet: TypeAlias = "Registry | Granted"
"""The skills behind a view, a conversation or a publication: all, or what some permissions
leave."""


class View:
    """The skills that one request is answered from.

    Args:
        skill_set: the skills that the grants leave to the caller.

    Attributes:
        skill_set: as given.
        snapshot: all that the request sees, as it was when the view was made.
    """

    __slots__ = ("skill_set", "snapshot")

    def __init__(self, skill_set: SkillSet) -> None:
        self.skill_set = skill_set
        self.snapshot: Snapshot = skill_set.snapshot

    async def read(self, skill: Skill, path: str) -> bytes:
        """Return the exact bytes of a file of a skill.

        Raises:
            StaleFileError: they are no longer those that were scanned.
        """
        file = skill.files[path]
        raw = await off_loop(file.size <= _INLINE_BYTES, self.skill_set.read, file)
        events.was_read(skill, path)
        return raw

    async def body(self, skill: Skill) -> Body:
        """Return the skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        quick = skill.files[SKILL_MD].size <= _INLINE_MARKDOWN
        found = await off_loop(quick, self.skill_set.body, skill)
        events.was_read(skill, SKILL_MD)
        return found


async def retry_when_stale(skill_set: SkillSet, handler: Callable[[View], Awaitable[_V]]) -> _V:
    """Return what the handler returns; called once more, with the skill scanned again, where a file
    has changed.

    Raises:
        UnreadableError: a file changed again, or stays unreadable.
    """
    try:
        return await handler(View(skill_set))
    except StaleFileError as stale:
        events.begins_again()
        await in_thread(skill_set.rescan, stale.path)
    try:
        return await handler(View(skill_set))
    except StaleFileError as stale:
        logger.warning("cannot be read: %s", stale, extra=REPEATS)
        raise UnreadableError from None


class Views:
    """The skills of a registry that each principal has. Any thread may use it.

    Args:
        registry: all skills.
        grants: who may read what; None where everybody reads everything. That can change later, but
            not whether there are any.
    """

    def __init__(self, registry: Registry, grants: Grants | None = None) -> None:
        self.registry = registry
        self._grants = grants
        self._live: WeakValueDictionary[Permissions, Granted] = WeakValueDictionary()
        self._kept = LruCache(
            self._granted, lambda _, each: each.held, _MOST_SKILLS, Granted.forget
        )
        self._replaced: list[Callable[[Grants, Grants], None]] = []
        if grants is not None:
            registry.subscribe(self._note)

    @property
    def are_restricted(self) -> bool:
        """True when there are grants, so that principals may see different skills."""
        return self._grants is not None

    def permissions(self, principal: Principal | None) -> Permissions | None:
        """Return what a principal may; None for everything that the options allow."""
        grants = self._grants
        if grants is None:
            return None
        return grants.permissions(principal)

    def may_admin(self, principal: Principal | None) -> bool:
        """Tell whether a principal may see what is for the operator alone."""
        permissions = self.permissions(principal)
        return permissions is None or permissions.may_admin

    def of(self, principal: Principal | None) -> SkillSet:
        """Return the skills that this principal has; None is an anonymous client."""
        grants = self._grants
        if grants is None:
            return self.registry
        return self.left_by(grants.permissions(principal))

    def left_by(self, permissions: Permissions) -> Granted:
        """Return the skills that these permissions leave."""
        return self._kept.of(permissions)

    def _granted(self, permissions: Permissions) -> Granted:
        found = self._live.get(permissions)
        if found is None:
            found = self._live[permissions] = Granted(self.registry, permissions)
        return found

    def replace(self, grants: Sequence[Grant]) -> None:
        """Replace the grants.

        Raises:
            ValueError: the server began without grants, and may not gain any.
        """
        before = self._grants
        if before is None:
            raise ValueError("grants replace grants")
        self._grants = now = Grants(grants, local=before.local)
        for each in self._replaced:
            each(before, now)

    def on_replaced(self, listener: Callable[[Grants, Grants], None]) -> None:
        """Have `listener` called with the grants before and those in force, in the thread that
        replaces them."""
        self._replaced.append(listener)

    def difference(self, before: Permissions, after: Permissions) -> Changes:
        """Return the difference for a principal who had the first permissions and has the second
        now."""
        old, new = self.left_by(before).snapshot.skills, self.left_by(after).snapshot.skills
        return Changes(_without_same(old, new), _without_same(new, old))

    def _note(self, changes: Changes) -> None:
        for each in list(self._live.values()):
            each.notify(changes)


class Granted:
    """The part of a registry that some permissions leave. Any thread may use it. It is made by
    `Views`.

    Args:
        registry: all skills.
        permissions: which of them are left.

    Attributes:
        permissions: as given.
    """

    def __init__(self, registry: Registry, permissions: Permissions) -> None:
        self.permissions = permissions
        self._registry = registry
        self._is_whole = permissions.reads_all
        self._lock = threading.Lock()
        self._listeners = Listeners()
        self.forget()
        # The registry's own: these take only objects that came from a snapshot.
        self.read, self.body, self.place, self.load = (
            registry.read,
            registry.body,
            registry.place,
            registry.load,
        )
        self.roots, self.limits, self.loaded, self.index = (
            registry.roots,
            registry.limits,
            registry.loaded,
            registry.index,
        )

    @property
    def snapshot(self) -> Snapshot:
        """The skills that are left, as they are now. The same object for as long as none of them
        differs."""
        whole = self._registry.snapshot
        if self._is_whole:
            return whole
        with self._lock:
            if self._of is None or self._of() is not whole:
                self._rebuild(whole)
            return self._own

    def unread_sources(self) -> Sequence[str]:
        """Return none: what they hold for this principal is unknown."""
        return ()

    def remembered(self) -> None:
        """Return None: grants are not kept between processes."""
        return

    def rescan(self, path: str) -> Changes:
        """As `Registry.rescan`."""
        return self.left_of(self._registry.rescan(path))

    def subscribe(
        self, listener: Callable[[Changes], None], *, problems: bool = False
    ) -> Callable[[], None]:
        """Have `listener` called as `Registry.subscribe` says, where some of these skills
        differ."""
        return self._listeners.subscribe(listener, problems=problems)

    def notify(self, changes: Changes) -> None:
        """Notify the listeners of the changes to skills that are left."""
        if len(self._listeners):
            self._listeners.notify(self.left_of(changes))

    def forget(self) -> None:
        """Free the snapshot; the next request makes it anew."""
        with self._lock:
            self._own = Snapshot({})
            self._of: ref[Snapshot] | None = None
            """The snapshot of the registry that it was made of."""
            self._whole: dict[str, Skill] = {}
            """The registry's skills that are left, as they are without grants, by path."""

    @property
    def held(self) -> int:
        """Number of skills that are kept now."""
        return len(self._whole)

    def left_of(self, changes: Changes) -> Changes:
        """Return what of these changes is about skills that are left."""
        before, after = self._all_left(changes.before), self._all_left(changes.after)
        return Changes(_without_same(before, after), _without_same(after, before))

    def _all_left(self, skills: Mapping[str, Skill]) -> dict[str, Skill]:
        return {
            path: left
            for path, skill in skills.items()
            if (left := self._left_of(skill)) is not None
        }

    def _left_of(self, skill: Skill) -> Skill | None:
        if not self.permissions.reads(skill.path):
            return None
        return self._without_withheld(skill)

    def _without_withheld(self, skill: Skill) -> Skill:
        """Return a skill without the skills in its folder that have no grant of their own."""
        nested = nested_in(self._registry.snapshot, skill)
        withheld = [each for each in nested if not self.permissions.reads(f"{skill.path}/{each}")]
        if not withheld:
            return skill
        granted = nested.difference(withheld)

        def is_left(path: str) -> bool:
            holders = [each for each in nested if within(path, each)]
            return not holders or max(holders, key=len) in granted

        root = self._registry.roots[skill.root]
        places = [root.show(join(skill.directory, each)) for each in withheld]
        findings = tuple(
            found
            for found in skill.findings
            if not any(within(found.path, each) for each in places)
        )
        return replace(
            skill,
            files={path: file for path, file in skill.files.items() if is_left(path)},
            empty=tuple(filter(is_left, skill.empty)),
            findings=findings,
            standing=min(skill.reading.standing, codes.standing(findings)),
        )

    def _rebuild(self, whole: Snapshot) -> None:
        """Make the snapshot of the skills as they are now; it stays the same object where nothing
        differs."""
        own, before = self._own.skills, self._whole
        paths = whole.paths(Standing.UNUSABLE)
        now = {path: whole.skills[path] for path in self.permissions.readable(paths)}
        made: dict[str, Skill] = {}
        for path, skill in now.items():
            made[path] = own[path] if before.get(path) is skill else self._without_withheld(skill)
            if path in own and _is_same(own[path], made[path]):
                made[path] = own[path]
        # What is wrong with a root is for the operator.
        problems = tuple(
            found for found in whole.problems if found.skill and self.permissions.reads(found.skill)
        )
        if made != {**own} or problems != self._own.problems:
            self._own = Snapshot(made, problems)
        self._of, self._whole = ref(whole), now


def nested_in(whole: Snapshot, skill: Skill) -> set[str]:
    """Return the paths of the skills nested in a skill, relative to it.

    Includes skills that are unreadable, refused by a gate, or just deleted.

    Args:
        whole: all skills, as they are without grants.
        skill: one of them, whole.
    """
    out = set(skill.nested)
    before, paths = f"{skill.path}/", whole.paths(Standing.UNUSABLE)
    at = bisect_left(paths, before)
    while at < len(paths) and paths[at].startswith(before):
        if whole.skills[paths[at]].root == skill.root:
            out.add(paths[at].removeprefix(before))
        at += 1
    return out


_compared_fields: Final = attrgetter("findings", "empty", "standing", "origin")


def _is_same(before: Skill | None, now: Skill) -> bool:
    """Tell whether a skill is the one that it was, although it may have been made anew out of a
    larger one."""
    if before is None or before is now:
        return before is now
    return (
        before.reading is now.reading
        and before.files == now.files
        and _compared_fields(before) == _compared_fields(now)
    )


def _without_same(skills: Mapping[str, Skill], others: Mapping[str, Skill]) -> dict[str, Skill]:
    """Return those that are not the same among the others."""
    return {path: each for path, each in skills.items() if not _is_same(others.get(path), each)}


def held(skill_set: SkillSet, _: object) -> int:
    """Weigh what is made of a set of skills, for an `LruCache`."""
    return skill_set.held


class LruCache(Generic[_K, _V]):
    """Objects by key, each made when it is first asked for. Any thread may use it.

    Args:
        make: makes the object of a key; must be quick, since it holds the lock.
        weigh: how many skills an object holds.
        most: skills of all objects together; beyond that the least recently used one goes.
        close: closes an evicted object.
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
        self._kept: OrderedDict[_K, _V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: _K) -> _V:
        """Return the object of this key."""
        going: list[_V] = []
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(key)
                total = sum(_EMPTY + self._weigh(*item) for item in self._kept.items())
                while total > self._most and len(self._kept) > 1:
                    oldest, gone = self._kept.popitem(last=False)
                    total -= _EMPTY + self._weigh(oldest, gone)
                    going.append(gone)
            self._kept.move_to_end(key)
            found = self._kept[key]
        if self._close is not None:
            for gone in going:
                self._close(gone)
        return found
