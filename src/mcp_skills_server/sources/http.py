"""HTTP client over `httpcore2` for sites, registries and issuers, with SSRF protection and bounds.

Defends against SSRF by pinning: resolve a name once, check all of its addresses, and connect to one
of those. A second answer of the name server changes nothing (DNS rebinding). Certificates are still
verified by name. Redirects are checked anew and, like bytes and time, bounded. Bodies are never
decompressed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Self, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpcore2

from mcp_skills_server import __version__
from mcp_skills_server.access.hosts import is_loopback, literal
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import printable
from mcp_skills_server.sources.addresses import is_public, shown
from mcp_skills_server.sources.source import (
    AbsentError,
    Bounds,
    FetchSettings,
    UnacceptableError,
    UnreachableError,
)

if TYPE_CHECKING:
    import ssl

UNSAID_S: Final = 300.0
"""Seconds between two requests for an index without cache headers, or after a failure."""
MAX_S: Final = 86_400.0
"""Maximum freshness, so that a mistaken header cannot freeze a copy for years."""
_KEEP_ALIVE_S: Final = 4.0
"""Shorter than most servers' keep-alive, so that few connections close just before use."""
_MAX_ADDRESSES: Final = 4
_ABSENT: Final = frozenset((404, 410))
_NEEDS_PERMISSION: Final = frozenset((401, 403, 407))
_NOT_NOW: Final = frozenset((408, 425, 429))
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": f"mcp-skills-server/{__version__}"}
_DISCONNECTED: Final = (httpcore2.RemoteProtocolError, httpcore2.ReadError, httpcore2.WriteError)
_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response.

    Attributes:
        headers: names in lower case; the values of a repeated name are joined by commas.
        body: the bytes as received, not decoded from their Content-Encoding.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_html(self) -> bool:
        """True for a web page, by Content-Type or by its first bytes."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        begin = self.body[:256].lstrip().lower()
        return kind == "text/html" or begin.startswith((b"<!doctype html", b"<html"))

    @property
    def encoding(self) -> str:
        """The Content-Encoding, or "" for none."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        return "" if encoding == "identity" else encoding


