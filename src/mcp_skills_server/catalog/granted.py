"""What grants leave of a registry: one filtered snapshot for each set of grants, shared by all who have it.

It is made by the first request that needs it, and follows the registry by what differs since the last one. All that a
request can reach is in its snapshot, so whoever reads from one needs to judge nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from mcp_skills_server import codes
from mcp_skills_server.access.grants import Grant, Grants, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.listeners import Listeners
from mcp_skills_server.catalog.path_index import join, within
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Changes, Problem, Skill, Snapshot, Standing

_MOST_SETS: Final = 4096
"""Sets of grants that are kept although nobody uses them now; an unused one is a few hundred bytes."""
_MOST_SKILLS: Final = 400_000
"""Skills that all filtered snapshots hold together, about 150 bytes each."""
_AT_LEAST: Final = 16
"""Snapshots that are kept however large they are."""
_EMPTY_SET: Final = 50
"""How many skills something weighs that is made of no skill."""
_V = TypeVar("_V")
_NESTED: Final = f"/{SKILL_MD}"


class Granted:
    """What some permissions leave of a registry. Any thread may use it. It is made by `Views`.

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
        self.read, self.digest, self.last_read = registry.read, registry.digest, registry.last_read
        self.body, self.has_body, self.last_body = registry.body, registry.has_body, registry.last_body
        self.hash_files, self.place, self.load = registry.hash_files, registry.place, registry.load
        self.roots, self.limits, self.loaded, self.keeper = (
            registry.roots,
            registry.limits,
            registry.loaded,
            registry.keeper,
        )

    @property
    def snapshot(self) -> Snapshot:
        """The skills that are left, as they are now. The same object for as long as none of them differs."""
        whole = self._registry.snapshot
        if self._is_whole:
            return whole
        token, own = self._made
        return own if own is not None and token is whole.token else self._follow()

    def note_request(self) -> None:
        """As `Registry.note_request`."""
        self.asked_at = self._registry.asked_at = time.monotonic()

    def last_proved(self, skill: Skill) -> Skill | None:
        """As `Registry.last_proved`, without what is withheld."""
        found = self._registry.last_proved(skill)
        return None if found is None else self._left_of(found)

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
        """What of these changes is about skills that are left."""
        before, after = self._all_left(changes.before), self._all_left(changes.after)
        return Changes(_without(before, after), _without(after, before))

    def _all_left(self, skills: Mapping[str, Skill]) -> dict[str, Skill]:
        return {path: left for path, skill in skills.items() if (left := self._left_of(skill)) is not None}

    def _left_of(self, skill: Skill) -> Skill | None:
        if not self.permissions.reads(skill.path):
            return None
        return self._without_withheld(skill)

    def _without_withheld(self, skill: Skill) -> Skill:
        """A skill without the skills in its folder that have no grant of their own."""
        nested = [path.removesuffix(_NESTED) for path in skill.files if path.endswith(_NESTED)]
        withheld = [each for each in nested if not self.permissions.reads(f"{skill.path}/{each}")]
        if not withheld:
            return skill
        granted = set(nested).difference(withheld)

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
        """The snapshot of the skills as they are now, made of the last one; that one where nothing differs."""
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
        """What is wrong with skills that are left. What is wrong with a root is for the operator."""
        return tuple(found for found in whole.problems if found.skill and self.permissions.reads(found.skill))


def _is_same(before: Skill | None, now: Skill) -> bool:
    """Whether a skill is the one that it was, although it may have been made anew out of a larger one."""
    if before is None or before is now:
        return before is now
    if before.reading is not now.reading or before.files.keys() != now.files.keys():
        return False
    if (before.findings, before.empty, before.standing, before.origin) != (
        now.findings,
        now.empty,
        now.standing,
        now.origin,
    ):
        return False
    return all(now.files[path] is file for path, file in before.files.items())


