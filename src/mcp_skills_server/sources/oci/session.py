"""Requests to a registry and to where it leads: each address checked before it is asked, at every redirect again.

What authorizes a request goes to the registry alone. A redirect to another host, as registries use for blobs, is
followed without it; a token server is asked only at the very address that the registry names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio

from mcp_skills_server import __version__
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.sources import addresses
from mcp_skills_server.sources.connections import Connections, Resolve
from mcp_skills_server.sources.download import REDIRECTS, check_now, target
from mcp_skills_server.sources.exchange import Exchange
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.oci import access
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.reference import Reference
from mcp_skills_server.sources.settings import Bounds, OriginPolicy
from mcp_skills_server.sources.urls import shown

if TYPE_CHECKING:
    import ssl

_TAKEN: Final = frozenset((200, 201, 202))
_ERROR_BYTES: Final = 1 << 16
_AUTHORIZATION: Final = "Authorization"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked.

    Attributes:
        method: of HTTP.
        url: absolute.
        headers: beside those that every request has.
        most: bytes of the answer's body.
        content: the body, None where there is none; then redirects are followed.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    most: int = _ERROR_BYTES
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came.

    Attributes:
        status: of HTTP.
        url: the address that answered, after redirects.
        headers: names in lower case.
        raw: the body.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    raw: bytes


class Session:
    """Asks one registry.

    Args:
        reference: what is read or written there.
        admission: how the registry admits us.
        trust: where to go beside the registry: what it leads to must be https and public, unless this says more.
        bounds: what it may cost.
        connections: how many at once.
        tls: for other certificates than the system's.
        resolver: for other names than the system's.
    """

    def __init__(
        self,
        reference: Reference,
        admission: Access,
        trust: OriginPolicy,
        bounds: Bounds,
        *,
        connections: int,
        tls: ssl.SSLContext | None,
        resolver: Resolve | None,
    ) -> None:
        self.exchange: Final = Exchange(bounds)
        self.home: Final = wellknown.origin(reference.base)
        self._registry = reference.registry
        self._access = admission
        self._trust = trust
        self._bounds = bounds
        self._own = dict(trust.headers)
        # Who names this machine means it; where the registry leads to from there is another matter.
        local = trust.private or addresses.is_loopback(reference.host)
        self._at_home = Connections(connections, private=local, tls=tls, resolver=resolver)
        self._elsewhere = Connections(connections, private=trust.private, tls=tls, resolver=resolver)

    async def close(self) -> None:
        """Close all connections."""
        await self._at_home.close()
        await self._elsewhere.close()

    async def ask(self, request: Request) -> Reply:
        """The answer of the registry, which may ask us for a token or a password first.

        Raises:
            UnacceptableError: it does not admit us, or leads to where the settings do not allow to go.
            UnreachableError: no whole answer in time, or a status that asks to come again.
        """
        own = any(name.lower() == _AUTHORIZATION.lower() for name in self._own)
        reply = await self._follow(request, None if own else await self._access.header(self._token))
        if reply.status == 401 and wellknown.origin(reply.url) == self.home and not own:
            admitted = await self._access.admit(reply.headers.get("www-authenticate", ""), self._token)
            if admitted is not None:
                reply = await self._follow(request, admitted)
        if reply.status in {401, 403}:
            raise UnacceptableError(self._denied(reply))
        check_now(reply.url, reply.status, reply.headers)
        return reply

    async def _follow(self, request: Request, admitted: str | None) -> Reply:
        """The answer to a request that is or is not admitted; redirects of what is read are followed."""
        for _ in range(self._bounds.redirects + 1):
            sent = request
            if wellknown.origin(request.url) == self.home:
                authorized = {_AUTHORIZATION: admitted} if admitted else {}
                sent = replace(request, headers={**request.headers, **self._own, **authorized})
            reply = await self._once(sent)
            if reply.status not in REDIRECTS or request.content is not None:
                return reply
            request = replace(request, url=target(request.url, reply.headers))
        raise UnacceptableError(f"{shown(request.url)}: more than {self._bounds.redirects} redirects")

    async def _once(self, request: Request) -> Reply:
        url, head = request.url, request.method == "HEAD"
        connections = self._allowed(url)
        headers = {"Accept-Encoding": "identity", "User-Agent": f"mcp-skills-server/{__version__}", **request.headers}
        try:
            with anyio.fail_after(self._bounds.download_s):
                sending = self.exchange.send(request.method, url, headers, connections, request.content)
                async with sending as (status, answered, stream):
                    most = request.most if status in _TAKEN else _ERROR_BYTES
                    # The Content-Length of a HEAD is that of what a GET would bring.
                    raw = await self.exchange.body(url, most, {} if head else answered, stream)
                    return Reply(status, url, answered, raw)
        except TimeoutError:
            raise UnreachableError(f"{shown(url)} took longer than {self._bounds.download_s:g} s") from None

    def _allowed(self, url: str) -> Connections:
        """The connections for this address; a place that the settings do not allow is refused."""
        if wellknown.origin(url) == self.home:
            self._at_home.check(url)
            return self._at_home
        if urlsplit(url).scheme == "http" and not self._trust.http:
            raise UnacceptableError(
                f"{self._registry} leads to {shown(url)}, which is plain http; --allow-http allows it"
            )
        self._elsewhere.check(url)
        return self._elsewhere

    async def _token(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> bytes:
        """What a token server answers. No redirect of it is followed: a password may be in the request."""
        reply = await self._once(Request(method, url, headers, access.MOST_BYTES, content))
        if reply.status in {400, 401, 403}:
            raise UnacceptableError(self._denied(reply))
        check(reply)
        return reply.raw

    def _denied(self, reply: Reply) -> str:
        trouble = f"; {self._access.trouble}" if self._access.trouble else ""
        hint = f"'docker login {self._registry}' stores a user name and a password"
        return f"{shown(reply.url)} asks for permission (status {reply.status}); {hint}{trouble}"


def check(reply: Reply, wanted: int = 200) -> None:
    """Prove that an answer has the status that is wanted.

    Raises:
        SourceError: it has another.
    """
    if reply.status == wanted:
        return
    if reply.status == 404:
        raise AbsentError(f"{shown(reply.url)} is not there (status 404)")
    check_now(reply.url, reply.status, reply.headers)
    raise UnacceptableError(f"{shown(reply.url)} answers with status {reply.status}{_reason(reply.raw)}")


def _reason(raw: bytes) -> str:
    """What a registry says of an error, as ` (MANIFEST_INVALID)`; "" where it says nothing that is understood."""
    try:
        code: object = json.loads(raw)["errors"][0]["code"]
    except (ValueError, RecursionError, KeyError, IndexError, TypeError):
        return ""
    plain = isinstance(code, str) and code.isascii() and code.replace("_", "").isalnum() and len(code) <= 40
    return f" ({code})" if plain else ""
