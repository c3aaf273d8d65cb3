"""Agent Skills Discovery over HTTP: `/.well-known/agent-skills` and `/.well-known/skills`.

Request paths are looked up in the publication, and never become paths on disk. Artifacts are sent
uncompressed: their digests are of the raw bytes. Slow work runs in a thread, once for all requests
that wait for it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_skills_server.authoring.evaluation import own_cases
from mcp_skills_server.caches import LruCache
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.threads import off_loop
from mcp_skills_server.catalog.views import FilteredSkills, Views
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.aicatalog import (
    ARD,
    ARD_MEDIA_TYPE,
    CATALOG,
    CATALOG_MEDIA_TYPE,
    LINKS,
    CatalogSkill,
    catalog,
)
from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX, INDEX_MEDIA_TYPE
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import media
from mcp_skills_server.model import SIGNATURE_FILE, SKILL_MD, Skill, printable
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.model.skill import whole_digest
from mcp_skills_server.publish.artifacts import Edition
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Use
from mcp_skills_server.web.part import requester

logger = logging.getLogger(__name__)

PREFIXES: Final = (DIRECTORY, DIRECTORY_0_1)
MAX_AGE_S: Final = 60
"""Cache lifetime of an index in seconds; an artifact never changes and has a year."""
_YEAR_S: Final = 365 * 24 * 3600
_TIMEOUT_S: Final = 30.0
_INLINE_BYTES: Final = 1 << 18
"""Larger files are read off the event loop."""
_CHUNK: Final = 1 << 18
"""Bytes in one chunk of a response: the memory that a slow client holds."""
_LOGGED_AT_ONCE: Final = 20
_MAX_LOGGED: Final = 10_000
_MAX_SKILLS: Final = 20_000
"""Skills in the publications of all sets of grants together; each has its own artifacts."""
_RANGE: Final = re.compile(
    r"\s*+bytes\s*+=\s*+(?:([0-9]{1,4000})\s*+-\s*+([0-9]{0,4000})|-\s*+([0-9]{1,4000}))\s*+",
    re.ASCII,
)
_SAFE: Final = {
    "x-content-type-options": "nosniff",
    # Scripts in a skill's HTML files must not run on the origin of the MCP endpoint.
    "content-security-policy": "default-src 'none'; sandbox",
    "accept-ranges": "bytes",
}

_Read = Callable[[int, int], Awaitable[bytes]]


class _NotReadyError(SkillsServerError):
    """No edition was ready in time."""


@dataclass(frozen=True, slots=True)
class _Resource:
    """The resource at a path."""

    media_type: str
    digest: str  # of its bytes, `sha256:` and hex
    size: int
    age: int  # seconds for which it may be cached
    read: _Read
    use: Use | None = None  # the skill and file, for the event; None for an index


class Discovery:
    """ASGI endpoint of both discovery formats.

    Args:
        logged: messages logged before, shared by the endpoints of all sets of grants.
        is_public: whether the documents need no token.
        any_origin: whether pages of any origin may read them.
        has_card: whether a Server Card is beside them.
        max_age: cache lifetime of an index in seconds.
    """

    def __init__(
        self,
        publication: Publication,
        logged: set[str],
        *,
        is_public: bool,
        any_origin: bool = False,
        has_card: bool = True,
        max_age: int = MAX_AGE_S,
    ) -> None:
        self.publication = publication
        self._lock = anyio.Lock()
        self._logged = logged
        self._max_age = max_age
        self._has_card = has_card
        self._scope = "public" if is_public else "private"
        self._common = dict(_SAFE)
        if any_origin:  # WK-38
            self._common["access-control-allow-origin"] = "*"
        if not is_public:
            self._common["vary"] = "authorization"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD (WK-35, WK1-11)."""
        response = await self._respond(Request(scope))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return self._refusal(405, "only GET and HEAD are allowed", {"allow": "GET, HEAD"})
        try:
            return await self._observed(request.scope)
        except _NotReadyError:
            return self._refusal(503, "the index is not ready yet", {"retry-after": "2"})
        except events.NotRecordedError as error:
            return self._refusal(503, str(error))

    # Lookup

    async def _observed(self, scope: Scope) -> Response:
        """Return the response to a request, and emit its one event before it is sent."""
        method, client = scope["method"], requester(scope)
        with events.Request(
            "discovery", method, principal=client.principal, address=client.address
        ) as request:
            resource = await self._find(scope["path"], site_of(scope))
            if resource is None:
                request.outcome = "refused"
                return self._refusal(404, "not found")
            return await self._answer(Request(scope), resource)

    async def _find(self, path: str, site: str) -> _Resource | None:
        if path in (CATALOG, ARD):
            make = partial(self._catalog, await self._edition(), site, for_ard=path == ARD)
            raw = await to_thread.run_sync(make)
            media_type = ARD_MEDIA_TYPE if path == ARD else CATALOG_MEDIA_TYPE
            return self._document(media_type, digest_of(raw), raw)
        if path == DIRECTORY + INDEX:
            edition = await self._edition()
            return self._document(INDEX_MEDIA_TYPE, edition.digest, edition.index)
        if path == DIRECTORY_0_1 + INDEX:
            edition = await self._edition()
            return self._document(INDEX_MEDIA_TYPE, edition.digest_0_1, edition.index_0_1)
        if path.startswith(DIRECTORY_0_1):
            name, _, file_path = path.removeprefix(DIRECTORY_0_1).partition("/")
            return await self._file(name, file_path) if file_path else None
        return await self._artifact(path)

    def _document(
        self, media_type: str, digest: str, raw: bytes, use: Use | None = None
    ) -> _Resource:
        """Return a resource that may change, from memory."""
        return _Resource(media_type, digest, len(raw), self._max_age, partial(_slice, raw), use)

    def _catalog(self, edition: Edition, site: str, *, for_ard: bool) -> bytes:
        """Return the encoded AI Catalog of an edition, or the manifest of ARD. Reads files."""
        skills: list[CatalogSkill] = []
        for name, published in edition.skills.items():
            skill, made = published.skill, published.artifact
            queries = self._queries(skill) if for_ard else ()
            signature = None
            if SIGNATURE_FILE in skill.files and name in edition.older:
                signature = f"{DIRECTORY_0_1}{name}/{SIGNATURE_FILE}"
            skills.append(
                CatalogSkill(skill, made.path, made.digest, made.media_type, queries, signature)
            )
        index = DIRECTORY + INDEX
        return jsonrpc.dump(catalog(site, index, skills, has_card=self._has_card, for_ard=for_ard))

    def _queries(self, published: Skill) -> list[str]:
        registry = self.publication.registry
        # the registry's skill has its evals; the published one has none
        skill = registry.snapshot.skills.get(published.path, published)
        cases, _ = own_cases(registry.read, skill, str)
        return [case.query for _, case in cases if case.should_trigger]

    async def _artifact(self, path: str) -> _Resource | None:
        kept = self.publication.artifact(path)
        if kept is None and self.publication.latest is None:
            # After a restart, clients request artifacts that the previous process listed.
            await self._edition()
            kept = self.publication.artifact(path)
        if kept is None:
            return None
        published, slot = kept
        artifact, skill = published.artifact, published.skill
        # Chunks are small, and from a file written recently: a thread switch for each would cost
        # more than the read.
        read = partial(off_loop, True, slot.read)
        use = Use("load", skill.path, "", artifact.digest, whole_digest(skill))
        kind = _with_charset(artifact.media_type)
        return _Resource(kind, artifact.digest, slot.size, _YEAR_S, read, use)

    async def _file(self, name: str, path: str) -> _Resource | None:
        published = self.publication.file(await self._edition(), name, path)
        if published is None:
            return None
        file = published.skill.files[path]
        try:
            raw = await off_loop(file.size <= _INLINE_BYTES, self.publication.read, published, path)
        except KeyError:
            return None
        kind = _with_charset(media.media_type(path) or "application/octet-stream")
        digest = file.digest or ""
        action, skill = "load" if path == SKILL_MD else "read", published.skill
        use = Use(action, skill.path, path, digest, whole_digest(skill))
        return self._document(kind, digest, raw, use)

    async def _edition(self) -> Edition:
        """Return the current edition.

        Raises:
            _NotReadyError: none was ready in time.
        """
        edition = self.publication.current
        if edition is not None:
            return edition
        with anyio.move_on_after(_TIMEOUT_S):
            async with self._lock:
                edition = self.publication.current
                if edition is None:
                    edition = await to_thread.run_sync(self._make, abandon_on_cancel=True)
                    self._log_left_out(edition)
                return edition
        raise _NotReadyError

    def _make(self) -> Edition:
        if not self.publication.registry.loaded.wait(_TIMEOUT_S):
            raise _NotReadyError
        try:
            return self.publication.edition()
        except OSError as error:
            logger.error("cannot store artifacts (%s); set TMPDIR to another folder", error)
            if self.publication.latest is None:
                raise _NotReadyError from None
            return self.publication.latest

    def _log_left_out(self, edition: Edition) -> None:
        """Log once which skills are not published, and why."""
        lines = [f"{path}: not published: {reason}" for path, reason in edition.left_out]
        partly = "published only by discovery 0.2.0"
        lines += [f"{path}: {partly}: {reason}" for path, reason in edition.left_out_0_1]
        new = [line for line in lines if line not in self._logged]
        if isinstance(self.publication.registry, Registry) or len(self._logged) > _MAX_LOGGED:
            self._logged.clear()  # log a problem again if it was fixed and comes back
        self._logged.update(lines)
        for line in new[:_LOGGED_AT_ONCE]:
            logger.warning("%s", printable(line))
        if len(new) > _LOGGED_AT_ONCE:
            logger.warning("and %d more skills are not published", len(new) - _LOGGED_AT_ONCE)

    # Responses

    async def _answer(self, request: Request, resource: _Resource) -> Response:
        given = request.headers
        etag = f'"{resource.digest.removeprefix("sha256:")}"'
        cached = f"{self._scope}, max-age={resource.age}"
        if resource.age == _YEAR_S:
            cached += ", immutable"
        headers = {"etag": etag, "cache-control": cached, **self._common}
        if resource.use is None and resource.media_type == INDEX_MEDIA_TYPE:  # not a skill's JSON
            headers["link"] = LINKS
        if "if-match" in given and not matches_tag(given["if-match"], etag, weakly=False):
            return self._refusal(412, "the resource does not match If-Match")
        if "if-none-match" in given and matches_tag(given["if-none-match"], etag, weakly=True):
            return Response(status_code=304, headers=headers)
        start, length, status = 0, resource.size, 200
        if request.method == "GET" and matches_tag(given.get("if-range", "*"), etag, weakly=False):
            wanted = _byte_range(given.get("range", ""), resource.size)
            if wanted is not None:
                start, length = wanted
                if length <= 0:
                    whole = {"content-range": f"bytes */{resource.size}"}
                    return self._refusal(416, "range not satisfiable", whole)
                status = 206
                headers["content-range"] = f"bytes {start}-{start + length - 1}/{resource.size}"
        headers |= {"content-type": resource.media_type, "content-length": str(length)}
        if resource.use is not None and request.method == "GET":
            events.record_sent(resource.use, length)
        if request.method == "HEAD" or not length:
            return Response(status_code=status, headers=headers)
        first = await resource.read(start, min(length, _CHUNK))
        if len(first) == length:
            return Response(first, status, headers)
        return StreamingResponse(_chunks(resource.read, first, start, length), status, headers)

    def _refusal(self, status: int, reason: str, more: Mapping[str, str] | None = None) -> Response:
        headers = {"cache-control": "no-store", **self._common, **(more or {})}
        return PlainTextResponse(f"{reason}\n", status, headers)


