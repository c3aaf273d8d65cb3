"""Site source: copies the skills in a publisher's index into one folder, skill by skill.

The folder lasts as long as the site. With one for each revision the registry would read a whole
site again for one changed skill.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import (
    MAX_INDEX_BYTES,
    DigestMismatchError,
    IndexRefusedError,
    SiteEntry,
    SiteIndex,
)
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files, UnpackLimits
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.addresses import check_fetchable, shown
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.http import MAX_S, UNSAID_S, Downloader, Response, fresh_s, may_store
from mcp_skills_server.sources.reconcile import fetching, reconcile
from mcp_skills_server.sources.records import IndexRecord, read_index
from mcp_skills_server.sources.source import (
    AbsentError,
    FetchReport,
    FetchSettings,
    Plan,
    Revision,
    RollbackError,
    SkillRefusal,
    Source,
    SourceSettings,
    UnacceptableError,
    Unit,
    UnitContents,
    UnreachableError,
    check_skill,
)

_ARCHIVE_OVERHEAD: Final = 4 << 20
"""Maximum bytes of an archive beyond its files: headers and padding."""
_SKILL_MD_BYTES: Final = 1 << 20
_SENDABLE: Final = re.compile("[ -~]+")
"""A value of a header that may be sent back."""
_LIKE_HTML: Final = (".html", ".htm", ".xhtml")
_REPOSITORY: Final = re.compile(r"https?://[^/?#]+/[^/?#]+/[^/?#]+/?")
"""URL with exactly an owner and a name, as of a repository at a forge."""
MAX_INDEXES: Final = 1000
"""Index digests kept for each address, the newest."""
_MIN_POLL_S: Final = 60.0
"""Minimum seconds between two requests for an index."""


class Site(Source):
    """A site that publishes an index of skills."""

    own_check_s = UNSAID_S

    def __init__(self, given: str, settings: SourceSettings) -> None:
        check_fetchable(given)
        self._given = given
        self._fetch = settings.fetch
        self._places = wellknown.candidates(given)
        # A pinned copy has its own folder: it is fetched once, and stays even if the site goes.
        origin = bare(given)
        folder = settings.output or CacheFolder(
            settings.cache, "sites", origin, given, settings.pin or ""
        )
        super().__init__(origin, folder, settings)
        self.key = self._places[0]

    async def resolve(self, *, anew: bool = False) -> Revision:
        """Return the index as a revision, from the recorded copy while that is fresh."""
        known = read_index(self.place, self.key)
        if known is not None and _digest(known) == self.settings.pin:
            known, anew = replace(known, asked_at=time.time(), fresh_s=MAX_S), False
        elif self.settings.pin is not None:
            known = None  # the site had another index before, which must not be revalidated
        try:
            index = await self.find(known, anew=anew)
        except IndexRefusedError as error:
            if self.settings.output is not None:
                raise
            raise UnacceptableError(str(error)) from None
        return Revision(_digest(index.record), index.next_check_s, index)

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:
        """Plan the skills that the index offers."""
        found: _FoundIndex = revision.content
        index = found.index
        record = replace(found.record, history=known.history, revision=revision.digest)
        if index.version is not None:
            record = with_history(record, allow_rollback=self._fetch.allow_rollback)
        is_pinned = revision.digest == self.settings.pin
        if not record.validators and not _left_s(record) and not is_pinned:
            record = replace(record, body="")  # its publisher forbids storing it
        units: list[Unit] = []
        for entry in index.entries:
            url = entry.url or entry.files[SKILL_MD]
            units.append(Unit(entry.digest, entry.name, (entry.name,), url=url, item=entry))
        refused: list[SkillRefusal] = []
        warnings = [*index.warnings]
        for unusable in index.unusable:
            if unusable.is_fault:
                name = unusable.name or f"entry {unusable.position}"
                refused.append(SkillRefusal(name, unusable.reason, "publisher"))
            elif self._fetch.wanted is None or unusable.name in self._fetch.wanted:
                warnings.append(f"{unusable}, and so it is passed over")
        listed = None
        if index.version is not None:
            listed = {known_entry.name for known_entry in (*index.entries, *index.unusable)}
        async with Downloader(self._fetch, self._places[0]) as downloader:
            remarks: list[str] = []
            plan = Plan(
                units,
                fetching(partial(self._bundle, downloader, remarks)),
                replace(record, warnings=tuple(warnings)),
                offered=listed,
                refused=refused,
                version=index.version,
                before=_digest(known) if known.body else "",
                may_heal=True,
                warnings=remarks,
            )
            yield plan
            plan.bytes = found.bytes + downloader.bytes

    async def find(self, known: IndexRecord | None, *, anew: bool = False) -> _FoundIndex:
        """Return the site's index: the recorded one while it is fresh, unless `anew`."""
        record = known
        total_s = self._fetch.limits.total_s
        try:
            with anyio.fail_after(total_s):
                async with Downloader(self._fetch, self._places[0]) as downloader:
                    if record is None or not record.body or anew or not _left_s(record):
                        record = await self._ask(downloader, known)
                most = self._fetch.limits.skills
                index = await to_thread.run_sync(wellknown.decode, record.raw, record.url, most)
                return _FoundIndex(record, index, downloader.bytes)
        except TimeoutError:
            raise UnreachableError(f"it took longer than {total_s:g} s") from None

    async def _ask(self, downloader: Downloader, known: IndexRecord | None) -> IndexRecord:
        """Request the index at each candidate URL until one has it."""
        missing: list[AbsentError] = []
        for url in self._places:
            held: IndexRecord | None = None
            validators: Mapping[str, str] = {}
            if known is not None and known.asked == url and known.body:
                held, validators = known, known.validators
            try:
                answer = await downloader.get(
                    url, MAX_INDEX_BYTES, accept="application/json", validators=validators
                )
                if answer.is_html:
                    raise AbsentError(f"{shown(url)} is a web page (HTML) and no index")
            except AbsentError as error:
                missing.append(error)
                continue
            return self._record(url, answer, held)
        if len(missing) == 1:
            raise missing[0]
        hint = ""
        if _REPOSITORY.fullmatch(self._given):
            hint = f"; if this is a repository, write git+{shown(self._given)}"
        raise AbsentError(f"no index of skills: {'; '.join(map(str, missing))}{hint}")

    def _record(self, url: str, answer: Response, held: IndexRecord | None) -> IndexRecord:
        headers, now = answer.headers, time.time()
        fresh = fresh_s(headers, now)
        if answer.status == 304 and held is not None:
            renewed = _validators(answer) or held.validators
            return replace(held, given=self._given, validators=renewed, asked_at=now, fresh_s=fresh)
        if answer.encoding:
            raise IndexRefusedError(f"the index came compressed ({answer.encoding}) unasked")
        body = answer.body.decode("utf-8", "surrogateescape")
        return IndexRecord(
            self._places[0], self._given, url, answer.url, body, _validators(answer), now, fresh
        )

    # The skills

    async def _bundle(self, downloader: Downloader, remarks: list[str], unit: Unit) -> UnitContents:
        """Download one skill, and verify it."""
        entry: SiteEntry = unit.item
        limits = self._fetch.limits.skill
        if entry.kind is None:
            files = await self._files(downloader, entry)
        else:
            most = limits.bytes + _ARCHIVE_OVERHEAD
            if entry.kind == "skill-md":
                most = _SKILL_MD_BYTES
            answer = await downloader.get(entry.url, most)
            files = await to_thread.run_sync(_unpacked, entry, answer, limits)
        refusal, warning = await to_thread.run_sync(wellknown.compare_files, entry, files)
        if refusal:
            raise DigestMismatchError(refusal)
        check_skill(entry.name, files, limits)
        if warning:
            remarks.append(f"{entry.name}: {warning}")
        return UnitContents({entry.name: files})

    async def _files(self, downloader: Downloader, entry: SiteEntry) -> Files:
        """Download the files of a skill of discovery 0.1.0, which has no digests."""
        # WK1-14
        files: dict[str, tuple[bytes, bool]] = {}
        limits = self._fetch.limits.skill
        left = limits.bytes
        for path, url in entry.files.items():
            most = _SKILL_MD_BYTES if path == SKILL_MD else min(max(left, 0), limits.file)
            answer = await downloader.get(url, most)
            named = shown(answer.url)
            if answer.is_html and not path.lower().endswith(_LIKE_HTML):
                raise UnacceptableError(f"{named} is a web page (HTML)")
            if answer.encoding:
                raise UnacceptableError(f"{named} came compressed ({answer.encoding}) unasked")
            left -= len(answer.body)
            files[path] = (answer.body, False)
        return files


