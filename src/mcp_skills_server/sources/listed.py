"""Base of sources that list their skills with fingerprints and read one skill at a time.

A library user's own source subclasses this, with a row for `open_registry(kinds=...)`;
examples/database_source.py serves skills from a database.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.reconcile import fetching
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    Plan,
    Revision,
    Source,
    SourceSettings,
    Unit,
    UnitContents,
    check_skill,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A skill listed by a source, under the name of its folder.

    `fingerprint` changes with any part of the skill, such as a digest; `item` is for `read`.
    """

    name: str
    fingerprint: str
    item: Any = None


class ListedSource(Source):
    """Source that is copied skill by skill; a subclass implements `entries` and `read`.

    Both raise a `SourceError` if the source is unavailable, and `read` a `ContentRefusedError` for
    a skill that must not be served. `entries` may set `warnings`, one line each.

    Args:
        origin: the address for display; by default `given`, which then must hold no secret.
    """

    def __init__(self, given: str, settings: SourceSettings, *, origin: str = "") -> None:
        self.warnings: tuple[str, ...] = ()
        # of what is not for display only a hash is in the folder's name
        asked = given if origin else ""
        folder = settings.output or CacheFolder(settings.cache, "listed", origin or given, asked)
        super().__init__(origin or given, folder, settings)

    async def entries(self) -> Sequence[Entry]:
        """Return the skills that the source has now."""
        raise NotImplementedError

    async def read(self, entry: Entry) -> Files:
        """Return the files of a skill: (bytes, executable) by path in the skill."""
        raise NotImplementedError

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Callable[[Entry], Awaitable[Files]]]:
        """Yield `read`; a source that keeps one connection for several reads overrides this."""
        yield self.read

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always asked
        """Return the digest of the listing."""
        entries = await self.entries()
        fingerprints = sorted((entry.name, entry.fingerprint) for entry in entries)
        digest = hashlib.sha256(json.dumps(fingerprints).encode()).hexdigest()
        return Revision(digest, self.check_s, (entries, self.warnings))

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:  # noqa: ARG002
        """Plan the listed skills."""
        entries, warnings = revision.content
        units = [
            Unit(entry.fingerprint, entry.name, (entry.name,), item=entry) for entry in entries
        ]
        index = IndexRecord(self.key, self.origin, revision=revision.digest, warnings=warnings)
        async with self.reading() as read:

            async def fetch(unit: Unit) -> UnitContents:
                files = await read(unit.item)
                check_skill(unit.label, files, self.settings.fetch.limits.skill)
                return UnitContents({unit.label: files})

            yield Plan(units, fetching(fetch), index, is_one=True)
