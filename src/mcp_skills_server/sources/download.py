"""Download within limits of bytes, time, redirects and places, and believe nothing of what comes.

Every hop is checked before it is asked: its scheme, its origin, and the addresses of its host (`connections`). Bodies
are taken as they are: nothing is ever decompressed here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio
import httpcore2

from mcp_skills_server import __version__
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.sources import addresses, caching
from mcp_skills_server.sources.connections import Connections, Resolve
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.settings import Bounds, OriginPolicy
from mcp_skills_server.sources.urls import shown

if TYPE_CHECKING:
    import ssl

_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_ABSENT: Final = frozenset((404, 410))
_NEEDS_PERMISSION: Final = frozenset((401, 403, 407))
_NOT_NOW: Final = frozenset((408, 425, 429))


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
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "text/html" or self.raw[:256].lstrip().lower().startswith((b"<!doctype html", b"<html"))

    @property
    def encoding(self) -> str:
        """The Content-Encoding, "" where there is none."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        return "" if encoding == "identity" else encoding


class Downloader:
    """GET within limits. Open it with `async with`; it keeps connections for what follows.

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
        self._connections = Connections(connections, private=self._trust.private, tls=tls, resolver=resolver)

    async def __aenter__(self) -> Downloader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connections.close()

    async def get(
        self, url: str, most: int, *, accept: str = "*/*", validators: Mapping[str, str] | None = None
    ) -> Answer:
        """What this absolute URL answers, redirects followed. At most `most` bytes.

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
        async with self._stream(url, sent) as (status, answered, stream):
            if status in _REDIRECTS:
                return _target(url, answered)
            if status == 304 and ("If-None-Match" in headers or "If-Modified-Since" in headers):
                return Answer(url, b"", answered, modified=False)
            _check_status(url, status, answered)
            return Answer(url, await self._body(url, most, answered, stream), answered)

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
        self._connections.check(url)

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
            async with (
                self._connections.lent(url) as pool,
                pool.stream("GET", place, headers=sent, extensions=extensions) as response,
            ):
                found: dict[str, str] = {}
                for raw_name, raw_value in response.headers:
                    name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
                    found[name] = f"{found[name]}, {value}" if name in found else value
                yield response.status, found, response
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

    async def _body(self, url: str, most: int, answered: Mapping[str, str], response: httpcore2.Response) -> bytes:
        length = answered.get("content-length", "")
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


def _target(url: str, answered: Mapping[str, str]) -> str:
    location = answered.get("location")
    if location is None:
        raise UnacceptableError(f"{shown(url)} redirects to nowhere")
    try:
        return wellknown.absolute(url, location)
    except ValueError as error:
        raise UnacceptableError(f"{shown(url)} redirects to '{shown(location)}': {error}") from None


def _check_status(url: str, status: int, answered: Mapping[str, str]) -> None:
    if status == 200:
        return
    if status in _ABSENT:
        raise AbsentError(f"{shown(url)} is not there (status {status})")
    if status in _NEEDS_PERMISSION:
        raise UnacceptableError(f"{shown(url)} asks for permission (status {status}); --token-env sends a token")
    if status in _NOT_NOW or status >= 500:
        wait = caching.retry_after_s(answered, time.time())
        later = "" if wait is None else f", come again in {wait:.0f} s"
        raise UnreachableError(f"{shown(url)} does not answer now (status {status}{later})", wait)
    raise UnacceptableError(f"{shown(url)} answers with status {status}")


def _first_line(error: Exception) -> str:
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."
