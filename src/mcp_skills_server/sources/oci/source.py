"""OCI source: an artifact of a registry, copied into a folder of the cache, skill by skill.

The folder stays the same for as long as the name does, for the reason that `site` gives. An artifact that the folder
has whole is not asked for again. While nothing is new, a look costs one HEAD and a stat of each file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from mcp_skills_server import __version__
from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.faults import ContentRefusedError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.http import HttpClient
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.reader import ArtifactReader
from mcp_skills_server.sources.oci.reference import is_digest, parse_reference
from mcp_skills_server.sources.reconcile import Bundle, Reconciler, Unit, fetch_units, held
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import FetchReport, Pace, Revision

_T = TypeVar("_T")
_PINNED_S: Final = 3600.0
"""Between two looks at what a digest names: it never changes, and only what is on the disk could."""


class Oci:
    """One artifact, or what a tag names.

    Args:
        given: its name.
        settings: where its copy is, and how it is fetched.

    Raises:
        UsageError: it is no name, or the cache cannot be written.
    """

    remote: bool = True

    def __init__(self, given: str, settings: SourceSettings) -> None:
        # The cache is ours: what was changed in it is put right, what the manifest no longer has is gone.
        self._settings = replace(settings.fetch, force=True, prune=True, wanted=None)
        self._default_refresh_s = settings.refresh_s
        self.refresh_s: float | None = settings.refresh_s
        self._hidden = settings.hidden
        named = parse_reference(given, http=settings.fetch.trust.http)
        if settings.pin is not None and not is_digest(settings.pin):
            raise UsageError(f"{named}: {quoted(settings.pin)} is not the digest of a manifest; lock it again")
        self._reference = named if settings.pin is None else replace(named, digest=settings.pin)
        self.origin = str(named)
        self._access = Access(self._reference)
        # What decides beside the digest what is taken: what was brought for other ones is none of it.
        self._asked = f"{__version__} {self._settings.limits.skill_bytes} {self._hidden}"
        self._kept = CacheFolder(settings.cache, "oci", str(self._reference), str(settings.hidden))
        self._folder = self._kept.path
        self.place: Path = self._folder
        FetchedFolder.recover(self._folder)

    @property
    def pace(self) -> Pace:
        """How often to poll."""
        return Pace.every(self.refresh_s or self._default_refresh_s)

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always asked
        """Resolve the name to the digest of its manifest, by one HEAD unless it has a digest.

        Raises:
            SourceError: it cannot be had now.
        """
        if self._reference.digest is not None:
            return Revision(self._reference.digest, _PINNED_S)
        async with self._client() as client:
            digest = await client.digest()
            if digest is None:  # a registry that says it only of what it sends
                digest, _ = await client.manifest(self._reference.wanted)
        return Revision(digest, self.pace.check_s)

    async def bring(self, revision: Revision) -> FetchReport:
        """Bring its folder up to the manifest.

        Raises:
            SourceError: nothing of it can be had, or is taken.
            UsageError: the folder cannot be written, or another process fetches into it.
        """
        whole = f"{revision.digest} {self._asked}"
        report = await to_thread.run_sync(held, self._folder, str(self._reference), whole)
        if report is not None:
            return report
        with FetchedFolder.opened(self._folder) as opened:
            reconciler = await to_thread.run_sync(
                partial(Reconciler, opened, str(self._reference), self._settings, is_cache=True)
            )
            report = await self._bring(reconciler, revision.digest, whole)
        return replace(report, before=reconciler.before.partition(" ")[0])

    async def _bring(self, reconciler: Reconciler, digest: str, whole: str) -> FetchReport:
        deadline = anyio.current_time() + self._settings.limits.total_s
        async with self._client() as client:
            reader = ArtifactReader(client, self._reference, self._settings, hidden=self._hidden)
            artifacts = await _or_unreachable(reader.wanted(digest))
            units = [
                Unit(f"{each.digest} {self._asked}", each.label, is_named=bool(each.name), item=each)
                for each in artifacts
            ]

            async def fetch(unit: Unit) -> Callable[[], Bundle]:
                found = await _or_unreachable(reader.contents(unit.item))
                warnings = tuple(f"{unit.label}: {line}" for line in found.warnings)
                return lambda: Bundle(found.skills, found.refused, warnings)

            missing = await to_thread.run_sync(reconciler.plan, units)
            await fetch_units(reconciler, missing, fetch, self._settings, deadline)
        if reconciler.failure is not None:
            error = ContentRefusedError if reconciler.failure.fault == "publisher" else UnreachableError
            raise error(reconciler.failure.reason)
        source = str(self._reference)
        index = IndexRecord(source, source, source, source, "", revision=whole)
        return await to_thread.run_sync(reconciler.finish, index)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[RegistryClient]:
        fetch = self._settings
        async with HttpClient(fetch.bounds, connections=fetch.connections) as http:
            yield RegistryClient(http, self._reference, self._access, fetch.trust)


async def _or_unreachable(asked: Awaitable[_T]) -> _T:
    """Return what was asked for; what a permission or an allowed address may change counts as unreachable."""
    try:
        return await asked
    except ContentRefusedError:
        raise
    except UnacceptableError as error:
        raise UnreachableError(str(error)) from None
