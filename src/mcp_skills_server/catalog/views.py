"""The skills of each principal: a bounded cache of the sets in use, and of what is made of each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from mcp_skills_server.access.grants import Grant, Grants, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.granted import Granted, without_same
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.model import Changes

_MOST_SETS: Final = 4096
"""Sets of grants that are kept although they are unused now; an unused one is a few hundred bytes."""
_MOST_SKILLS: Final = 400_000
"""Skills that all filtered snapshots hold together, about 150 bytes each."""
_AT_LEAST: Final = 16
"""Snapshots that are kept however large they are."""
_EMPTY_SET: Final = 50
"""The weight, in skills, of something that is made of no skill."""
_V = TypeVar("_V")


class Views:
    """The skills of a registry that each principal has. Any thread may use it.

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
        """Return what a principal may; None for everything that the options allow."""
        grants = self._grants
        return None if grants is None else grants.permissions(principal)

    def may_admin(self, principal: Principal | None) -> bool:
        """Tell whether a principal may see what is for the operator alone."""
        permissions = self.permissions(principal)
        return permissions is None or permissions.may_admin

    def of(self, principal: Principal | None) -> SkillSet:
        """Return the skills that this principal has; None is who proved nothing."""
        grants = self._grants
        return self.registry if grants is None else self.left_by(grants.permissions(principal))

    def left_by(self, permissions: Permissions) -> Granted:
        """Return the skills that these permissions leave."""
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
            ValueError: there were none, and principals with a view would lose it unawares.
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
        """Return the difference for a principal who had the first permissions and has the second now."""
        old, new = self.left_by(before).snapshot.skills, self.left_by(after).snapshot.skills
        return Changes(without_same(old, new), without_same(new, old))

    def _note(self, changes: Changes) -> None:
        with self._lock:
            live = list(self._live.values())
        for each in live:
            each.notify(changes)

    def _by_use(self) -> list[Granted]:
        """Return those that are kept, the one that was asked for last at the end."""
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
    """A cache of objects made of sets of skills, each when it is first asked for. Any thread may use it.

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
        """Return what belongs to this set."""
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

    def _over(self, weight: int) -> Iterator[_V]:
        self._total += weight
        while self._total > self._most and self._kept:
            _, (_, gone, size) = self._kept.popitem(last=False)
            self._total -= size
            yield gone
