"""Conditions of admission over HTTP: Host and Origin against DNS rebinding, and tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.access.tokens import Token
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOST: Final = re.compile(
    r"(?:\[([0-9a-f]*:[0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE
)
_ORIGIN: Final = re.compile(r"https?://(.+)", re.IGNORECASE)
_ALLOWED_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*+://[^\s/?#]++")


@dataclass(frozen=True, slots=True)
class Policy:
    """The conditions of admission."""

    hosts: frozenset[str] | None  # names that the Host header may have, None for any
    origins: frozenset[str]  # of browsers, beside those of `hosts`; "*" for any
    tokens: Collection[Token] = ()  # with neither these nor `oauth` the server is open
    oauth: ResourceServer | None = None  # verifies the tokens of an issuer
    open_below: tuple[str, ...] = ()  # path prefixes that need no token
    open_at: frozenset[str] = frozenset()  # paths that need no token
    page: str | None = None  # path prefix of the page, which authenticates viewers itself

    def host_allowed(self, header: str | None) -> bool:
        """Return whether this Host header names the server."""
        return self.hosts is None or (header is not None and host_name(header) in self.hosts)

    def origin_allowed(self, header: str | None) -> bool:
        """Return whether this Origin header is allowed. Only browsers send one (MCP-45)."""
        if header is None or "*" in self.origins or header.lower() in self.origins:
            return True
        origin = _ORIGIN.fullmatch(header)
        return origin is not None and self.hosts is not None and host_name(origin[1]) in self.hosts

    def is_form_of_own_page(self, path: str, host: str, origin: str) -> bool:
        """Return whether the page sent this form to itself, on a server that requires tokens.

        The host name does not matter: after DNS rebinding a foreign page can send this form, but
        it has neither cookie nor token.
        """
        from_host = _ORIGIN.fullmatch(origin)
        return (
            not self.is_open
            and from_host is not None
            and from_host[1].lower() == host.lower()
            and self.page is not None
            and path.startswith(self.page)
        )

    def needs_no_token(self, path: str) -> bool:
        """Return whether this path is open to everybody."""
        return self.is_open or path.startswith(self.open_below) or path in self.open_at

    @property
    def is_open(self) -> bool:
        """Return whether requests need no authentication."""
        return not self.tokens and self.oauth is None


def make_policy(
    host: str,
    hosts: Iterable[str],
    origins: Iterable[str],
    tokens: Collection[Token],
    oauth: ResourceServer | None = None,
) -> Policy:
    """Return the policy for a server that listens on `host`.

    Raises:
        UsageError: the network could reach the server without an allow-list or a token, or an
            allowed host is no host name, or an allowed origin no origin.
    """
    named = frozenset(_host(name) for name in hosts)
    loopback = is_loopback(host)
    if not loopback and not named and not tokens and oauth is None:
        raise UsageError(
            f"refusing to listen on {host}, which others can reach: give --allowed-host with the "
            "name that clients use, or --token-file with the tokens that they must send"
        )
    allowed: frozenset[str] | None = named
    if loopback:
        allowed = named | {*LOOPBACK, _host(host)}
    if "*" in named or not allowed:  # without names a token is required: rebinding gains nothing
        allowed = None
    return Policy(allowed, frozenset(map(_origin, origins)), tokens, oauth)


def host_name(header: str) -> str | None:
    """Return the name in a Host header, in lower case without port; None for a malformed one."""
    # Not urlsplit: it also finds a host in `evil@localhost` and in `localhost/evil`, and raises
    # ValueError for others.
    match = _HOST.fullmatch(header)
    return (match[1] or match[2]).lower() if match else None


def _origin(given: str) -> str:
    origin = given.rstrip("/").lower()
    if origin not in {"*", "null"} and not _ALLOWED_ORIGIN.fullmatch(origin):
        example = "an origin such as https://app.example, or * for any"
        raise UsageError(f"--allowed-origin takes {example}, not {given!r}")
    return origin


def _host(host: str) -> str:
    if host == "*":
        return host
    name = host_name(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host)
    if name is None:
        raise UsageError(
            "--allowed-host takes a host name such as mcp.example.com, or * for any host, not "
            f"{host!r}"
        )
    return name
