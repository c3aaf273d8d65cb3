"""Site source: the skills that the index of a publisher names, brought into a folder skill by skill.

The folder is the same for as long as the site is, and a skill in it is replaced whole by a rename. A tree for each
revision would be linked together from the one before, which changes the ctime of every file and so makes the registry
read all of a site again of which one skill is different.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import Entry, IndexRefusedError, ProofFailedError, SiteIndex
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files, UnpackLimits
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.caching import LONGEST_S, UNSAID_S
from mcp_skills_server.sources.download import Downloader
from mcp_skills_server.sources.faults import UnacceptableError
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.http import Response
from mcp_skills_server.sources.index import FoundIndex, downloader_for, find_index, index_digest, index_urls
from mcp_skills_server.sources.reconcile import Bundle, Reconciler, Unit, check_names, fetch_units
from mcp_skills_server.sources.records import epoch_s, read_index
from mcp_skills_server.sources.settings import FetchSettings, SourceSettings
from mcp_skills_server.sources.source import LAST_RETRY_S, FetchReport, Pace, Revision, SkillRefusal
from mcp_skills_server.sources.urls import shown

_ARCHIVE_OVERHEAD: Final = 4 << 20
"""What an archive may have beyond its files: heads and padding of as many members as `unpack` takes."""
_SKILL_MD_BYTES: Final = 1 << 20
_LIKE_HTML: Final = (".html", ".htm", ".xhtml")


class Site:
    """One site.

    Args:
        given: its address.
        settings: where its copy is, and how it is fetched.

    Raises:
        UsageError: it is no address, or the cache cannot be written.
    """

    remote: bool = True
    pace: Pace = Pace(UNSAID_S, 30.0, LAST_RETRY_S)
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
        self.place: Path = self._folder
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

    async def bring(self, revision: Revision) -> FetchReport:
        """Bring its folder up to the index.

        Raises:
            RollbackError: the index is one that the site had before, and another one since.
            UsageError: the folder cannot be written, or another process fetches into it.
        """
        found: FoundIndex = revision.content
        known = read_index(self._folder, self._places[0])
        with FetchedFolder.opened(self._folder) as opened:
            async with downloader_for(self._places, self._settings) as downloader:
                deadline = anyio.current_time() + self._settings.limits.total_s
                report = await _bring(opened, downloader, found, self._settings, deadline, is_cache=True)
        before = index_digest(known) if known is not None and known.body else ""
        return replace(report, before=before, is_complete=not report.refused)


async def look(url: str, settings: FetchSettings | None = None) -> tuple[str, SiteIndex]:
    """Download the index of a site and return it with its URL. Nothing is written.

    Raises:
        UsageError: it is no URL.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
    """
    # WK-50
    places, settings = index_urls(url), settings or FetchSettings()
    async with downloader_for(places, settings) as downloader:
        found = await find_index(url, places, settings, downloader, None)
        return found.record.url, found.index


async def refresh(
    url: str,
    directory: str | PathLike[str],
    settings: FetchSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FetchReport:
    """Bring the folder up to what the index at `url` offers.

    `progress` is called with how many skills of how many are done. Cancelling it leaves a folder that is whole, and so
    does every error.

    Raises:
        UsageError: it is no URL, or the folder cannot be used.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
        RollbackError: the index is one that was there before, and another one since.
    """
    places, settings = index_urls(url), settings or FetchSettings()
    with FetchedFolder.opened(directory) as opened:
        async with downloader_for(places, settings) as downloader:
            known = await to_thread.run_sync(opened.index, places[0])
            deadline = anyio.current_time() + settings.limits.total_s
            found = await find_index(url, places, settings, downloader, known)
            return await _bring(opened, downloader, found, settings, deadline, progress)


async def _bring(  # noqa: PLR0917, called twice
    opened: FetchedFolder,
    downloader: Downloader,
    found: FoundIndex,
    settings: FetchSettings,
    deadline: float,
    progress: Callable[[int, int], None] | None = None,
    *,
    is_cache: bool = False,
) -> FetchReport:
    """Bring the folder up to what this index offers."""
    index, record, wanted = found.index, found.record, settings.wanted
    reconciler = await to_thread.run_sync(
        partial(Reconciler, opened, record.source, settings, progress, is_cache=is_cache)
    )
    if index.version is not None:
        entered = partial(opened.enter, record, allow_rollback=settings.allow_rollback)
        reconciler.warnings += await to_thread.run_sync(entered)
    units = [
        Unit(entry.digest, entry.name, (entry.name,), url=entry.url or entry.files[SKILL_MD], item=entry)
        for entry in index.entries
        if wanted is None or entry.name in wanted
    ]
    most = settings.limits.skill_bytes
    limits = UnpackLimits(bytes=most, file=min(UnpackLimits().file, most))
    missing = await to_thread.run_sync(reconciler.plan, units)

    async def fetch(unit: Unit) -> Callable[[], Bundle]:
        check_names([f"{unit.label}/{SKILL_MD}"])
        prove = await _download(unit.item, downloader, limits)

        def proved() -> Bundle:
            files, warning = prove()
            if warning:
                reconciler.warnings.append(f"{unit.label}: {warning}")
            return Bundle({unit.label: files})

        return proved

    await fetch_units(reconciler, missing, fetch, settings, deadline)
    # An index that promised what is not there may be older than its artifacts: ask anew next time.
    fresh_s = 0.0 if reconciler.is_in_doubt else record.fresh_s
    body = record.body if record.validators or record.left_s(epoch_s()) else ""
    refused: list[SkillRefusal] = []
    warnings = [*index.warnings]
    for each in index.unusable:
        if wanted is None or each.name in wanted:
            if each.broken:
                refused.append(SkillRefusal(each.name or f"entry {each.position}", each.reason, "publisher"))
            else:
                warnings.append(f"{each}, and so it is passed over")
    listed = {entry.name for entry in index.entries} | {each.name for each in index.unusable}
    kept = replace(record, body=body, fresh_s=fresh_s, warnings=tuple(warnings))
    report = await to_thread.run_sync(reconciler.finish, kept, listed if index.version is not None else None, refused)
    next_check_s = UNSAID_S if reconciler.has_refused else found.next_check_s
    return replace(report, version=index.version, next_check_s=next_check_s, bytes=downloader.http.bytes)


async def _download(
    entry: Entry, downloader: Downloader, limits: UnpackLimits
) -> Callable[[], tuple[Files, str | None]]:
    """Download the skill of an entry.

    Returns:
        What proves and unpacks it; it blocks, and returns the files with how the index describes them otherwise. It
        raises ProofFailedError, ArchiveRefusedError and UnacceptableError.

    Raises:
        UnacceptableError, UnreachableError: it cannot be had.
    """
    if entry.kind is None:
        return partial(_checked, entry, await _files(entry, downloader, limits))
    most = _SKILL_MD_BYTES if entry.kind == "skill-md" else limits.bytes + _ARCHIVE_OVERHEAD
    answer = await downloader.get(entry.url, most)
    return lambda: _checked(entry, _unpacked(entry, answer, limits))


def _unpacked(entry: Entry, answer: Response, limits: UnpackLimits) -> Files:
    # WK-27, WK-48: the digest is compared before anything is unpacked.
    try:
        wellknown.prove(answer.body, entry.digest)
    except ProofFailedError as error:
        if answer.is_html:
            raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML) and not the skill") from None
        if answer.encoding:
            raise ProofFailedError(f"{error}; it came with Content-Encoding {answer.encoding}") from None
        raise
    return archive.unpack(answer.body, limits) if entry.kind == "archive" else {SKILL_MD: (answer.body, False)}


async def _files(entry: Entry, downloader: Downloader, limits: UnpackLimits) -> Files:
    """Download the files of a skill of discovery 0.1.0, which has no digests."""
    # WK1-14
    check_names(entry.files)
    files: dict[str, tuple[bytes, bool]] = {}
    left = limits.bytes
    for path, url in entry.files.items():
        answer = await downloader.get(url, _SKILL_MD_BYTES if path == SKILL_MD else min(left, limits.file))
        if answer.is_html and not path.lower().endswith(_LIKE_HTML):
            raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML) and not the file")
        if answer.encoding:
            raise UnacceptableError(f"{shown(answer.url)} came compressed ({answer.encoding}), which was not asked for")
        left -= len(answer.body)
        if left < 0:
            raise UnacceptableError(f"it has more than {limits.bytes} bytes")
        files[path] = (answer.body, False)
    return files


def _checked(entry: Entry, files: Files) -> tuple[Files, str | None]:
    refusal, warning = wellknown.judge_unpacked(entry, files)
    if refusal:
        raise ProofFailedError(refusal)
    check_names(files)
    return files, warning
