"""Site source: the skills that the index of a publisher names, brought into a folder skill by skill.

The folder is the same for as long as the site is, and a skill in it is replaced whole by a rename. A tree for each
revision would be linked together from the one before, which changes the ctime of every file and so makes the registry
read all of a site again of which one skill is different.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import Entry, IndexLimits, IndexRefusedError, ProofFailedError, SiteIndex
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files, UnpackLimits
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources import caching, records
from mcp_skills_server.sources.addresses import check_fetchable, shown
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.caching import LONGEST_S, UNSAID_S
from mcp_skills_server.sources.folder import FetchedFolder
from mcp_skills_server.sources.http import Downloader, HttpClient, Response
from mcp_skills_server.sources.reconcile import Bundle, Reconciler, Unit, check_names, fetch_units
from mcp_skills_server.sources.records import IndexRecord, read_index
from mcp_skills_server.sources.source import (
    LAST_RETRY_S,
    AbsentError,
    FetchReport,
    FetchSettings,
    Pace,
    Revision,
    SkillRefusal,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)

_ARCHIVE_OVERHEAD: Final = 4 << 20
"""Most bytes of an archive beyond its files: heads and padding of as many members as `unpack` takes."""
_SKILL_MD_BYTES: Final = 1 << 20
_LIKE_HTML: Final = (".html", ".htm", ".xhtml")
_REPOSITORY: Final = re.compile(r"https?://[^/?#]+/[^/?#]+/[^/?#]+/?")
"""An address as of a repository at a forge: owner and name."""
_SOONEST_S: Final = 60.0
"""Seconds at least between two requests for an index."""


class Site:
    """One site.

    Raises:
        UsageError: it is no address, or the cache cannot be written.
    """

    remote: bool = True
    pace: Pace = Pace(UNSAID_S, 30.0, LAST_RETRY_S)
    refresh_s: float | None = None

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self.origin = bare(given)
        self._given = given
        self._places = _index_urls(given)
        self._settings = settings.fetch
        # A pinned copy is a folder of its own: it is fetched once, and stays whatever becomes of the site.
        self._pinned = settings.pin is not None
        self._kept = CacheFolder(settings.cache, "sites", self.origin, given, settings.pin or "")
        self.place: Path = self._kept.path
        FetchedFolder.recover(self.place)

    async def resolve(self, *, anew: bool = False) -> Revision:
        """Return the index, or the copy of it while that is fresh.

        Raises:
            SourceError: there is no index that can be used.
        """
        settings = replace(self._settings, revalidate=anew and not self._pinned)
        known = read_index(self.place, self._places[0])
        if known is not None and self._pinned:
            known = replace(known, asked_at=records.epoch_s(), fresh_s=LONGEST_S)
        try:
            async with _downloader(self._places, settings) as downloader:
                found = await _find_index(self._given, self._places, settings, downloader, known)
        except IndexRefusedError as error:
            raise UnacceptableError(str(error)) from None
        return Revision(found.digest, found.next_check_s, found)

    async def bring(self, revision: Revision) -> FetchReport:
        """Bring its folder up to the index.

        Raises:
            RollbackError: the index is one that the site had before, and another one since.
            UsageError: the folder cannot be written, or another process fetches into it.
        """
        known = read_index(self.place, self._places[0])
        with FetchedFolder.opened(self.place) as opened:
            async with _downloader(self._places, self._settings) as downloader:
                report = await _bring(opened, downloader, revision.content, self._settings, is_cache=True)
        before = _digest(known) if known is not None and known.body else ""
        return replace(report, before=before, is_complete=not report.refused)


async def look(url: str, settings: FetchSettings | None = None) -> tuple[str, SiteIndex]:
    """Download the index of a site and return it with its URL. Nothing is written.

    Raises:
        UsageError: it is no URL.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
    """
    # WK-50
    places, settings = _index_urls(url), settings or FetchSettings()
    async with _downloader(places, settings) as downloader:
        found = await _find_index(url, places, settings, downloader, None)
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
    places, settings = _index_urls(url), settings or FetchSettings()
    with FetchedFolder.opened(directory) as opened:
        async with _downloader(places, settings) as downloader:
            known = await to_thread.run_sync(read_index, directory, places[0])
            found = await _find_index(url, places, settings, downloader, known)
            return await _bring(opened, downloader, found, settings, progress)


# The index


@dataclass(frozen=True, slots=True)
class _FoundIndex:
    """An index and what is to be remembered of it."""

    record: IndexRecord
    index: SiteIndex

    @property
    def digest(self) -> str:
        return _digest(self.record)

    @property
    def next_check_s(self) -> float:
        """The seconds until the next look, by the cache headers."""
        left = self.record.left_s(records.epoch_s())
        return max(left, _SOONEST_S) if left > 0 else UNSAID_S


def _digest(record: IndexRecord) -> str:
    """Return the digest of an index, with the address that its URLs are relative to."""
    return hashlib.sha256(f"{record.url}\n".encode() + record.raw).hexdigest()


def _index_urls(url: str) -> list[str]:
    """Return the URLs where the index of a site may be, in the order to try. The first is its key."""
    check_fetchable(url)
    return wellknown.candidates(url)


@asynccontextmanager
async def _downloader(places: Sequence[str], settings: FetchSettings) -> AsyncGenerator[Downloader]:
    """Open a downloader for the index at one of these places, and for what it names."""
    async with HttpClient(settings.bounds, connections=settings.connections) as http:
        yield Downloader(http, places[0], settings.trust)


async def _find_index(
    url: str,
    places: Sequence[str],
    settings: FetchSettings,
    downloader: Downloader,
    known: IndexRecord | None,
) -> _FoundIndex:
    """Return the index of the site at `url`: `known` while that is fresh, else from `_index_urls(url)`."""
    # WK-40, WK-41
    limits = IndexLimits(skills=settings.limits.skills)
    record = known
    try:
        with anyio.fail_after(settings.limits.total_s):
            if record is None or not record.body or settings.revalidate or not record.left_s(records.epoch_s()):
                record = await _ask(url, places, limits, downloader, known)
            decode = partial(wellknown.decode, record.raw, record.url, limits)
            return _FoundIndex(record, await to_thread.run_sync(decode))
    except TimeoutError:
        raise UnreachableError(f"it took longer than {settings.limits.total_s:g} s") from None


async def _ask(
    url: str, places: Sequence[str], limits: IndexLimits, downloader: Downloader, known: IndexRecord | None
) -> IndexRecord:
    """Ask for the index at each of these places until there is one."""
    missing: list[AbsentError] = []
    for place in places:
        held = known if known is not None and known.asked == place and known.body else None
        validators = held.validators if held else None
        try:
            answer = await downloader.get(place, limits.bytes, accept="application/json", validators=validators)
            if answer.is_html:
                raise AbsentError(f"{shown(place)} is a web page (HTML) and no index")
        except AbsentError as error:
            missing.append(error)
            continue
        return _record(places[0], url, place, answer, held)
    if len(missing) == 1:
        raise missing[0]
    hint = f"; if this is a repository, write git+{shown(url)}" if _REPOSITORY.fullmatch(url) else ""
    raise AbsentError(f"no index of skills: {'; '.join(map(str, missing))}{hint}")


def _record(key: str, given: str, place: str, answer: Response, held: IndexRecord | None) -> IndexRecord:
    headers, now = answer.headers, records.epoch_s()
    fresh = caching.fresh_s(headers, now) or 0.0
    if answer.status == 304 and held is not None:
        renewed = _validators(answer) or held.validators
        return replace(held, given=given, validators=renewed, asked_at=now, fresh_s=fresh)
    if answer.encoding:
        raise IndexRefusedError(f"the index came compressed ({answer.encoding}), which was not asked for")
    body = answer.body.decode("utf-8", "surrogateescape")
    return IndexRecord(key, given, place, answer.url, body, _validators(answer), now, fresh)


def _validators(answer: Response) -> dict[str, str]:
    if not caching.may_store(answer.headers):
        return {}
    found = {
        "If-None-Match": answer.headers.get("etag", ""),
        "If-Modified-Since": answer.headers.get("last-modified", ""),
    }
    return {name: value for name, value in found.items() if value and value.isascii() and value.isprintable()}


# The skills


async def _bring(
    opened: FetchedFolder,
    downloader: Downloader,
    found: _FoundIndex,
    settings: FetchSettings,
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
        record = await to_thread.run_sync(_entered, opened, record, settings)
    units = [
        Unit(entry.digest, entry.name, (entry.name,), url=entry.url or entry.files[SKILL_MD], item=entry)
        for entry in index.entries
        if wanted is None or entry.name in wanted
    ]
    most = settings.limits.skill_bytes
    limits = UnpackLimits(bytes=most, file=min(UnpackLimits().file, most))

    async def fetch(unit: Unit) -> Callable[[], Bundle]:
        check_names([f"{unit.label}/{SKILL_MD}"])
        prove = await _download(unit.item, downloader, limits)

        def proved() -> Bundle:
            files, warning = prove()
            if warning:
                reconciler.warnings.append(f"{unit.label}: {warning}")
            return Bundle({unit.label: files})

        return proved

    await fetch_units(reconciler, units, fetch)
    # An index that promised what is not there may be older than its artifacts: ask anew next time.
    is_in_doubt = any(each.fault == "publisher" for each in reconciler.refusals)
    fresh_s = 0.0 if is_in_doubt else record.fresh_s
    body = record.body if record.validators or record.left_s(records.epoch_s()) else ""
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
    next_check_s = UNSAID_S if reconciler.refusals else found.next_check_s
    return replace(report, version=index.version, next_check_s=next_check_s, bytes=downloader.http.bytes)


def _entered(opened: FetchedFolder, record: IndexRecord, settings: FetchSettings) -> IndexRecord:
    """Enter an index into the history of its place, before anything of it is fetched: a kill must not undo that."""
    known = read_index(opened.directory, record.source)
    record = record.after(known, allow_rollback=settings.allow_rollback)
    wanted = records.wanted_since(None, settings.wanted)
    before = known or IndexRecord(record.source, record.given, wanted=wanted)
    if record.history != before.history:
        with suppress(OSError):  # the record of the whole fetch will say it
            opened.put_index(replace(before, history=record.history))
    return record


async def _download(
    entry: Entry, downloader: Downloader, limits: UnpackLimits
) -> Callable[[], tuple[Files, str | None]]:
    """Download the skill of an entry.

    Returns:
        What proves and unpacks it; it blocks, and returns the files with how the index describes them otherwise. It
        raises ProofFailedError, ArchiveRefusedError and UnacceptableError.
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
