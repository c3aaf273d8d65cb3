"""How skills look to one caller: entries of one dialect, or of several as one, each written once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from weakref import WeakKeyDictionary, ref

from mcp_skills_server.catalog.view import View, is_hashed
from mcp_skills_server.dialects.dialect import Dialect, Entry, Subject
from mcp_skills_server.dialects.table import union
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.server.fragments import BySkill, Fragment
from mcp_skills_server.server.requests import Caller, Settings


class _Cache:
    """The entries that were written in some dialects.

    Attributes:
        by_skill: the last one of a skill.
        by_snapshot: those that hold in one snapshot, so that nothing need be compared while it is the current one.
    """

    def __init__(self) -> None:
        self.by_skill = BySkill()
        self.by_snapshot: WeakKeyDictionary[Snapshot, dict[Skill, Fragment]] = WeakKeyDictionary()
        self._last: tuple[Callable[[], Snapshot | None], dict[Skill, Fragment]] = (lambda: None), {}

    def of(self, snapshot: Snapshot) -> dict[Skill, Fragment]:
        """Those that hold in this snapshot."""
        last, found = self._last
        if last() is snapshot:  # as nearly always; to look it up takes ten times as long
            return found
        found = self.by_snapshot.get(snapshot)
        if found is None:
            found = self.by_snapshot[snapshot] = {}
        self._last = ref(snapshot), found
        return found


@cache
def _cache_of(_dialects: tuple[Dialect, ...], _least: Standing) -> _Cache:
    return _Cache()


class Entries:
    """The entries of one request.

    Args:
        view: what the request sees.
        settings: what the operator chose.
        caller: who asks; its extensions choose the dialects.

    Attributes:
        dialects: those that the caller is answered in.
    """

    def __init__(self, view: View, settings: Settings, caller: Caller) -> None:
        self._view = view
        self._caller = caller
        self._least = settings.least
        self.dialects = settings.spoken.for_client(caller.extensions)
        self._cache = _cache_of(self.dialects, settings.least)
        self._holding = self._cache.of(view.snapshot)

    def kept(self, skill: Skill) -> Fragment | None:
        """The entry of a skill if it was written before and still holds."""
        return self._holding.get(skill)

    async def prepare(self, skills: Sequence[Skill]) -> None:
        """Have ready in one go what the entries of several skills need of the disk."""
        if any(dialect.wants_digests for dialect in self.dialects):
            await self._view.hash_files([each for each in skills if each not in self._holding and not is_hashed(each)])

    async def entry(self, skill: Skill) -> Fragment:
        """The entry of a skill; on the last try that of its last whole state, where a file of it is being rewritten.

        Raises:
            StaleFileError: a file changed since its scan, or cannot be read.
        """
        try:
            return self._holding.get(skill) or await self._entry(skill)
        except StaleFileError as stale:
            return await self._entry(self._view.last_whole(skill, stale))

    async def _entry(self, skill: Skill) -> Fragment:
        varies = tuple([each.varies_with(skill, self._view.snapshot, self._least) for each in self.dialects])
        if None in varies:
            return Fragment(await self._written(skill, varies))
        kept = self._cache.by_skill.get(skill, varies)
        if kept is None:
            kept = self._cache.by_skill.put(skill, varies, await self._written(skill, varies))
        self._holding[skill] = kept
        return kept

    async def _written(self, skill: Skill, varies: tuple[Hashable | None, ...]) -> Entry:
        served = await self._caller.served(self._view) if None in varies else Served()
        parts: list[Entry] = []
        for dialect in self.dialects:
            digests = await self._view.digests(skill) if dialect.wants_digests else {}
            parts.append(dialect.entry(Subject(skill, self._view.snapshot, self._least, served, digests)))
        return parts[0] if len(parts) == 1 else union(parts)
