"""Download within limits of bytes, time, redirects and places, and believe nothing of what comes.

Every hop is checked before it is asked: its scheme, its origin, and the addresses of its host (`connections`). Bodies
are taken as they are: nothing is ever decompressed here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio

from mcp_skills_server import __version__
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.sources import addresses, caching
from mcp_skills_server.sources.connections import Connections, Resolve
from mcp_skills_server.sources.exchange import Exchange, slow
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.lines import Lines
from mcp_skills_server.sources.settings import Bounds, OriginPolicy
from mcp_skills_server.sources.urls import shown

if TYPE_CHECKING:
    import ssl

REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
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
        self._home = wellknown.origin(home)
        self._trust = trust or OriginPolicy()
        self._bounds = bounds or Bounds()
        self._exchange = Exchange(self._bounds)
        self._checked: dict[str, bool] = {}
        """The places that may be asked, and whether each is of the trusted origin."""
        self._connections = Connections(connections, private=self._trust.private, tls=tls, resolver=resolver)
        self._lines = Lines(self._connections, self._bounds, self._exchange.count)

    @property
    def bytes(self) -> int:
        """Bytes of all bodies so far."""
        return self._exchange.bytes

    async def __aenter__(self) -> Downloader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
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
        headers = {**_headers(accept), **(validators or {})}
        try:
            with anyio.fail_after(self._bounds.download_s):
                for _ in range(self._bounds.redirects + 1):
                    answer = await self._send_once(url, most, headers)
                    if isinstance(answer, Answer):
                        return answer
                    url = answer
        except TimeoutError:
            raise slow(url, self._bounds.download_s) from None
        raise UnacceptableError(f"{shown(url)}: more than {self._bounds.redirects} redirects")

    def get_plain(self, url: str, most: int) -> Answer | None:
        """The same for many threads of `anyio.to_thread` at once, which it blocks; None where `get` must be asked.

        Raises:
            UnacceptableError, UnreachableError: as for `get`.
        """
        self._check(url)
        found = self._lines.get(url, self._sent(url, _headers("*/*")), most)
        return None if found is None else Answer(url, found[1], found[0])

    def stop_plain(self) -> None:
        """Have every `get_plain` end at once, from now on with None."""
        self._lines.stop()

    async def _send_once(self, url: str, most: int, headers: Mapping[str, str]) -> Answer | str:
        """The answer of this address, or the one that it redirects to."""
        self._check(url)
        async with self._exchange.send("GET", url, self._sent(url, headers), self._connections) as (
            status,
            answered,
            stream,
        ):
            if status in REDIRECTS:
                return target(url, answered)
            if status == 304 and ("If-None-Match" in headers or "If-Modified-Since" in headers):
                return Answer(url, b"", answered, modified=False)
            _check_status(url, status, answered)
            return Answer(url, await self._exchange.body(url, most, answered, stream), answered)

    def _sent(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """These headers, and those that only the trusted origin gets."""
        return {**headers, **dict(self._trust.headers)} if self._checked[_place(url)] else dict(headers)

    def _check(self, url: str) -> None:
        """Refuse a place that the settings do not allow, before a name is resolved for it."""
        place = _place(url)
        if place in self._checked:
            return
        there = wellknown.origin(url)
        host = urlsplit(url).hostname or ""
        if there not in {self._home, self._home.replace("http:", "https:", 1)} and there not in self._trust.origins:
            raise UnacceptableError(
                f"{shown(url)} is of another origin than the site; --fetch-origin {there} allows it"
            )
        if urlsplit(url).scheme == "http" and not self._trust.http:
            if not addresses.is_loopback(host):
                raise UnacceptableError(
                    f"{shown(url)} is plain http, which anybody on the way can change; --allow-http"
                )
            if not self._trust.private:
                raise UnacceptableError(f"{shown(url)} leads to this machine; --allow-private allows it")
        self._connections.check(url)
        self._checked[place] = there == self._home


def _place(url: str) -> str:
    """What an absolute URL says of where to connect to, as it is spelled."""
    return "/".join(url.split("/", 3)[:3])


def _headers(accept: str) -> dict[str, str]:
    return {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": f"mcp-skills-server/{__version__}"}


def target(url: str, answered: Mapping[str, str]) -> str:
    """Where an answer redirects to.

    Raises:
        UnacceptableError: nowhere that can be asked.
    """
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
    check_now(url, status, answered)
    raise UnacceptableError(f"{shown(url)} answers with status {status}")


def check_now(url: str, status: int, answered: Mapping[str, str]) -> None:
    """Refuse a status that asks to come again.

    Raises:
        UnreachableError: it is one.
    """
    if status in _NOT_NOW or status >= 500:
        wait = caching.retry_after_s(answered, time.time())
        later = "" if wait is None else f", come again in {wait:.0f} s"
        raise UnreachableError(f"{shown(url)} does not answer now (status {status}{later})", wait)
