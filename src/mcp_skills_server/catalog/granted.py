"""The part of a registry that grants leave: one filtered snapshot for each set of grants, shared by all who have it.

It is made by the first request that needs it, and follows the registry by what differs since the last one. All that a
request can reach is in its snapshot, so a reader of one needs to judge nothing.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from mcp_skills_server import codes
from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.catalog.listeners import Listeners
from mcp_skills_server.catalog.path_index import join, within
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Changes, Problem, Skill, Snapshot, Standing


def nested_in(whole: Snapshot, skill: Skill) -> set[str]:
    """Return where in the folder of a skill there are others.

    That includes one whose SKILL.md is no file that can be read, which a gate refuses, or whose SKILL.md is just gone.

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


_rest_of: Final = attrgetter("findings", "empty", "standing", "origin")


class Granted:
    """The part of a registry that some permissions leave. Any thread may use it. It is made by `Views`.

    Args:
        registry: all skills.
        permissions: which of them are left.
        made: called with this when its snapshot has another size than before.

    Attributes:
        permissions: as given.
        asked_at: when a request came last that is answered from it, by the monotonic clock.
    """

    def __init__(self, registry: Registry, permissions: Permissions, made: Callable[[Granted], None]) -> None:
        self.permissions = permissions
        self.asked_at = time.monotonic()
        self._registry = registry
        self._on_made = made
        self._is_whole = permissions.reads_all
        self._lock = threading.Lock()
        self._listeners = Listeners()
        self._made: tuple[object, Snapshot | None] = None, None
        """Of which snapshot of the registry, by its token, this is the filtered one."""
        # What touches no more than what a snapshot gave out is the registry's.
        self.read, self.digest = registry.read, registry.digest
        self.body, self.has_body = registry.body, registry.has_body
        self.hash_files, self.place, self.load = registry.hash_files, registry.place, registry.load
        self.roots, self.limits, self.loaded, self.index = (
            registry.roots,
            registry.limits,
            registry.loaded,
            registry.index,
        )

    @property
    def snapshot(self) -> Snapshot:
        """The skills that are left, as they are now. The same object for as long as none of them differs."""
        whole = self._registry.snapshot
        if self._is_whole:
            return whole
        token, own = self._made
        return own if own is not None and token is whole.token else self._follow()

    def unread_sources(self) -> Sequence[str]:
        """None: whether they hold anything for this principal is not known."""
        return ()

    def note_request(self) -> None:
        """As `Registry.note_request`."""
        self.asked_at = self._registry.asked_at = time.monotonic()

    def rescan(self, stale: StaleFileError) -> Changes:
        """As `Registry.rescan`."""
        return self.left_of(self._registry.rescan(stale))

    def subscribe(self, listener: Callable[[Changes], None], *, problems: bool = False) -> Callable[[], None]:
        """Have `listener` called as `Registry.subscribe` says, where some of these skills differ."""
        return self._listeners.subscribe(listener, problems=problems)

    def notify(self, changes: Changes) -> None:
        """Tell the listeners what of these changes is about skills that are left."""
        if len(self._listeners):
            self._listeners.notify(self.left_of(changes))

    def forget(self) -> None:
        """Free the snapshot; the next request makes it anew."""
        with self._lock:
            self._made = None, None

    @property
    def weight(self) -> int:
        """How many skills are kept for it now."""
        own = self._made[1]
        return 0 if own is None else len(own.skills)

    # What is left

    def left_of(self, changes: Changes) -> Changes:
        """Return what of these changes is about skills that are left."""
        before, after = self._all_left(changes.before), self._all_left(changes.after)
        return Changes(without_same(before, after), without_same(after, before))

    def _all_left(self, skills: Mapping[str, Skill]) -> dict[str, Skill]:
        return {path: left for path, skill in skills.items() if (left := self._left_of(skill)) is not None}

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
        findings = tuple(found for found in skill.findings if not any(within(found.path, each) for each in places))
        return replace(
            skill,
            files={path: file for path, file in skill.files.items() if is_left(path)},
            empty=tuple(filter(is_left, skill.empty)),
            findings=findings,
            standing=min(skill.reading.standing, codes.standing(findings)),
        )

    def _follow(self) -> Snapshot:
        with self._lock:
            whole = self._registry.snapshot
            token, own = self._made
            if own is None or token is None:
                made = Snapshot(self._readable(whole), self._problems(whole))
            else:
                made = self._followed(whole, token, own)
            self._made = whole.token, made
        if own is None or len(own.skills) != len(made.skills):
            self._on_made(self)
        return made

    def _readable(self, whole: Snapshot) -> dict[str, Skill]:
        paths = whole.paths(Standing.UNUSABLE)
        return {path: self._without_withheld(whole.skills[path]) for path in self.permissions.readable(paths)}

    def _followed(self, whole: Snapshot, token: object, own: Snapshot) -> Snapshot:
        """Return the snapshot of the skills as they are now, made of the last one; that one where nothing differs."""
        differing = whole.differing_since(token)
        if differing is None:
            now: dict[str, Skill] = self._readable(whole)
            differing = now.keys() | own.skills.keys()
        else:
            now = self._all_left({path: whole.skills[path] for path in differing if path in whole.skills})
        after = {path: skill for path, skill in now.items() if not _is_same(own.skills.get(path), skill)}
        gone = [path for path in differing if path in own.skills and path not in now]
        problems = self._problems(whole)
        if not after and not gone and problems == own.problems:
            return own
        return own.replacing(after, gone, problems)

    def _problems(self, whole: Snapshot) -> tuple[Problem, ...]:
        """Return what is wrong with skills that are left. What is wrong with a root is for the operator."""
        return tuple(found for found in whole.problems if found.skill and self.permissions.reads(found.skill))


def _is_same(before: Skill | None, now: Skill) -> bool:
    """Tell whether a skill is the one that it was, although it may have been made anew out of a larger one."""
    if before is None or before is now:
        return before is now
    return before.reading is now.reading and before.files == now.files and _rest_of(before) == _rest_of(now)


def without_same(skills: Mapping[str, Skill], others: Mapping[str, Skill]) -> dict[str, Skill]:
    """Return those that are not the same among the others."""
    return {path: each for path, each in skills.items() if not _is_same(others.get(path), each)}
