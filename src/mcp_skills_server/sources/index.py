"""Index of a site: the cached copy while that is fresh, else from the first URL that has one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import IndexLimits, IndexRefusedError, SiteIndex
from mcp_skills_server.sources import caching, records
from mcp_skills_server.sources.download import Downloader
from mcp_skills_server.sources.faults import AbsentError, UnreachableError
from mcp_skills_server.sources.http import HttpClient, Response
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.settings import FetchSettings
from mcp_skills_server.sources.urls import check_fetchable, shown

_REPOSITORY: Final = re.compile(r"https?://[^/?#]+/[^/?#]+/[^/?#]+/?")
"""An address as of a repository at a forge: owner and name."""
SOONEST_S: Final = 60.0
"""Seconds at least between two requests for an index."""


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """An index and what is to be remembered of it."""

    record: IndexRecord
    index: SiteIndex

    @property
    def digest(self) -> str:
        """The digest over the index and its base URL."""
        return index_digest(self.record)

    @property
    def next_check_s(self) -> float:
        """The seconds until the next poll, by the cache headers."""
        left = self.record.left_s(records.epoch_s())
        return max(left, SOONEST_S) if left > 0 else caching.UNSAID_S


def index_digest(record: IndexRecord) -> str:
    """Return the digest of an index that is remembered, with the address that its URLs are relative to."""
    body = record.body.encode("utf-8", "surrogateescape")
    return hashlib.sha256(f"{record.url}\n".encode() + body).hexdigest()


def index_urls(url: str) -> list[str]:
    """Return the URLs where the index of a site may be, in the order to try. The first is its key.

    Raises:
        UsageError: it is no http or https URL; the message shows no secret of it.
    """
    check_fetchable(url)
    return wellknown.candidates(url)


@asynccontextmanager
async def downloader_for(places: Sequence[str], settings: FetchSettings) -> AsyncGenerator[Downloader]:
    """Open a downloader for the index at one of these places, and for what it names."""
    async with HttpClient(settings.bounds, connections=settings.connections) as http:
        yield Downloader(http, places[0], settings.trust)


async def find_index(
    url: str, places: Sequence[str], settings: FetchSettings, downloader: Downloader, known: IndexRecord | None
) -> FoundIndex:
    """Return the index of the site at `url`: `known` while that is fresh, else from `index_urls(url)`.

    Raises:
        IndexRefusedError, UnacceptableError, UnreachableError: there is no index that can be used.
    """
    # WK-40, WK-41
    limits = IndexLimits(skills=settings.limits.skills)
    if known is not None and known.body and not settings.revalidate and known.left_s(records.epoch_s()):
        return await _decoded(known, limits)
    try:
        with anyio.fail_after(settings.limits.total_s):
            record = await _ask(url, places, limits, downloader, known)
            return await _decoded(record, limits)
    except TimeoutError:
        raise UnreachableError(f"it took longer than {settings.limits.total_s:g} s") from None


async def _ask(
    url: str, places: Sequence[str], limits: IndexLimits, downloader: Downloader, known: IndexRecord | None
) -> IndexRecord:
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
    hint = ""
    if _REPOSITORY.fullmatch(url):
        hint = f"; if this is a repository, write git+{shown(url)}"
    raise AbsentError(f"no index of skills: {'; '.join(map(str, missing))}{hint}")


async def _decoded(record: IndexRecord, limits: IndexLimits) -> FoundIndex:
    # "surrogateescape" gives the decoder the very bytes that came.
    raw = record.body.encode("utf-8", "surrogateescape")
    return FoundIndex(record, await to_thread.run_sync(wellknown.decode, raw, record.url, limits))


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
