"""One class that downloads, within limits of bytes, time, redirects and places, and believes nothing of what it gets.

Every hop is checked before it is asked: its scheme, its origin, and each address that its host resolves to. The
connection then goes to an address that was checked, so a name server that answers otherwise a moment later gains
nothing; certificates are still proved by name. Bodies are taken as they are: nothing is ever decompressed here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpcore2

from mcp_skills_server import __version__
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.sources import addresses, caching
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.urls import shown

if TYPE_CHECKING:
    import ssl

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to numeric addresses."""

_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_ABSENT: Final = frozenset((404, 410))
_NEEDS_LEAVE: Final = frozenset((401, 403, 407))
_NOT_NOW: Final = frozenset((408, 425, 429))
_KEEP_ALIVE_S: Final = 4.0
"""Shorter than most servers' own, so that they seldom close a connection that is about to be used."""


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """Where a download may go.

    Attributes:
        origins: other origins than that of the index, as `wellknown.origin` spells them (WK-57).
        private: addresses that are not of the public internet, too.
        http: plain http, too. On this machine it needs no more than `private`.
        headers: sent to the origin of the index and to no other, such as a token.
    """

    origins: frozenset[str] = frozenset()
    private: bool = False
    http: bool = False
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What downloads may cost.

    Attributes:
        read_s: seconds for a connection and for each read.
        download_s: seconds for one download, its redirects included; a server that drips gets no more.
        redirects: hops of one download.
        total_bytes: bytes of all downloads of one Downloader.
    """

    read_s: float = 10.0
    download_s: float = 60.0
    redirects: int = 5
    total_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Answer:
    """What came.

    Attributes:
        url: the address that answered, after redirects.
        raw: the body, its Content-Encoding untouched; empty when not modified.
        headers: names in lower case; of one that stands several times, the values with commas between.
        modified: False for 304, when the caller's validators still hold.
    """

    url: str
    raw: bytes
    headers: Mapping[str, str]
    modified: bool = True

    @property
    def is_html(self) -> bool:
        """Whether it is a web page, whatever was asked for."""
        told = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return told == "text/html" or self.raw[:256].lstrip().lower().startswith((b"<!doctype html", b"<html"))

    @property
    def encoding(self) -> str:
        """The Content-Encoding, "" where there is none."""
        told = self.headers.get("content-encoding", "").strip().lower()
        return "" if told == "identity" else told


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as this machine finds them.

    Raises:
        OSError: there are none.
    """
    found = await anyio.getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Downloader:
    """GET within limits. Open it with `async with`; it keeps connections for what follows.

    A proxy that the environment names is used (`HTTPS_PROXY`, `NO_PROXY` and so on). It resolves names by itself, so
    behind one only hosts that are spelled as addresses, and those of this machine, can be checked.

    Args:
        home: the URL that the caller was given; its origin is trusted and alone gets `trust.headers`.
        trust: where to go.
        bounds: what it may cost.
        connections: how many at once.
        tls: for other certificates than the system's.
        resolver: for other names than the system's.
    """

    def __init__(
        self,
        home: str,
        trust: OriginPolicy | None = None,
        bounds: Bounds | None = None,
        *,
        connections: int = 6,
        tls: ssl.SSLContext | None = None,
        resolver: Resolve | None = None,
    ) -> None:
        self.bytes = 0
        """Bytes of all bodies so far."""
        self._home = wellknown.origin(home)
        self._trust = trust or OriginPolicy()
        self._bounds = bounds or Bounds()
        self._connections = connections
        self._tls = tls
        self._backend = _CheckedBackend(resolver or resolve, private=self._trust.private)
        self._pools: dict[tuple[str, bool], httpcore2.AsyncConnectionPool] = {}
        self._proxies = getproxies()

    async def __aenter__(self) -> Downloader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools.values():
            with anyio.CancelScope(shield=True):
                await pool.aclose()
        self._pools.clear()

    async def get(
        self, url: str, most: int, *, accept: str = "*/*", validators: Mapping[str, str] | None = None
    ) -> Answer:
        """What this absolute URL answers, redirects followed (WK-39). At most `most` bytes.

        `validators` are headers such as If-None-Match; only with them may the answer be "not modified".

        Raises:
            AbsentError: 404 or 410.
            UnacceptableError: where it leads is not allowed, it is too large, or the status is none of success.
            UnreachableError: no whole answer in time, or a status that asks to come again.
        """
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": f"mcp-skills-server/{__version__}"}
        headers |= validators or {}
        try:
            with anyio.fail_after(self._bounds.download_s):
                for _ in range(self._bounds.redirects + 1):
                    answer = await self._send_once(url, most, headers)
                    if isinstance(answer, Answer):
                        return answer
                    url = answer
        except TimeoutError:
            raise UnreachableError(f"{shown(url)} took longer than {self._bounds.download_s:g} s") from None
        raise UnacceptableError(f"{shown(url)}: more than {self._bounds.redirects} redirects")

    async def _send_once(self, url: str, most: int, headers: Mapping[str, str]) -> Answer | str:
        """The answer of this address, or the one that it redirects to."""
        self._check(url)
        sent = dict(headers)
        if wellknown.origin(url) == self._home:
            sent |= dict(self._trust.headers)
        async with self._stream(url, sent) as (status, told, stream):
            if status in _REDIRECTS:
                return _target(url, told)
            if status == 304 and ("If-None-Match" in headers or "If-Modified-Since" in headers):
                return Answer(url, b"", told, modified=False)
            _check_status(url, status, told)
            return Answer(url, await self._body(url, most, told, stream), told)

    def _check(self, url: str) -> None:
        """Refuse a place that the settings do not allow, before a name is resolved for it."""
        there = wellknown.origin(url)
        host = urlsplit(url).hostname or ""
        if there not in {self._home, self._home.replace("http:", "https:", 1)} and there not in self._trust.origins:
            raise UnacceptableError(
                f"{shown(url)} is of another origin than {self._home}; --fetch-origin {there} allows it"
            )
        if urlsplit(url).scheme == "http" and not self._trust.http:
            if not addresses.is_loopback(host):
                raise UnacceptableError(
                    f"{shown(url)} is plain http, which anybody on the way can change; --allow-http"
                )
            if not self._trust.private:
                raise UnacceptableError(f"{shown(url)} leads to this machine; --allow-private allows it")
        if not self._trust.private and self._proxy(url):
            # The proxy resolves the name. What its spelling alone gives away is refused here.
            address = addresses.literal(host)
            if addresses.is_loopback(host) or (address is not None and not addresses.is_public(address)):
                raise _not_public(host, address or host)

    def _proxy(self, url: str) -> str:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all") or ""
        if not proxy or proxy_bypass(parts.netloc):
            return ""
        return proxy if "://" in proxy else f"http://{proxy}"

    def _pool(self, url: str) -> httpcore2.AsyncConnectionPool:
        proxy, tls = self._proxy(url), url.startswith("https:")
        pool = self._pools.get((proxy, tls))
        if pool is None:
            if tls and self._tls is None:  # not for plain http: to read all certificates takes a while
                self._tls = httpcore2.default_ssl_context()
            ways: dict[str, Any] = {"proxy": _proxy_of(proxy)} if proxy else {"network_backend": self._backend}
            pool = self._pools[proxy, tls] = httpcore2.AsyncConnectionPool(
                ssl_context=self._tls,
                max_connections=self._connections,
                max_keepalive_connections=self._connections,
                keepalive_expiry=_KEEP_ALIVE_S,
                **ways,
            )
        return pool

    @asynccontextmanager
    async def _stream(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[int, dict[str, str], httpcore2.Response]]:
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        place = httpcore2.URL(
            scheme=parts.scheme, host=parts.hostname or "", port=parts.port, target=target.encode("ascii")
        )
        wait = self._bounds.read_s
        timeouts = {"connect": wait, "read": wait, "write": wait, "pool": self._bounds.download_s}
        sent = list(headers.items())
        extensions = {"timeout": timeouts}
        try:
            pool = self._pool(url)
            async with pool.stream("GET", place, headers=sent, extensions=extensions) as response:
                told: dict[str, str] = {}
                for raw_name, raw_value in response.headers:
                    name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
                    told[name] = f"{told[name]}, {value}" if name in told else value
                yield response.status, told, response
        except UnreachableError:
            raise
        except httpcore2.TimeoutException:
            raise UnreachableError(f"{shown(url)} did not answer within {wait:g} s") from None
        except httpcore2.ProtocolError as error:
            raise UnreachableError(f"{shown(url)} broke off or does not speak HTTP: {_first_line(error)}") from None
        except (httpcore2.NetworkError, httpcore2.ProxyError, OSError, *_BROKEN) as error:
            raise UnreachableError(f"{shown(url)} cannot be reached: {_first_line(error)}") from None
        except httpcore2.UnsupportedProtocol as error:
            raise UsageError(f"the proxy of the environment cannot be used: {_first_line(error)}") from None

    async def _body(self, url: str, most: int, told: Mapping[str, str], response: httpcore2.Response) -> bytes:
        length = told.get("content-length", "")
        if length.isdigit() and int(length[:18]) > most:
            raise UnacceptableError(f"{shown(url)} has {length[:18]} bytes, at most {most} are taken")
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_stream():
            size += len(part)
            self.bytes += len(part)
            if size > most:
                raise UnacceptableError(f"{shown(url)} has more than {most} bytes")
            if self.bytes > self._bounds.total_bytes:
                raise UnacceptableError(f"all downloads together have more than {self._bounds.total_bytes} bytes")
            parts.append(part)
        return b"".join(parts)


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to an address that was looked at, never to a name that could be resolved anew."""

    def __init__(self, resolver: Resolve, *, private: bool) -> None:
        self._resolve = resolver
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
        """A connection to one of the host's addresses, when all of them may be connected to."""
        try:
            with anyio.fail_after(timeout):
                found = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"no address for {host}") from None
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError(f"the name {host} cannot be resolved") from None
        bad = None if self._private else addresses.refused(found)
        if bad is not None:
            raise _not_public(host, bad)
        each_s = None if timeout is None else timeout / max(1, min(len(found), 4))
        failed: Exception = httpcore2.ConnectError(f"the name {host} has no address")
        for address in found[:4]:
            try:
                return await self._plain.connect_tcp(address, port, each_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed


def _not_public(host: str, address: str) -> UnacceptableError:
    what = f"{host} leads" if host == address else f"{host} leads to {address},"
    said = "to an address that is not of the public internet" if host == address else "which is not public"
    return UnacceptableError(f"{what} {said}; --allow-private allows it")


def _target(url: str, told: Mapping[str, str]) -> str:
    location = told.get("location")
    if location is None:
        raise UnacceptableError(f"{shown(url)} redirects to nowhere")
    try:
        return wellknown.absolute(url, location)
    except ValueError as error:
        raise UnacceptableError(f"{shown(url)} redirects to '{shown(location)}': {error}") from None


def _check_status(url: str, status: int, told: Mapping[str, str]) -> None:
    if status == 200:
        return
    if status in _ABSENT:
        raise AbsentError(f"{shown(url)} is not there (status {status})")
    if status in _NEEDS_LEAVE:
        raise UnacceptableError(f"{shown(url)} asks for permission (status {status}); --token-env sends a token")
    if status in _NOT_NOW or status >= 500:
        wait = caching.retry_after_s(told, time.time())
        later = "" if wait is None else f", come again in {wait:.0f} s"
        raise UnreachableError(f"{shown(url)} does not answer now (status {status}{later})", wait)
    raise UnacceptableError(f"{shown(url)} answers with status {status}")


def _proxy_of(given: str) -> httpcore2.Proxy:
    parts = urlsplit(given)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https", "socks5", "socks5h"} or not parts.hostname or port == 0:
        raise UsageError(
            "the proxy of the environment is no http, https or socks5 URL; correct HTTPS_PROXY or unset it"
        )
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        raise UsageError("the proxy of the environment is SOCKS, which needs the package socksio")
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return httpcore2.Proxy(httpcore2.URL(scheme=parts.scheme, host=parts.hostname, port=port, target="/"), auth=auth)


def _first_line(error: Exception) -> str:
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."
