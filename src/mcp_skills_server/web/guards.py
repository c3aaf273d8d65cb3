"""Who may come in: Host and Origin against DNS rebinding, bearer tokens against strangers.

Pure ASGI around the endpoints, so that a refusal costs nothing. Tokens are compared in constant time and never
logged; the name that the operator gave one is. Who is let in is counted: by the token, else by the address.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.server.callers import PRINCIPAL
from mcp_skills_server.web.places import PLACE, Place

logger = logging.getLogger(__name__)

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS: Final = frozenset(("/healthz", "/readyz"))
"""Probes come from whatever runs the container, under any Host and without a token."""
_PAGE: Final = "/ui/"
"""What a person looks at in a browser; it asks who looks by itself."""
_LOOKED_AT: Final = frozenset((b"host", b"origin", b"authorization"))
_WANTED: Final = "A bearer token is required"
_SHORTEST_TOKEN: Final = 16
_LONGEST_FILE: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]+")
_HOST: Final = re.compile(r"(?:\[([0-9a-f]*:[0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)
_ORIGIN: Final = re.compile(r"https?://(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that lets its bearer in. Kept as a hash, so that it cannot be logged by accident.

    Attributes:
        name: what the log calls it.
        hashed: SHA-256 of the token.
    """

    name: str
    hashed: bytes

    @property
    def principal(self) -> Principal:
        """Who its bearer is."""
        return Principal("token", self.name)


class Tokens(Collection[Token]):
    """The tokens in force, which may be replaced by others while requests are answered, from any thread.

    Args:
        tokens: those of the start. An open server stays open, and one that wants tokens never becomes open.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = tuple(tokens)
        self.removed: Callable[[frozenset[bytes]], object] = bool
        """Called by `replace` with the hashes of the tokens that no longer let anybody in."""

    def __iter__(self) -> Iterator[Token]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._tokens

    def replace(self, tokens: Sequence[Token]) -> None:
        """Let these in from now on, and end what the bearers of the others have open.

        Raises:
            ValueError: the server was open or would be.
        """
        if not tokens or not self._tokens:
            raise ValueError("tokens replace tokens")
        before, self._tokens = self._tokens, tuple(tokens)
        gone = frozenset(each.hashed for each in before) - {each.hashed for each in tokens}
        if gone:
            self.removed(gone)


def is_loopback(host: str) -> bool:
    """Whether listening on this address reaches this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_tokens(text: str, source: str) -> list[Token]:
    """Tokens out of lines `name=token`; blank lines and lines that begin with # are passed over.

    Raises:
        UsageError: a line is not of that form, a token is too short or no header can carry it, or a name stands
            twice. Never shows a token.
    """
    out: list[Token] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, secret = line.partition("=")
        name, secret = name.strip(), secret.strip()
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(f"{source}, line {number}: write name=token")
        if len(secret) < _SHORTEST_TOKEN:
            raise UsageError(f"{source}, line {number}: the token has fewer than {_SHORTEST_TOKEN} characters")
        if not (secret.isascii() and secret.isprintable()):
            raise UsageError(f"{source}, line {number}: the token has characters that are not printable ASCII")
        if any(token.name == name for token in out):
            raise UsageError(f"{source}, line {number}: the name {name} stands twice")
        out.append(Token(name, hashlib.sha256(secret.encode()).digest()))
    if not out:
        raise UsageError(f"{source}: there is no token; write lines name=token")
    return out


def read_token_file(path: str) -> list[Token]:
    """The tokens of a file. That others may read it is a line in the log.

    Raises:
        UsageError: it cannot be read, or what it says is no tokens.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o007:
                logger.warning("%s can be read by every user of this machine; chmod o-rwx it", path)
            text = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path}: the tokens cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the tokens cannot be read (not UTF-8)") from None
    if len(text) > _LONGEST_FILE:
        raise UsageError(f"{path}: too long to be tokens")
    return read_tokens(text, path)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a request must carry.

    Attributes:
        hosts: names that the Host header may have, None for any.
        origins: origins that a browser may come from, beside those of `hosts`; "*" for any.
        tokens: one of them must be borne; none for an open server.
        open_below: what the paths begin with for which no token is wanted.
    """

    hosts: frozenset[str] | None
    origins: frozenset[str]
    tokens: Collection[Token] = ()
    open_below: tuple[str, ...] = ()

    def host_allowed(self, header: str | None) -> bool:
        """Whether this Host header names the server."""
        return self.hosts is None or (header is not None and _host_name(header) in self.hosts)

    def origin_allowed(self, header: str | None) -> bool:
        """Whether a request from this Origin may pass; one without Origin comes from no browser (MCP-45)."""
        if header is None or "*" in self.origins or header.lower() in self.origins:
            return True
        origin = _ORIGIN.fullmatch(header)
        return origin is not None and self.hosts is not None and _host_name(origin[1]) in self.hosts

    def bearer(self, header: str | None) -> Token | None:
        """The token that an Authorization header bears. Takes the same time whichever it is, or none."""
        scheme, _, secret = (header or "").partition(" ")
        hashed = hashlib.sha256(secret.strip().encode("utf-8", "surrogateescape")).digest()
        found: Token | None = None
        for token in self.tokens:
            if hmac.compare_digest(token.hashed, hashed):
                found = token
        return found if scheme.lower() == "bearer" else None


