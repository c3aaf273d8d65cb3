"""A registry's API (OCI distribution 1.1): manifests, blobs and tags, read and written within limits.

Whatever is named by a digest is proved by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlencode, urlsplit

from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.sources.connections import Resolve
from mcp_skills_server.sources.download import target
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.manifests import Descriptor
from mcp_skills_server.sources.oci.reference import Reference, is_digest
from mcp_skills_server.sources.oci.session import Reply, Request, Session, check
from mcp_skills_server.sources.settings import Bounds, OriginPolicy
from mcp_skills_server.sources.urls import shown

if TYPE_CHECKING:
    import ssl

_DIGEST: Final = "docker-content-digest"
_OCTETS: Final = {"Content-Type": "application/octet-stream"}
_TAGS_PAGE: Final = 1 << 20
_TAGS_PAGES: Final = 20
_TAGS: Final = 10_000


class Client:
    """One repository of a registry. Open it with `async with`.

    Args:
        reference: what is read or written there.
        admission: how the registry admits us.
        trust: where to go beside the registry.
        bounds: what it may cost.
        connections: how many at once.
        tls: for other certificates than the system's.
        resolver: for other names than the system's.
    """

    def __init__(
        self,
        reference: Reference,
        admission: Access,
        trust: OriginPolicy | None = None,
        bounds: Bounds | None = None,
        *,
        connections: int = 6,
        tls: ssl.SSLContext | None = None,
        resolver: Resolve | None = None,
    ) -> None:
        self._reference = reference
        self._session = Session(
            reference,
            admission,
            trust or OriginPolicy(),
            bounds or Bounds(),
            connections=connections,
            tls=tls,
            resolver=resolver,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    @property
    def bytes(self) -> int:
        """Bytes of all bodies so far."""
        return self._session.exchange.bytes

    # What there is

    async def digest(self) -> str | None:
        """The digest of what the reference names now, by one HEAD; None where the registry does not say it.

        Raises:
            AbsentError: there is no such manifest.
            SourceError: it cannot be had.
        """
        reply = await self._ask("HEAD", f"/manifests/{self._reference.wanted}", {"Accept": manifests.ACCEPT}, 0)
        if reply.status == 404:
            raise await self._absent()
        found = reply.headers.get(_DIGEST)
        return found if reply.status == 200 and is_digest(found) else None

    async def manifest(self, wanted: str) -> tuple[str, bytes]:
        """Digest and bytes of the manifest or index that a digest or a tag names.

        Raises:
            AbsentError: there is none.
            SourceError: it cannot be had, or its bytes are others than the digest says.
        """
        url = f"/manifests/{wanted}"
        reply = await self._ask("GET", url, {"Accept": manifests.ACCEPT}, manifests.MOST_BYTES)
        if reply.status == 404:
            raise await self._absent()
        check(reply)
        said = wanted if is_digest(wanted) else reply.headers.get(_DIGEST)
        return _proved(reply.raw, said, reply.url), reply.raw

    async def blob(self, descriptor: Descriptor) -> bytes:
        """The bytes of a blob, as many as its descriptor says and proved by its digest.

        Raises:
            SourceError: it cannot be had, or is another.
        """
        reply = await self._ask("GET", f"/blobs/{descriptor.digest}", {}, descriptor.size)
        check(reply)
        await to_thread.run_sync(_proved, reply.raw, descriptor.digest, reply.url)
        return reply.raw

    async def tags(self) -> list[str]:
        """The tags of the repository, at most 10,000 of them.

        Raises:
            SourceError: they cannot be had.
        """
        out: dict[str, None] = {}
        url = f"{self._reference.base}/tags/list?n=1000"
        for _ in range(_TAGS_PAGES):
            reply = await self._ask("GET", url, {"Accept": "application/json"}, _TAGS_PAGE)
            check(reply)
            try:
                data: object = json.loads(reply.raw)
            except (ValueError, RecursionError):
                data = None
            found = cast("dict[str, Any]", data).get("tags") if isinstance(data, dict) else None
            names = cast("list[object]", found) if isinstance(found, list) else []
            out |= {each: None for each in names if isinstance(each, str) and each.isprintable() and len(each) <= 128}
            following = _next(reply)
            if len(out) >= _TAGS or following is None or wellknown.origin(following) != self._session.home:
                break
            url = following
        return [*out][:_TAGS]

    # What is pushed

    async def has_blob(self, digest: str) -> bool:
        """Whether the registry has this blob already.

        Raises:
            SourceError: it does not say.
        """
        return (await self._ask("HEAD", f"/blobs/{digest}", {}, 0)).status == 200

    async def upload(self, digest: str, raw: bytes) -> None:
        """Put a blob there.

        Raises:
            SourceError: it is not taken.
        """
        begun = await self._ask("POST", "/blobs/uploads/", {}, content=b"")
        check(begun, 202)
        place = target(begun.url, begun.headers)
        joined = f"{place}{'&' if urlsplit(place).query else '?'}{urlencode({'digest': digest})}"
        check(await self._ask("PUT", joined, _OCTETS, content=raw), 201)

    async def put_manifest(self, wanted: str, media_type: str, raw: bytes) -> None:
        """Put a manifest or an index there, under a digest or a tag.

        Raises:
            SourceError: it is not taken.
        """
        headers = {"Content-Type": media_type}
        reply = await self._ask("PUT", f"/manifests/{wanted}", headers, content=raw)
        check(reply, 201)
        if _DIGEST in reply.headers:
            _proved(raw, reply.headers[_DIGEST], reply.url)

    async def _ask(
        self, method: str, place: str, headers: Mapping[str, str], most: int = 1 << 16, content: bytes | None = None
    ) -> Reply:
        """The answer below the repository, or at a whole address."""
        url = f"{self._reference.base}{place}" if place.startswith("/") else place
        return await self._session.ask(Request(method, url, headers, most, content))

    async def _absent(self) -> AbsentError:
        """What to say of a manifest that is not there: which tags are."""
        named = f"{self._reference.registry} has no {self._reference.repository} {self._reference.wanted}"
        try:
            tags = sorted(await self.tags())
        except (UnacceptableError, UnreachableError):
            return AbsentError(named)
        last = ", ".join(tags[-5:])
        return AbsentError(f"{named}; the last of its {len(tags)} tags: {last}" if tags else f"{named}, and no tag")


def _proved(raw: bytes, said: str | None, url: str) -> str:
    """The digest of these bytes, where it is the one that was said."""
    found = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if said is not None and said != found:
        raise UnacceptableError(f"{shown(url)}: its digest is {found} and not {said[:80]}")
    return found


def _next(reply: Reply) -> str | None:
    """The address of the next page, None where this is the last or the address is none."""
    place, _, parameters = reply.headers.get("link", "").partition(">")
    if not place.startswith("<") or 'rel="next"' not in parameters:
        return None
    try:
        return wellknown.absolute(reply.url, place[1:])
    except ValueError:
        return None