class DiscoveryByGrants:
    """Discovery endpoint: each principal finds what it may read.

    Args:
        make: returns the endpoint of a set of skills.
    """

    def __init__(
        self, views: Views, make: Callable[[Registry | FilteredSkills], Discovery]
    ) -> None:
        self._views = views
        self._endpoints = LruCache(make, _MAX_SKILLS, weigh=lambda made: made.publication.weight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        permissions = self._views.permissions(requester(scope).principal)
        await self._endpoints.get(self._views.part(permissions))(scope, receive, send)


def site_of(scope: Scope) -> str:
    """Return the URL of this server as the client sees it. The guard has checked the host."""
    host = Headers(scope=scope).get("host", "localhost")
    return f"{scope.get('scheme', 'http')}://{host}{scope.get('root_path', '')}"


async def _chunks(read: _Read, chunk: bytes, start: int, length: int) -> AsyncGenerator[bytes]:
    """Yield `length` bytes from `start` on in chunks. `chunk` is the first one, read already."""
    yield chunk
    while (length := length - len(chunk)) > 0:
        start += len(chunk)
        chunk = await read(start, min(length, _CHUNK))
        yield chunk


def _with_charset(kind: str) -> str:
    return f"{kind}; charset=utf-8" if kind == media.MARKDOWN else kind


async def _slice(raw: bytes, start: int, length: int) -> bytes:
    return raw[start : start + length]


def matches_tag(header: str, etag: str, *, weakly: bool) -> bool:
    """Return whether a list of entity tags contains `etag`. A date never matches."""
    tags = [tag.strip() for tag in header.split(",")]
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return "*" in tags or etag in tags


def _byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Return (start, length) of a requested byte range, or None to ignore the header.

    A range outside the resource has a length of 0 or less. Ignored are several ranges, and units
    other than bytes (RFC 9110 14.2).
    """
    match = _RANGE.fullmatch(header)
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        length = min(int(suffix), size)
        return size - length, length
    start, end = int(first), int(last) if last else size - 1
    if last and end < start:
        return None
    return start, min(end, size - 1) - start + 1