async def fetch_index(url: str, settings: FetchSettings | None = None) -> tuple[str, SiteIndex]:
    """Download the index of a site and return it with its URL. Nothing is written.

    Raises:
        UsageError: `url` is no URL.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no usable index.
    """
    # WK-50
    nowhere = SourceSettings(Path(), fetch=settings or FetchSettings(), output=Path())
    index = await Site(url, nowhere).find(None)
    return index.record.url, index.index


async def refresh(
    url: str,
    directory: str | PathLike[str],
    settings: FetchSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FetchReport:
    """Update the folder to the skills that the index at `url` offers.

    `progress` is called with the numbers of processed and of all skills. Cancellation and errors
    leave a consistent folder.

    Raises:
        UsageError: `url` is no URL, or the folder cannot be used.
        IndexRefusedError, UnacceptableError, UnreachableError: there is no usable index.
        RollbackError: the site serves an index that it had replaced before.
    """
    fetch = settings or FetchSettings()
    directory = Path(directory)
    site = Site(url, SourceSettings(directory, fetch=fetch, output=directory))
    return await reconcile(site, await site.resolve(anew=fetch.revalidate), progress)


@dataclass(frozen=True, slots=True)
class _FoundIndex:
    """A site's index, and the bytes downloaded for it."""

    record: IndexRecord
    index: SiteIndex
    bytes: int

    @property
    def next_check_s(self) -> float:
        """Seconds until the next poll, by the cache headers."""
        left = _left_s(self.record)
        if left <= 0:
            return UNSAID_S
        return max(left, _MIN_POLL_S)


def _digest(record: IndexRecord) -> str:
    """Return the digest of an index together with its URL, the base of its relative URLs."""
    return hashlib.sha256(f"{record.url}\n".encode() + record.raw).hexdigest()


def _left_s(record: IndexRecord) -> float:
    """Return the remaining freshness of the index in seconds; 0 if it is stale.

    A request time in the future means that a clock was wrong: the index counts as stale.
    """
    since = time.time() - record.asked_at
    if since < 0:
        return 0.0
    return max(0.0, min(record.fresh_s, MAX_S) - since)  # in this order NaN is 0


def with_history(record: IndexRecord, *, allow_rollback: bool) -> IndexRecord:
    """Add the digest of a fetched index to the history of its URL, and detect a rollback.

    An impostor or a stale replica can replay a valid old index.

    Raises:
        RollbackError: the site serves an index that it had replaced before.
    """
    history = dict(record.history)
    digest, digests = hashlib.sha256(record.raw).hexdigest(), history.get(record.asked, ())
    if digest in digests[:-1] and not allow_rollback:
        raise RollbackError("it went back to an earlier index; --allow-rollback takes it")
    history[record.asked] = (*(past for past in digests if past != digest), digest)[-MAX_INDEXES:]
    return replace(record, history=history)


def _unpacked(entry: SiteEntry, answer: Response, limits: UnpackLimits) -> Files:
    # WK-27, WK-48: the digest is compared before anything is unpacked.
    try:
        wellknown.verify_digest(answer.body, entry.digest)
    except DigestMismatchError as error:
        if answer.is_html:
            raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML)") from None
        if answer.encoding:
            raise DigestMismatchError(
                f"{error}; it came with Content-Encoding {answer.encoding}"
            ) from None
        raise
    if entry.kind == "archive":
        return archive.unpack(answer.body, limits)
    return {SKILL_MD: (answer.body, False)}


def _validators(answer: Response) -> dict[str, str]:
    """Return the headers for a conditional request; none if the response must not be stored."""
    if not may_store(answer.headers):
        return {}
    headers = {"If-None-Match": "etag", "If-Modified-Since": "last-modified"}
    validators = {name: answer.headers.get(header, "") for name, header in headers.items()}
    return {name: value for name, value in validators.items() if _SENDABLE.fullmatch(value)}