@dataclass(frozen=True, slots=True)
class Hop:
    """Terms for requesting one URL of a redirect chain.

    Attributes:
        private: allow addresses that are not public.
        headers: sent to this URL alone, such as a token.
    """

    private: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class HttpClient:
    """Async HTTP client with bounds and keep-alive. Open it with `async with`.

    The proxy of the environment is used if there is one (`HTTPS_PROXY`, `NO_PROXY` and so on). It
    resolves names itself, so only literal addresses and hosts of this machine can be checked.
    """

    def __init__(self, bounds: Bounds, *, connections: int = 6) -> None:
        self.bytes = 0
        """Bytes of all bodies so far."""
        self._bounds = bounds
        self._connections = connections
        self._tls: ssl.SSLContext | None = None
        self._proxies = getproxies()
        self._pools: dict[tuple[str, bool, bool], httpcore2.AsyncConnectionPool] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            for pool in self._pools.values():
                await pool.aclose()
        self._pools.clear()

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        allow: Callable[[str], Hop],
        *,
        max_bytes: int,
        max_error_bytes: int = 0,
        content: bytes | None = None,
        follow: bool = True,
    ) -> Response:
        """Send a request, follow redirects, and read the whole response.

        Args:
            allow: returns the terms of each URL, or raises UnacceptableError.
            max_error_bytes: maximum size of a body without success; 0 leaves it unread.

        Raises:
            UnacceptableError: a URL is not allowed or leads to an address that is not public, there
                are too many redirects, or the body is too large.
            UnreachableError: there is no whole response in time.
            UsageError: the proxy of the environment cannot be used.
        """
        seconds = self._bounds.download_s
        try:
            with anyio.fail_after(seconds):
                for _ in range(self._bounds.redirects + 1):
                    hop = allow(url)
                    sent = _HEADERS | {**headers, **hop.headers}
                    response = await self._send(
                        method, url, sent, content, max_bytes, max_error_bytes, private=hop.private
                    )
                    if response.status not in _REDIRECTS or not follow:
                        return response
                    url = redirect_target(url, response.headers)
        except TimeoutError:
            raise UnreachableError(f"{shown(url)} took longer than {seconds:g} s") from None
        raise UnacceptableError(f"{shown(url)}: more than {self._bounds.redirects} redirects")

    async def _send(  # noqa: PLR0917, called once
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        max_bytes: int,
        max_error_bytes: int,
        *,
        private: bool,
    ) -> Response:
        """Send one request, read its response, and translate HTTP errors into SourceErrors."""
        parts = urlsplit(url)  # `httpcore2` itself would lose what follows a semicolon
        target = parts.path or "/"
        if parts.query:
            target += f"?{parts.query}"
        wait = self._bounds.read_s
        timeouts = {"connect": wait, "read": wait, "write": wait, "pool": self._bounds.download_s}
        send = partial(
            self._pool(url, private=private).stream,
            method,
            httpcore2.URL(
                scheme=parts.scheme, host=parts.hostname or "", port=parts.port, target=target
            ),
            headers=list(headers.items()),
            content=content,
            extensions={"timeout": timeouts},
        )
        try:
            async with AsyncExitStack() as stack:
                try:
                    stream = await stack.enter_async_context(send())
                except _DISCONNECTED:
                    # The server may have closed an idle connection just then (RFC 9112, 9.3.1).
                    if content is not None:
                        raise
                    stream = await stack.enter_async_context(send())
                received = _joined(stream.headers)
                is_success = 200 <= stream.status < 300
                most = max_bytes if is_success else max_error_bytes
                body = b""
                if method != "HEAD" and (is_success or most):
                    body = await self._read(shown(url), most, received, stream)
            return Response(stream.status, url, received, body)
        except httpcore2.TimeoutException:
            raise UnreachableError(f"{shown(url)} did not answer within {wait:g} s") from None
        except (httpcore2.ProtocolError, httpcore2.ReadError) as error:
            raise UnreachableError(
                f"{shown(url)} broke off or does not speak HTTP: {_line_of(error)}"
            ) from None
        except (httpcore2.NetworkError, httpcore2.ProxyError, OSError, *_BROKEN) as error:
            hint = ""
            if "WRONG_VERSION_NUMBER" in str(error):
                hint = "; it speaks plain HTTP there: write http://, or oci+http:// for a registry"
            reason = f"{shown(url)} cannot be reached: {_line_of(error)}{hint}"
            raise UnreachableError(reason) from None

    async def _read(
        self, named: str, most: int, headers: Mapping[str, str], stream: httpcore2.Response
    ) -> bytes:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:18]) > most:
            raise UnacceptableError(f"{named} has {length[:18]} bytes, at most {most} are taken")
        parts: list[bytes] = []
        size = 0
        async for part in stream.aiter_stream():
            size += len(part)
            if size > most:
                raise UnacceptableError(f"{named} has more than {most} bytes")
            self.bytes += len(part)
            if self.bytes > self._bounds.total_bytes:
                raise UnacceptableError(
                    f"all downloads together have more than {self._bounds.total_bytes} bytes"
                )
            parts.append(part)
        return b"".join(parts)

    def _pool(self, url: str, *, private: bool) -> httpcore2.AsyncConnectionPool:
        proxy = self._proxy(url)
        if not private and proxy:
            host = urlsplit(url).hostname or ""
            address = literal(host)
            if is_loopback(host) or (address is not None and not is_public(address)):
                raise _not_public(host, address or host)
        secure = url.startswith("https:")
        key = proxy, secure, private
        if key not in self._pools:
            # lazy: loading all certificates takes a while, and plain http needs none
            if secure and self._tls is None:
                self._tls = httpcore2.default_ssl_context()
            pool = partial(
                httpcore2.AsyncConnectionPool,
                ssl_context=self._tls,
                max_connections=self._connections,
                keepalive_expiry=_KEEP_ALIVE_S,
            )
            if proxy:
                self._pools[key] = pool(proxy=_proxy_of(proxy))
            else:
                self._pools[key] = pool(network_backend=_PinningBackend(private=private))
        return self._pools[key]

    def _proxy(self, url: str) -> str:
        """Return the proxy for this URL, or "" for none."""
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all") or ""
        if not proxy or proxy_bypass(parts.netloc):
            return ""
        if "://" not in proxy:
            return f"http://{proxy}"
        return proxy


