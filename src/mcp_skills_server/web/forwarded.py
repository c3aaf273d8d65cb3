"""Requests behind a reverse proxy: the trusted proxies, and the path prefix.

uvicorn's middleware reads `X-Forwarded-For` and `X-Forwarded-Proto` of a trusted proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, ip_network
from typing import Final

from starlette.responses import RedirectResponse
from starlette.routing import Match, Router
from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.settings import WELL_KNOWN
from mcp_skills_server.errors import UsageError

PREFIX: Final = "mcp_skills_server.prefix"
"""Key of the path prefix in the ASGI scope."""

_MAX_PREFIX: Final = 256
_RESERVED: Final = "/.well-known/"
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]++)+", re.ASCII)


def trusted_networks(given: Iterable[str]) -> list[str]:
    """Return the values of `--trusted-proxy` as uvicorn accepts them.

    Raises:
        UsageError: one is neither an address nor a network.
    """
    out: list[str] = []
    for text in given:
        try:
            network = ip_network(text.strip())
        except ValueError as error:
            reason = " (it has bits beyond its length)" if "host bits" in str(error) else ""
            raise UsageError(
                "--trusted-proxy takes an address or a network such as 10.0.0.0/8, not "
                f"{text!r}{reason}"
            ) from None
        out.append(str(network))
        if isinstance(network, IPv4Network):  # as a dual-stack socket sees it
            out.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return out


def checked_prefix(path: str) -> str:
    """Return the value of `--root-path` without a trailing slash; "" for none.

    Raises:
        UsageError: it cannot be a path prefix.
    """
    path = path.removesuffix("/")
    is_path = len(path) <= _MAX_PREFIX and _PATH.fullmatch(path) is not None
    has_dots = not {".", ".."}.isdisjoint(path.split("/"))
    is_reserved = f"{path}/".startswith(_RESERVED)
    if path and (not is_path or has_dots or is_reserved):
        raise UsageError(
            f"--root-path takes a path such as /skills, of letters, digits and -._~, not {path!r}"
        )
    return path


def strip_prefix(scope: Scope, prefix: str) -> None:
    """Strip the path prefix from a request, unless the proxy has stripped it already."""
    path: str = scope["path"]
    # RFC 9728 3.1: clients insert the well-known path before the endpoint's path and its prefix.
    for before in ("", WELL_KNOWN):
        if path.startswith(f"{before}{prefix}/"):
            path = before + path[len(before) + len(prefix) :]
    scope[PREFIX], scope["path"] = prefix, path


def redirect_relatively(router: Router) -> None:
    """Redirect paths with a trailing slash to a URL without a host, which a proxy may change."""
    router.redirect_slashes = False
    otherwise = router.default

    async def without_slash(scope: Scope, receive: Receive, send: Send) -> None:
        app = otherwise
        path: str = scope.get("path", "").rstrip("/")
        if scope["type"] == "http" and path and path != scope["path"]:
            target = {**scope, "path": path}
            if any(route.matches(target)[0] is not Match.NONE for route in router.routes):
                url = scope.get(PREFIX, "") + path
                if scope["query_string"]:
                    url += "?" + scope["query_string"].decode("latin-1")
                app = RedirectResponse(url)
        await app(scope, receive, send)

    router.default = without_slash
