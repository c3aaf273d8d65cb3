"""Admission: Host and Origin checks against DNS rebinding, and bearer tokens.

Plain ASGI middleware around the endpoints, so that a refusal is cheap. `bearer` authenticates. An
admitted request counts for its principal, else for its address. A stream ends when its token
expires.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Admission
from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.access.settings import is_loopback
from mcp_skills_server.access.tokens import Token, Tokens
from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.server.sdk import PRINCIPAL, quota_owner
from mcp_skills_server.web.bearer import EXPIRED, Refusal, authenticate
from mcp_skills_server.web.connections import SLOT, Slot
from mcp_skills_server.web.rates import OPEN_PATHS, FailedAuthentications, emit_refusal

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer

logger = logging.getLogger(__name__)

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_LOOP_CALL_TIMEOUT_S: Final = 10.0
"""Seconds that another thread waits for its call in the event loop."""
_CHECKED: Final = frozenset((b"host", b"origin"))
"""Headers that the policy checks."""
_HOST_REFUSED: Final = Refusal(403, "This Host is not served here", "host")
_ORIGIN_REFUSED: Final = Refusal(403, "This Origin is not allowed", "origin")
_BUSY: Final = Refusal(503, "All connections are busy; try again in a moment", "busy")
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
    named = frozenset(_bare(each) for each in hosts)
    loopback = is_loopback(host)
    if not loopback and not named and not tokens and oauth is None:
        raise UsageError(
            f"refusing to listen on {host}, which others can reach: give --allowed-host with the "
            "name that clients use, or --token-file with the tokens that they must send"
        )
    allowed: frozenset[str] | None = named
    if loopback:
        allowed = named | frozenset(LOOPBACK)
    if "*" in named or not allowed:
        allowed = None
    return Policy(allowed, frozenset(map(_origin, origins)), tokens, oauth)


class Guard:
    """ASGI middleware that enforces a policy, and counts failed authentications."""

    def __init__(self, app: ASGIApp, policy: Policy, rates: Rates) -> None:
        self._app = app
        self._policy = policy
        self._failures = FailedAuthentications(rates)
        self._open: dict[anyio.CancelScope, bytes] = {}
        """The hash of the token of each open response, by the scope that cancels it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        if isinstance(policy.tokens, Tokens):
            policy.tokens.on_removed = self._cancel_revoked
            policy.tokens.between_requests = self._call_in_loop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request (400, 401, 403, 429 or 503), or pass it on with its principal."""
        policy = self._policy
        if scope["type"] != "http" or (
            scope["path"] in OPEN_PATHS and not scope.get("query_string")
        ):
            if scope["type"] == "lifespan":
                self._loop = asyncio.get_running_loop()
                if policy.oauth is not None:
                    policy.oauth.issuer.refresh()  # for the first request
            await self._app(scope, receive, send)
            return
        headers = {
            name: value.decode("latin-1") for name, value in scope["headers"] if name in _CHECKED
        }
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if not policy.host_allowed(host):
            logger.warning("refused Host %.100r; --allowed-host admits it", host, extra=REPEATS)
            await self._refuse(scope, receive, send, _HOST_REFUSED)
        elif not policy.origin_allowed(origin) and not _is_form_of_own_page(
            scope, policy, host or "", origin or ""
        ):
            logger.warning(
                "refused Origin %.100r; --allowed-origin admits it", origin, extra=REPEATS
            )
            await self._refuse(scope, receive, send, _ORIGIN_REFUSED)
        elif (
            policy.is_open
            or scope["path"].startswith(policy.open_below)
            or scope["path"] in policy.open_at
        ):
            await self._pass_on(scope, receive, send)
        else:
            admission = await authenticate(scope, policy.tokens, policy.oauth)
            if isinstance(admission, Refusal):
                # An unauthenticated request counts, and gets 429 beyond the quota of failures.
                if admission.status != 401 or not await self._failures.is_over(
                    scope, receive, send
                ):
                    await self._refuse(scope, receive, send, admission)
                return
            who = admission.principal
            logger.debug("%s authenticated as %s", scope["method"], who.name)
            # The SDK binds sessions to its own kind of user.
            user = AuthenticatedUser(AccessToken(token=who.key, client_id=who.key, scopes=[]))
            await self._answer({**scope, "user": user, PRINCIPAL: who}, receive, send, admission)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, admission: Admission
    ) -> None:
        """Handle a request until it is answered, or its token expires or is revoked."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        deadline = anyio.current_time() + admission.expires - time.time()
        with anyio.CancelScope(deadline=deadline) as until_removed:
            self._open[until_removed] = admission.hashed
            try:
                await self._pass_on(scope, receive, sending)
            finally:
                del self._open[until_removed]
        if until_removed.cancelled_caught:
            with suppress(RuntimeError):  # the response was complete
                if started:
                    await send({"type": "http.response.body", "body": b""})
                else:
                    await self._refuse(scope, receive, send, EXPIRED)

    def _cancel_revoked(self, removed: frozenset[bytes]) -> None:
        """Cancel the open responses of removed tokens. Call in the event loop, if one runs."""
        for each, hashed in [*self._open.items()]:
            if hashed in removed:
                each.cancel()

    def _call_in_loop(self, work: Callable[[], object]) -> None:
        """Call `work` in the event loop, so between requests, and wait. For other threads."""
        if self._loop is None or self._loop.is_closed():
            work()
            return

        async def call() -> None:
            work()

        wait([asyncio.run_coroutine_threadsafe(call(), self._loop)], _LOOP_CALL_TIMEOUT_S)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        slot: Slot | None = scope.get("state", {}).get(SLOT)
        if slot is None or slot.admit(quota_owner(scope)):
            await self._app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send, _BUSY)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
        emit_refusal(scope, refusal.reason)
        await refusal.response(self._policy.oauth)(scope, receive, send)


def _is_form_of_own_page(scope: Scope, policy: Policy, host: str, origin: str) -> bool:
    """Return whether the page sent this form to itself, on a server that requires tokens.

    The host name does not matter: DNS rebinding gives a foreign page a form, but no cookie and no
    token.
    """
    from_host = _ORIGIN.fullmatch(origin)
    return (
        not policy.is_open
        and from_host is not None
        and from_host[1].lower() == host.lower()
        and policy.page is not None
        and scope["path"].startswith(policy.page)
    )


def host_name(header: str) -> str | None:
    """Return the name in a Host header, in lower case without port; None for a malformed one."""
    # Not urlsplit: it also finds a host in `evil@localhost` and in `localhost/evil`, and raises
    # ValueError for others.
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower() if found else None


def _origin(given: str) -> str:
    origin = given.rstrip("/").lower()
    if origin not in {"*", "null"} and not _ALLOWED_ORIGIN.fullmatch(origin):
        example = "an origin such as https://app.example, or * for any"
        raise UsageError(f"--allowed-origin takes {example}, not {given!r}")
    return origin


def _bare(host: str) -> str:
    if host == "*":
        return host
    name = host_name(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host)
    if name is None:
        raise UsageError(
            "--allowed-host takes a host name such as mcp.example.com, or * for any host, not "
            f"{host!r}"
        )
    return name