class _PinningBackend(httpcore2.AsyncNetworkBackend):
    """Network backend that connects to a checked address, so no name is resolved twice."""

    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._plain = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109, the base class has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of the host that answers, if all of them are allowed."""
        addresses = (await self._addresses(host, port, timeout))[:_MAX_ADDRESSES]
        each_s = None if timeout is None else timeout / max(1, len(addresses))
        failed: Exception = httpcore2.ConnectError(f"the name {host} has no address")
        for address in addresses:
            try:
                return await self._plain.connect_tcp(
                    address, port, each_s, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def _addresses(self, host: str, port: int, timeout: float | None) -> list[str]:  # noqa: ASYNC109
        """Resolve a host; raise UnacceptableError if any of its addresses is not allowed."""
        try:
            with anyio.fail_after(timeout):
                addresses = await resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"no address for {host}") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError(f"the name {host} cannot be resolved") from None
        for address in addresses:
            if not self._private and not is_public(address):
                raise _not_public(host, address)
        return addresses


class Downloader(HttpClient):
    """Client of one site and its redirects. Only the origin of `home` gets `trust.headers`."""

    def __init__(self, settings: FetchSettings, home: str) -> None:
        super().__init__(settings.bounds, connections=settings.connections)
        self._home = wellknown.origin(home)
        self._trust = settings.trust

    async def get(
        self,
        url: str,
        most: int,
        *,
        accept: str = "*/*",
        validators: Mapping[str, str] | None = None,
    ) -> Response:
        """Download at most `most` bytes from this absolute URL, following redirects.

        The status is 200; or 304, if `validators` has headers such as If-None-Match.

        Raises:
            SourceError: as `check_status` and `HttpClient.request`.
        """
        headers = {"Accept": accept, **(validators or {})}
        response = await self.request("GET", url, headers, self.allow, max_bytes=most)
        if response.status in _NEEDS_PERMISSION:
            named = shown(response.url)
            fault = f"{named} asks for permission (status {response.status})"
            raise UnacceptableError(f"{fault}; --token-env sends a token")
        check_status(response, {200, 304} if validators else {200})
        return response

    def allow(self, url: str) -> Hop:
        """Return the terms of a URL, or raise UnacceptableError."""
        there, named = wellknown.origin(url), shown(url)
        own = {self._home, self._home.replace("http:", "https:", 1)}
        if there not in own | self._trust.origins:
            fault = f"{named} is of another origin than the site"
            raise UnacceptableError(f"{fault}; --fetch-origin {there} allows it")
        parts = urlsplit(url)
        if parts.scheme == "http" and not self._trust.http:
            if not is_loopback(parts.hostname or ""):
                raise UnacceptableError(f"{named} is plain http; --allow-http allows it")
            if not self._trust.private:
                raise UnacceptableError(f"{named} leads to this machine; --allow-private allows it")
        if there != self._home:
            return Hop(self._trust.private)
        return Hop(self._trust.private, dict(self._trust.headers))


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a host to its addresses with the system resolver; raise OSError for none."""
    infos = await anyio.getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


def redirect_target(url: str, headers: Mapping[str, str]) -> str:
    """Return the absolute URL of the Location in a response, or raise UnacceptableError."""
    location = headers.get("location")
    if location is None:
        raise UnacceptableError(f"{shown(url)} redirects to nowhere")
    try:
        return wellknown.absolute(url, location)
    except ValueError as error:
        raise UnacceptableError(f"{shown(url)} redirects to '{shown(location)}': {error}") from None


