"""Site source: a publisher's skills, copied into a folder of the cache, skill by skill.

The folder is the same for as long as the site is, and a skill in it is replaced whole by a rename. A tree for each
revision would be linked together from the one before, which changes the ctime of every file and so makes the registry
read all of a site again of which one skill is different.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mcp_skills_server.dialects.wellknown import IndexRefusedError
from mcp_skills_server.format.uris import bare
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.caching import LONGEST_S, UNSAID_S
from mcp_skills_server.sources.faults import UnacceptableError
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.index import FoundIndex, downloader_for, find_index, index_digest, index_urls
from mcp_skills_server.sources.records import epoch_s, read_index
from mcp_skills_server.sources.refresh import bring
from mcp_skills_server.sources.report import sorted_out
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import LAST_RETRY_S, Pace, Revision, SourceTree, TreeChanges
from mcp_skills_server.sources.store import Store


class Site:
    """One site.

    Args:
        given: its address.
        settings: where its copy is, and how it is fetched.

    Raises:
        UsageError: it is no address, or the cache cannot be written.
    """

    trusted: bool = False
    remote: bool = True
    pace: Pace | None = Pace(UNSAID_S, 30.0, LAST_RETRY_S)
    refresh_s: float | None = None

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self.origin = bare(given)
        self._given = given
        self._places = index_urls(given)
        # The cache is ours: what was changed in it is put right, what the index no longer has is gone.
        self._settings = replace(settings.fetch, force=True, prune=True)
        # A pinned copy is a folder of its own: it is fetched once, and stays whatever becomes of the site.
        self._pinned = settings.pin is not None
        self._kept = CacheFolder(settings.cache, "sites", self.origin, given, settings.pin or "")
        self._folder = self._kept.path
        self.place: Path | None = self._folder
        FetchedFolder.recover(self._folder)

    async def resolve(self, *, anew: bool = False) -> Revision:
        """Return the index, or the copy of it while that is fresh.

        Raises:
            SourceError: there is no index that can be used.
        """
        settings = replace(self._settings, revalidate=anew and not self._pinned)
        known = read_index(self._folder, self._places[0])
        if known is not None and self._pinned:
            known = replace(known, asked_at=epoch_s(), fresh_s=LONGEST_S)
        try:
            async with downloader_for(self._places, settings) as downloader:
                found = await find_index(self._given, self._places, settings, downloader, known)
        except IndexRefusedError as error:
            raise UnacceptableError(str(error)) from None
        return Revision(found.digest, found.next_check_s, found)

    async def materialise(self, revision: Revision, store: Store) -> SourceTree:  # noqa: ARG002, see above
        """Bring its folder up to the index.

        Raises:
            RollbackError: the index is one that the site had before, and another one since.
            UsageError: the folder cannot be written, or another process fetches into it.
        """
        found: FoundIndex = revision.content
        known = read_index(self._folder, self._places[0])
        report = await bring(found, self._folder, self._settings)
        before = index_digest(known) if known is not None and known.body else ""
        difference = TreeChanges(before, report.added, report.updated, report.pruned)
        lines, problems = sorted_out(report.refused, self.origin)
        return SourceTree(self._folder, difference, (*report.warnings, *lines), not report.refused, problems)
