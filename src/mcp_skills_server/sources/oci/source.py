"""OCI source: an artifact of a registry, copied into a folder of the cache, skill by skill.

The folder stays the same for as long as the name does, for the reason that `site` gives. While nothing is new, a look
costs one HEAD and a stat of each file; a start costs one HEAD and the proof of what an earlier process left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.format.ignored import OURS
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.http import HttpClient
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.pull import bring
from mcp_skills_server.sources.oci.reader import ContentRefusedError
from mcp_skills_server.sources.oci.reference import is_digest, parse_reference
from mcp_skills_server.sources.report import sorted_out
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import LAST_RETRY_S, NO_DIFFERENCE, Pace, Revision, SourceTree, TreeChanges
from mcp_skills_server.sources.store import Store

_FIRST_RETRY_S: Final = 30.0
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

    trusted: bool = False
    remote: bool = True

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self._settings = settings.fetch
        self._default_refresh_s = settings.refresh_s
        self.refresh_s: float | None = settings.refresh_s
        self._hidden = settings.hidden
        named = parse_reference(given, http=settings.fetch.trust.http)
        if settings.pin is not None and not is_digest(settings.pin):
            raise UsageError(f"{named}: {quoted(settings.pin)} is not the digest of a manifest; lock it again")
        self._reference = named if settings.pin is None else replace(named, digest=settings.pin)
        self.origin = str(named)
        self._access = Access(self._reference)
        self._refusals: dict[str, ContentRefusedError] = {}
        self._brought: tuple[str, int, SourceTree] | None = None
        """The revision, the signature of the folder and what was said of it, when it was last brought."""
        self._kept = CacheFolder(settings.cache, "oci", str(self._reference), str(settings.hidden))
        self._folder = self._kept.path
        self.place: Path | None = self._folder
        FetchedFolder.recover(self._folder)

    @property
    def pace(self) -> Pace:
        """How often to poll."""
        every = self.refresh_s or self._default_refresh_s
        return Pace(every, min(every, _FIRST_RETRY_S), max(every, LAST_RETRY_S))

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

    async def materialise(self, revision: Revision, store: Store) -> SourceTree:  # noqa: ARG002, see above
        """Bring its folder up to the manifest.

        Raises:
            SourceError: nothing of it can be had, or is taken.
            UsageError: the folder cannot be written, or another process fetches into it.
        """
        if self._brought is not None and self._brought[0] == revision.digest:
            _, signature, tree = self._brought
            if signature == await to_thread.run_sync(_signature, self._folder):
                return replace(tree, difference=NO_DIFFERENCE)
        self._brought = None
        async with self._client() as client:
            pulled = await bring(
                client,
                self._reference,
                revision.digest,
                self._folder,
                self._settings,
                hidden=self._hidden,
                refusals=self._refusals,
            )
        difference = TreeChanges(pulled.before, pulled.added, pulled.updated, pulled.pruned)
        # What the publisher is at fault for stays so for as long as the digest is the same.
        complete = all(each.fault == "publisher" for each in pulled.refused)
        lines, problems = sorted_out(pulled.refused, self.origin)
        tree = SourceTree(self._folder, difference, (*pulled.warnings, *lines), complete, problems)
        if complete:
            self._brought = revision.digest, await to_thread.run_sync(_signature, self._folder), tree
        return tree

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[RegistryClient]:
        fetch = self._settings
        async with HttpClient(fetch.bounds, connections=fetch.connections) as http:
            yield RegistryClient(http, self._reference, self._access, fetch.trust)


def _signature(top: Path) -> int:
    """Return a stat signature over all files and directories of the folder, but for ours."""
    total, todo = 0, [os.fspath(top)]
    while todo:
        place = todo.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name == OURS:
                        continue
                    seen = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(seen.st_mode):
                        todo.append(entry.path)
                    known = (entry.path, seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
                    total ^= hash(known)  # in any order: that of a folder is nobody's promise
        except OSError:
            total ^= hash(place)
    return total