def check_status(response: Response, wanted: Collection[int], reason: str = "") -> None:
    """Raise unless a response has one of these statuses; `reason` ends an unknown one's message.

    Raises:
        AbsentError: the status is 404 or 410.
        UnreachableError: the status asks for a retry later.
        UnacceptableError: the status is any other.
    """
    status, named = response.status, shown(response.url)
    if status in wanted:
        return
    if status in _ABSENT:
        raise AbsentError(f"{named} is not there (status {status})")
    check_available(response)
    raise UnacceptableError(f"{named} answers with status {status}{reason}")


def check_available(response: Response) -> None:
    """Raise UnreachableError for a status that asks for a retry later (408, 425, 429, 5xx)."""
    if response.status in _NOT_NOW or response.status >= 500:
        status = f"status {response.status}"
        wait = _seconds(response.headers.get("retry-after", ""))
        if wait is not None:
            status += f", come again in {wait:.0f} s"
        raise UnreachableError(f"{shown(response.url)} does not answer now ({status})")


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _proxy_of(given: str) -> httpcore2.Proxy:
    parts = urlsplit(given)
    try:
        port = parts.port
    except ValueError:
        port = 0
    is_known = parts.scheme in {"http", "https", "socks5", "socks5h"}
    if not is_known or not parts.hostname or port == 0:
        fault = "the proxy of the environment is no http, https or socks5 URL"
        raise UsageError(f"{fault}; correct or unset HTTPS_PROXY")
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        raise UsageError("the proxy of the environment is SOCKS; install socksio, or unset it")
    auth = None
    if parts.username:
        auth = unquote(parts.username), unquote(parts.password or "")
    return httpcore2.Proxy(
        httpcore2.URL(scheme=parts.scheme, host=parts.hostname, port=port, target="/"), auth=auth
    )


def _not_public(host: str, address: str) -> UnacceptableError:
    if host == address:
        reason = f"{host} leads to an address that is not of the public internet"
    else:
        reason = f"{host} leads to {address}, which is not public"
    return UnacceptableError(f"{reason}; --allow-private allows it")


def _line_of(error: Exception) -> str:
    return clipped(printable(" ".join(str(error).split()))) or type(error).__name__


# Freshness (RFC 9111), as a private cache: `s-maxage` does not apply. WK-40


def _directives(headers: Mapping[str, str]) -> dict[str, str]:
    """Parse Cache-Control into lower-case directives; the first of a repeated one counts."""
    parts = headers.get("cache-control", "").lower().split(",")
    pairs = [part.strip().partition("=") for part in reversed(parts)]
    return {name: value.strip().strip('"') for name, _, value in pairs}


def fresh_s(headers: Mapping[str, str], now: float) -> float:
    """Return the freshness from `now` in seconds, at most `MAX_S`.

    0 if unspecified, for `no-cache` and `no-store`, and for malformed values.
    """
    directives = _directives(headers)
    life: float | None = None
    if "no-store" in directives or "no-cache" in directives:
        return 0.0
    if "max-age" in directives:
        life = _seconds(directives["max-age"])
    elif "expires" in headers:
        # measured from the answer's own date, for our clock may be another
        expires, date = _moment(headers["expires"]), _moment(headers.get("date", ""))
        life = expires and expires - (date or now)
    if life is None:
        return 0.0
    return min(max(life - (_seconds(headers.get("age", "")) or 0.0), 0.0), MAX_S)


def may_store(headers: Mapping[str, str]) -> bool:
    """Tell whether the response may be stored on disk."""
    return "no-store" not in _directives(headers)


def _seconds(text: str) -> float | None:
    # 15 digits: a float has no more, and `MAX_S` caps the value anyway.
    return float(text[:15]) if text.isascii() and text.isdigit() else None


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
