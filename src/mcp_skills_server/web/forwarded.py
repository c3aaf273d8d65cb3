"""Requests behind a reverse proxy: which proxies are trusted, and the path that stands before ours.

uvicorn's middleware reads `X-Forwarded-For` and `X-Forwarded-Proto` of a trusted proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, ip_network
from typing import Final

from starlette.responses import RedirectResponse
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.errors import UsageError

PREFIX: Final = "mcp_skills_server.prefix"
"""Where the ASGI scope has what stands before all paths that clients see."""

_LONGEST_PREFIX: Final = 256
_WELL_KNOWN: Final = "/.well-known/"
_INSERTED: Final = "/.well-known/oauth-protected-resource"
"""What stands before the path of the endpoint, and so before the prefix too (RFC 9728 3.1)."""
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]++)+", re.ASCII)


def trusted_networks(given: Iterable[str]) -> list[str]:
    """Return what `--trusted-proxy` gives as uvicorn takes it.

    Raises:
        UsageError: one is neither an address nor a network.
    """
    out: list[str] = []
    for each in given:
        try:
            network = ip_network(each.strip())
        except ValueError as error:
            reason = " (it has bits beyond its length)" if "host bits" in str(error) else ""
            raise UsageError(
                "--trusted-proxy takes an address or a network such as 10.0.0.0/8, not "
                f"{each!r}{reason}"
            ) from None
        out.append(str(network))
        if isinstance(network, IPv4Network):  # as a listener for both families sees it
            out.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return out


def checked_prefix(path: str) -> str:
    """Return what `--root-path` gives, without a slash at the end; "" for none.

    Raises:
        UsageError: it is no path that can stand before others.
    """
    path = path.removesuffix("/")
    is_path = len(path) <= _LONGEST_PREFIX and _PATH.fullmatch(path) is not None
    if path and (
        not is_path or {".", ".."} & {*path.split("/")} or f"{path}/".startswith(_WELL_KNOWN)
    ):
        raise UsageError(
            f"--root-path takes a path such as /skills, of letters, digits and -._~, not {path!r}"
        )
    return path


class RootPath:
    """ASGI middleware that strips a path's prefix, whether a proxy has stripped it or not."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            path: str = scope["path"]
            for before in ("", _INSERTED):
                if path.startswith(f"{before}{self._prefix}/"):
                    path = before + path[len(before) + len(self._prefix) :]
            scope = {**scope, PREFIX: self._prefix, "path": path}
        await self._app(scope, receive, send)


def redirect_relatively(router: Router) -> None:
    """Redirect a path with a trailing slash, without naming a host: proxies may change it."""
    router.redirect_slashes = False
    otherwise = router.default

    async def without_slash(scope: Scope, receive: Receive, send: Send) -> None:
        answer = otherwise
        path: str = scope.get("path", "").rstrip("/")
        if scope["type"] == "http" and path and path != scope["path"]:
            there = {**scope, "path": path}
            if any(route.matches(there)[0] is not Match.NONE for route in router.routes):
                url = scope.get(PREFIX, "") + path
                if scope["query_string"]:
                    url += "?" + scope["query_string"].decode("latin-1")
                answer = RedirectResponse(url)
        await answer(scope, receive, send)

    router.default = without_slash