class Views:
    """Which skills of a registry each principal has. Any thread may use it.

    Args:
        registry: all skills.
        grants: who may read what; None where everybody reads everything. That can change later, but not whether there
            are any.
    """

    def __init__(self, registry: Registry, grants: Grants | None = None) -> None:
        self.registry = registry
        self._grants = grants
        self._lock = threading.Lock()
        self._live: WeakValueDictionary[Permissions, Granted] = WeakValueDictionary()
        self._kept: dict[Permissions, Granted] = {}
        self._replaced: list[Callable[[Grants, Grants], None]] = []
        if grants is not None:
            registry.subscribe(self._note)

    @property
    def are_restricted(self) -> bool:
        """Whether there are grants, so that not everybody has the same."""
        return self._grants is not None

    def permissions(self, principal: Principal | None) -> Permissions | None:
        """What a principal may; None for everything that the options allow."""
        grants = self._grants
        return None if grants is None else grants.permissions(principal)

    def of(self, principal: Principal | None) -> SkillSet:
        """The skills that this principal has; None is who proved nothing."""
        grants = self._grants
        return self.registry if grants is None else self.left_by(grants.permissions(principal))

    def left_by(self, permissions: Permissions) -> Granted:
        """The skills that these permissions leave."""
        found = self._kept.get(permissions)
        if found is not None:
            return found
        with self._lock:
            found = self._live.get(permissions) or Granted(self.registry, permissions, self._weigh)
            if len(self._kept) >= _MOST_SETS:
                for each in self._by_use()[: _MOST_SETS // 8]:
                    del self._kept[each.permissions]
            self._live[permissions] = self._kept[permissions] = found
            return found

    def replace(self, grants: Sequence[Grant]) -> None:
        """Have these grants in force from now on.

        Raises:
            ValueError: there were none, and whoever has a view by now would lose it unawares.
        """
        before = self._grants
        if before is None:
            raise ValueError("grants replace grants")
        self._grants = now = Grants(grants, local=before.local)
        for each in self._replaced:
            each(before, now)

    def on_replaced(self, listener: Callable[[Grants, Grants], None]) -> None:
        """Have `listener` called with the grants before and those in force, in the thread that replaces them."""
        self._replaced.append(listener)

    def difference(self, before: Permissions, after: Permissions) -> Changes:
        """What whoever had the first and has the second now finds otherwise."""
        old, new = self.left_by(before).snapshot.skills, self.left_by(after).snapshot.skills
        return Changes(_without(old, new), _without(new, old))

    def _note(self, changes: Changes) -> None:
        with self._lock:
            live = list(self._live.values())
        for each in live:
            each.notify(changes)

    def _by_use(self) -> list[Granted]:
        """Those that are kept, the one that was asked for last at the end."""
        return sorted(self._kept.values(), key=attrgetter("asked_at"))

    def _weigh(self, made: Granted) -> None:
        """Free snapshots that were used longest ago, where all of them hold too many skills."""
        with self._lock:
            kept = [each for each in self._by_use() if each.weight]
        total = sum(each.weight for each in kept)
        for each in kept[:-_AT_LEAST]:
            if total <= _MOST_SKILLS:
                return
            if each is not made:
                total -= each.weight
                each.forget()


class BySkillSet(Generic[_V]):
    """What is made of sets of skills, each when it is first asked for. Any thread may use it.

    Args:
        make: makes it; what takes long is for later.
        most_skills: of all sets together; beyond that what was asked for longest ago goes.
        close: ends what goes.
    """

    def __init__(
        self, make: Callable[[SkillSet], _V], most_skills: int, close: Callable[[_V], object] = lambda _: None
    ) -> None:
        self._make = make
        self._most = most_skills
        self._close = close
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[SkillSet, _V, int]] = OrderedDict()
        """By the identity of the set, which is kept beside it."""
        self._total = 0

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, skill_set: SkillSet) -> _V:
        """What belongs to this set."""
        with self._lock:
            found = self._kept.get(id(skill_set))
            if found is not None:
                self._kept.move_to_end(id(skill_set))
                return found[1]
            weight = _EMPTY_SET + len(skill_set.snapshot.skills)
            going = list(self._over(weight))
            made = self._make(skill_set)
            self._kept[id(skill_set)] = skill_set, made, weight
        for each in going:
            self._close(each)
        return made

    def values(self) -> list[_V]:
        """All that is kept."""
        with self._lock:
            return [each for _, each, _ in self._kept.values()]

    def _over(self, weight: int) -> Iterator[_V]:
        self._total += weight
        while self._total > self._most and self._kept:
            _, (_, gone, size) = self._kept.popitem(last=False)
            self._total -= size
            yield gone


def _without(skills: Mapping[str, Skill], others: Mapping[str, Skill]) -> dict[str, Skill]:
    """Those that are not the same among the others."""
    return {path: each for path, each in skills.items() if not _is_same(others.get(path), each)}
