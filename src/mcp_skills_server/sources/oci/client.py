"""Client of a registry's API (OCI distribution 1.1): bounded reads and writes.

Content that is named by a digest is verified by it. Authorization is sent to the registry's own
origin alone: redirects to other storage, as registries use for blobs, are followed without it. A
token server is requested only at the exact address that the registry names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Final, Literal
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

from anyio import to_thread

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.model import Json
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.model.digests import digest_of, is_digest
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.http import (
    Hop,
    HttpClient,
    Response,
    check_available,
    check_status,
    redirect_target,
)
from mcp_skills_server.sources.oci import access, manifests
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.manifests import Descriptor
from mcp_skills_server.sources.oci.reference import OciReference
from mcp_skills_server.sources.source import (
    AbsentError,
    FetchSettings,
    UnacceptableError,
    UnreachableError,
)

_DIGEST: Final = "docker-content-digest"
_MANIFESTS: Final = {"Accept": manifests.ACCEPT}
_OCTETS: Final = {"Content-Type": "application/octet-stream"}
_ERROR_BYTES: Final = 1 << 16
_TAGS: Final = 1000
_MAX_PAGES: Final = 100
_LIST: Final = {"Accept": f"{manifests.INDEX}, application/json"}
_NEXT: Final = re.compile(r'<([^<>]{1,2000})>; ?rel="?next"?')
_CODE: Final = re.compile("[A-Za-z0-9_]{1,40}")


class RegistryClient(HttpClient):
    """Client of one repository. Methods raise SourceError for unexpected responses.

    `settings.trust` says where the registry may lead besides public https addresses.
    """

    def __init__(self, settings: FetchSettings, reference: OciReference, admission: Access) -> None:
        super().__init__(settings.bounds, connections=settings.connections)
        self._reference = reference
        self._home = wellknown.origin(reference.base)
        self._access = admission
        self._trust = settings.trust

    # Reading

    async def digest(self, wanted: str) -> str | None:
        """Return the digest that a tag names now, by one HEAD; None without the header."""
        response = await self._ask("HEAD", f"/manifests/{wanted}", _MANIFESTS, 0)
        if response.status == 404:
            raise await self._absent(wanted)
        digest = response.headers.get(_DIGEST)
        return digest if response.status == 200 and is_digest(digest) else None

    async def tags(self) -> list[str]:
        """Return all tags of the repository."""
        pages = self._pages(f"/tags/list?n={_TAGS}", "tags")
        return [tag async for page in pages for tag in page if isinstance(tag, str)]

    async def referrers(self, digest: str) -> list[Json]:
        """Return the descriptors of the artifacts that refer to a manifest.

        A registry without the API for it has an index of them under a tag.
        """
        for path in (f"/referrers/{digest}", f"/manifests/{digest.replace(':', '-')}"):
            pages = [page async for page in self._pages(path, "manifests")]
            if pages:
                return [entry for page in pages for entry in page]
        return []

    async def manifest(self, wanted: str) -> tuple[str, bytes]:
        """Return digest and bytes of the manifest or index at a digest or tag.

        Raises:
            AbsentError: there is none.
        """
        response = await self._ask("GET", f"/manifests/{wanted}", _MANIFESTS, manifests.MAX_BYTES)
        if response.status == 404:
            raise await self._absent(wanted)
        _check(response)
        said = wanted if is_digest(wanted) else response.headers.get(_DIGEST)
        return _verified(response.body, said, response.url), response.body

    async def blob(self, descriptor: Descriptor) -> bytes:
        """Return the bytes of a blob, verified by size and digest."""
        response = await self._ask("GET", f"/blobs/{descriptor.digest}", {}, descriptor.size)
        _check(response)
        await to_thread.run_sync(_verified, response.body, descriptor.digest, response.url)
        return response.body

    # Writing

    async def has(self, kind: Literal["blobs", "manifests"], digest: str) -> bool:
        """Tell whether the registry has this blob or manifest."""
        return (await self._ask("HEAD", f"/{kind}/{digest}", _MANIFESTS, 0)).status == 200

    async def upload(self, digest: str, raw: bytes) -> None:
        """Upload a blob."""
        begun = await self._ask("POST", "/blobs/uploads/", {}, content=b"")
        _check(begun, 202)
        target = redirect_target(begun.url, begun.headers)
        parts = urlsplit(target)
        query = "&".join(filter(None, (parts.query, urlencode({"digest": digest}))))
        url = urlunsplit(parts._replace(query=query))
        _check(await self._ask("PUT", url, _OCTETS, content=raw), 201)

    async def put_manifest(self, wanted: str, media_type: str, raw: bytes) -> None:
        """Upload a manifest or an index under a digest or tag."""
        headers = {"Content-Type": media_type}
        response = await self._ask("PUT", f"/manifests/{wanted}", headers, content=raw)
        _check(response, 201)
        if _DIGEST in response.headers:
            _verified(raw, response.headers[_DIGEST], response.url)

    # Requests

    async def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        max_bytes: int = _ERROR_BYTES,
        content: bytes | None = None,
    ) -> Response:
        """Send a request to a path of the repository or a URL; authenticate after a 401."""
        url = path
        if path.startswith("/"):
            url = f"{self._reference.base}{path}"

        async def send(admitted: str | None) -> Response:
            return await self.request(
                method,
                url,
                headers,
                partial(self._allow, admitted=admitted),
                max_bytes=max_bytes,
                max_error_bytes=_ERROR_BYTES,
                content=content,
                follow=content is None,  # a redirect could send the content elsewhere
            )

        response = await send(self._access.authorization)
        if response.status == 401 and wellknown.origin(response.url) == self._home:
            challenge = response.headers.get("www-authenticate", "")
            await self._access.admit(challenge, self._ask_for_token)
            if self._access.authorization is not None:
                response = await send(self._access.authorization)
        if response.status in {401, 403}:
            raise UnacceptableError(self._denied(response))
        check_available(response)
        return response

    async def _ask_for_token(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> bytes:
        """Return a token server's response; no redirect, since the request may hold a password."""
        response = await self.request(
            method,
            url,
            headers,
            self._allow,
            content=content,
            follow=False,
            max_bytes=access.MAX_BYTES,
            max_error_bytes=access.MAX_BYTES,
        )
        if response.status in {400, 401, 403}:
            raise UnacceptableError(self._denied(response))
        _check(response)
        return response.body

    def _allow(self, url: str, admitted: str | None = None) -> Hop:
        """Return the terms of a URL, with credentials for the registry alone, or refuse it."""
        if wellknown.origin(url) == self._home:
            headers: dict[str, str] = {}
            if admitted:
                headers["Authorization"] = admitted
            # An operator who names this machine means it. Redirects from there are checked anew.
            return Hop(self._trust.private or is_loopback(self._reference.host), headers)
        if urlsplit(url).scheme == "http" and not self._trust.http:
            reason = f"leads to {shown(url)}, which is plain http; --allow-http allows it"
            raise UnacceptableError(f"{self._reference.registry} {reason}")
        return Hop(self._trust.private)

    def _denied(self, response: Response) -> str:
        hint = f"'docker login {self._reference.registry}' stores a user name and a password"
        if self._access.trouble:
            hint += f"; {self._access.trouble}"
        return f"{shown(response.url)} asks for permission (status {response.status}); {hint}"

    async def _pages(self, path: str, key: str) -> AsyncGenerator[list[Json]]:
        """Yield the entries of each page of a list; no page if the registry has no such list."""
        for _ in range(_MAX_PAGES):
            page = await self._ask("GET", path, _LIST, manifests.MAX_BYTES)
            if page.status in {404, 405}:
                return
            _check(page)
            try:
                listed = items(mapping(load_json(page.body)).get(key))
            except ValueError:
                raise UnacceptableError(f"{shown(page.url)}: this is not JSON") from None
            yield listed
            following = _NEXT.search(page.headers.get("link", ""))
            if following is None:
                return
            path = urljoin(page.url, following[1])
        raise UnacceptableError(f"{shown(path)}: this list has more than {_MAX_PAGES} pages")

    async def _absent(self, wanted: str) -> AbsentError:
        """Return the error for a missing manifest, with the last tags of the first page."""
        named = f"{self._reference.registry} has no {self._reference.repository} {wanted}"
        listed: list[Json] = []
        try:
            listed = await anext(self._pages(f"/tags/list?n={_TAGS}", "tags"), listed)
        except (UnacceptableError, UnreachableError):
            return AbsentError(named)
        tags = [tag for tag in listed if isinstance(tag, str) and tag.isprintable()]
        tags = sorted([tag for tag in tags if len(tag) <= 128][:_TAGS])
        if not tags:
            return AbsentError(f"{named}, and no tag")
        first, last = "first " if len(tags) == _TAGS else "", ", ".join(tags[-5:])
        return AbsentError(f"{named}; the last of its {first}{len(tags)} tags: {last}")


def _check(response: Response, wanted: int = 200) -> None:
    """Raise SourceError unless the response has the wanted status."""
    check_status(response, {wanted}, _reason(response.body))


def _reason(body: bytes) -> str:
    """Return a registry's error code as ` (MANIFEST_INVALID)`, or "" for none."""
    try:
        code = _CODE.fullmatch(load_json(body)["errors"][0]["code"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return f" ({code[0]})" if code else ""


def _verified(raw: bytes, said: str | None, url: str) -> str:
    """Return the digest of these bytes; raise UnacceptableError if it is not `said`."""
    actual = digest_of(raw)
    if said is not None and said != actual:
        raise UnacceptableError(f"{shown(url)}: its digest is {actual} and not {said[:80]}")
    return actual
