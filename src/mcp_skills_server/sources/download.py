"""GET requests to the site that an operator named: origin allow-list, plain http, and what each status means.

The policy is judged for every hop of a redirect, before a name is resolved for it. See `http` for the client.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.sources import addresses, caching
from mcp_skills_server.sources.faults import AbsentError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.http import Hop, HttpClient, Response
from mcp_skills_server.sources.settings import OriginPolicy
from mcp_skills_server.sources.urls import shown

_ABSENT: Final = frozenset((404, 410))
_NEEDS_PERMISSION: Final = frozenset((401, 403, 407))
_NOT_NOW: Final = frozenset((408, 425, 429))


class Downloader:
    """Downloads from one site, and from where it may lead.

    Args:
        http: the client that is used.
        home: the URL that the operator gave. Its origin is trusted, and gets `trust.headers` alone.
        trust: the origins and addresses that may be requested besides.
    """

    def __init__(self, http: HttpClient, home: str, trust: OriginPolicy) -> None:
        self.http: Final = http
        self._home = wellknown.origin(home)
        self._trust = trust

    async def get(
        self, url: str, most: int, *, accept: str = "*/*", validators: Mapping[str, str] | None = None
    ) -> Response:
        """Download at most `most` bytes from this absolute URL, following redirects.

        The status is 200; or 304, if `validators` has headers such as If-None-Match.

        Raises:
            AbsentError: 404 or 410.
            UnacceptableError: it leads to where it may not, is too large, or the status is none of success.
            UnreachableError: there is no whole response in time, or the status asks to come again.
        """
        headers = {"Accept": accept, **(validators or {})}
        found = await self.http.request("GET", url, headers, self._allow, max_bytes=most)
        if found.status == 200 or (found.status == 304 and validators):
            return found
        named = shown(found.url)
        if found.status in _ABSENT:
            raise AbsentError(f"{named} is not there (status {found.status})")
        if found.status in _NEEDS_PERMISSION:
            raise UnacceptableError(f"{named} asks for permission (status {found.status}); --token-env sends a token")
        check_now(found)
        raise UnacceptableError(f"{named} answers with status {found.status}")

    def _allow(self, url: str) -> Hop:
        """Refuse a URL that the settings do not allow."""
        there = wellknown.origin(url)
        if there not in {self._home, self._home.replace("http:", "https:", 1)} and there not in self._trust.origins:
            raise UnacceptableError(
                f"{shown(url)} is of another origin than the site; --fetch-origin {there} allows it"
            )
        parts = urlsplit(url)
        if parts.scheme == "http" and not self._trust.http:
            if not addresses.is_loopback(parts.hostname or ""):
                raise UnacceptableError(
                    f"{shown(url)} is plain http, which anybody on the way can change; --allow-http"
                )
            if not self._trust.private:
                raise UnacceptableError(f"{shown(url)} leads to this machine; --allow-private allows it")
        headers = dict(self._trust.headers) if there == self._home else {}
        return Hop(self._trust.private, headers)


def check_now(response: Response) -> None:
    """Refuse a status that asks to come again.

    Raises:
        UnreachableError: it does.
    """
    if response.status in _NOT_NOW or response.status >= 500:
        wait = caching.retry_after_s(response.headers, time.time())
        later = "" if wait is None else f", come again in {wait:.0f} s"
        raise UnreachableError(f"{shown(response.url)} does not answer now (status {response.status}{later})", wait)