def make_policy(host: str, hosts: Iterable[str], origins: Iterable[str], tokens: Collection[Token]) -> Policy:
    """The policy for a server that listens on `host`.

    Raises:
        UsageError: it would be open to the network without an allow-list or a token, or a host is no host name.
    """
    named = frozenset(_bare(each) for each in hosts)
    loopback = is_loopback(host)
    if not loopback and not named and not tokens:
        raise UsageError(
            f"refusing to listen on {host}, which others can reach: give --allowed-host with the name that clients "
            "use, or --token-file with the tokens that they must bear"
        )
    allowed: frozenset[str] | None
    if "*" in named or (not named and not loopback):
        allowed = None
    else:
        allowed = named | (frozenset(LOOPBACK) if loopback else frozenset[str]())
    return Policy(allowed, frozenset(each.rstrip("/").lower() for each in origins), tokens)


class Guard:
    """ASGI middleware that keeps a policy."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy
        self._open: dict[bytes, set[anyio.CancelScope]] = {}
        """What is being answered, by the hash of the token that let it in."""
        self._loop: asyncio.AbstractEventLoop | None = None
        if isinstance(policy.tokens, Tokens):
            policy.tokens.removed = self._shut_out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 403 or 401, or hand on with the bearer as the user."""
        if scope["type"] != "http" or (scope["path"] in OPEN_PATHS and not scope.get("query_string")):
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _LOOKED_AT}
        policy = self._policy
        if not policy.host_allowed(headers.get(b"host")):
            logger.warning("refused Host %.100r; --allowed-host admits it", headers.get(b"host"), extra=REPEATS)
            await _refuse(send, 403, "This Host is not served here")
        elif not policy.origin_allowed(headers.get(b"origin")) and not _is_form_of_own_page(scope, policy, headers):
            logger.warning("refused Origin %.100r; --allowed-origin admits it", headers.get(b"origin"), extra=REPEATS)
            await _refuse(send, 403, "This Origin may not come in")
        elif not policy.tokens or scope["path"].startswith(policy.open_below):
            await self._hand_on(scope, receive, send, None)
        elif (token := policy.bearer(headers.get(b"authorization"))) is None:
            logger.warning("refused a request without a token that lets it in", extra=REPEATS)
            await _refuse(send, 401, _WANTED)
        else:
            logger.debug("%s by the bearer of %s", scope["method"], token.name)
            # The SDK binds a session to the user who opened it.
            who = token.principal
            user = AuthenticatedUser(AccessToken(token=who.key, client_id=who.key, scopes=[]))
            await self._answer({**scope, "user": user, PRINCIPAL: who}, receive, send, token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, token: Token) -> None:
        """Hand on what a bearer sends, until it is answered or the token is taken away."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self._loop = asyncio.get_running_loop()
        mine = self._open.setdefault(token.hashed, set())
        with anyio.CancelScope() as until_removed:
            mine.add(until_removed)
            try:
                await self._hand_on(scope, receive, sending, token)
            finally:
                mine.discard(until_removed)
        if until_removed.cancelled_caught:
            with suppress(RuntimeError):  # it had been answered to the end
                await (send({"type": "http.response.body", "body": b""}) if started else _refuse(send, 401, _WANTED))

    def _shut_out(self, removed: frozenset[bytes]) -> None:
        """End what the bearers of these tokens have open, from any thread."""

        def end() -> None:
            for each in [scope for hashed in removed for scope in self._open.pop(hashed, ())]:
                each.cancel()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(end)

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send, token: Token | None) -> None:
        place: Place | None = scope.get("state", {}).get(PLACE)
        if place is None or place.admitted(token.principal.key if token else None):
            await self._app(scope, receive, send)
        else:
            await _refuse(send, 503, "All connections are busy; try again in a moment")


async def _refuse(send: Send, status: int, message: str) -> None:
    code = -32603 if status == 503 else -32600
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="mcp-skills-server"'))
    elif status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_form_of_own_page(scope: Scope, policy: Policy, headers: Mapping[bytes, str]) -> bool:
    """Whether it is what the page sends to itself, under whatever name it was reached: where tokens are wanted.

    Somebody who had a browser take another name for ours would find a form there, and no cookie and no token.
    """
    origin = _ORIGIN.fullmatch(headers.get(b"origin", ""))
    same = origin is not None and origin[1].lower() == headers.get(b"host", "").lower()
    return bool(policy.tokens) and same and scope["path"].startswith(_PAGE)


def _host_name(header: str) -> str | None:
    """The name in a Host header, lower case and without port; None if it is not of the form of one."""
    # Not urlsplit: that finds a host in `evil@localhost` and in `localhost/evil` too, and refuses others by raising.
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower() if found else None


def _bare(host: str) -> str:
    name = host if host == "*" else _host_name(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host)
    if name is None:
        raise UsageError(f"--allowed-host takes a host name such as mcp.example.com, or * for any host, not {host!r}")
    return name
