"""Sessions of the page: a random cookie for each authenticated viewer.

A session ends with the token that opened it; the cookie does not contain the token. Sessions are in
memory: after a restart viewers sign in again. Replicas with a store share them: a record has the
token, encrypted with the cookie, and each replica verifies the token itself.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from cryptography.fernet import Fernet, InvalidToken
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.access.principal import Admission, Principal
from mcp_skills_server.access.quota import Quotas
from mcp_skills_server.access.tokens import find_token, hash_of
from mcp_skills_server.errors import RequestError, SkillsServerError
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.bearer import authenticate
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.policy import Policy
from mcp_skills_server.web.rates import count_failure
from mcp_skills_server.web.refusals import RefusalError
from mcp_skills_server.web.ui.addresses import BASE, base

if TYPE_CHECKING:
    from mcp_skills_server.shared.records import Records

_COOKIE: Final = "skills-ui"
_IDLE_S: Final = 12 * 3600.0
_MAX_SESSIONS: Final = 10_000
_MAX_OF_ONE: Final = 50
"""Sessions of one principal; beyond it the oldest is evicted."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who may open the page.

    `admission` is None where no authentication is required, and on a local page. `is_static_token`
    marks a static token, which the operator can remove.
    """

    admission: Admission | None = None
    is_static_token: bool = False
    credential: str = field(default="", repr=False, compare=False)

    @property
    def principal(self) -> Principal | None:
        """Return the authenticated principal, or None."""
        return self.admission and self.admission.principal

    @property
    def key(self) -> str | None:
        """Return the key of the principal, or None."""
        return self.principal and self.principal.key


class _ViewerSession(NamedTuple):
    viewer: Viewer
    used: float


class PageSessions:
    """The sessions of the page.

    `secret_hash` is the SHA-256 of the one-time secret of a local page. `quotas` limits failed
    authentications, also at other endpoints. `store` shares sessions with other replicas.
    """

    def __init__(
        self,
        policy: Policy,
        quotas: Quotas,
        *,
        secret_hash: bytes | None = None,
        store: Records | None = None,
    ) -> None:
        self.policy = policy
        self._secret_hash = secret_hash
        self.quotas = quotas
        self._store = store
        self.is_private = secret_hash is not None
        """Whether the page is local, opened by a one-time address."""
        self._sessions: OrderedDict[bytes, _ViewerSession] = OrderedDict()
        """By the hash of the id, the least recently used first."""

    @property
    def is_open(self) -> bool:
        """Return whether the page needs no sign-in."""
        return self.policy.is_open and not self.is_private

    @property
    def takes_tokens(self) -> bool:
        """Return whether static tokens are accepted."""
        return bool(self.policy.tokens)

    async def viewer(self, request: Request, *, renew: bool = True) -> Viewer | None:
        """Return the viewer; None if sign-in is required.

        `renew` is False for a check while a response is open: it neither extends the session
        nor counts and logs a wrong token.

        HTTPException (429) says that the address sent too many wrong tokens.
        """
        if self.is_open:
            return Viewer()
        if "authorization" in request.headers and not self.is_private:
            policy = self.policy
            try:
                return Viewer(await authenticate(request.scope, policy.tokens, policy.oauth))
            except RefusalError as error:
                if renew and error.status == 401:
                    client = requester(request.scope).address
                    events.emit_refusal(f"{request.method} {BASE}", error.reason, address=client)
                    self.count_failure(request)
                return None
        is_navigation = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if not is_navigation and is_of_other_page(request):
            return None
        cookie = request.cookies.get(_cookie(request), "")
        await self._synchronise(cookie)
        key = hash_of(cookie)
        session, now = self._sessions.get(key), time.monotonic()
        if session is None:
            return None
        if now - session.used > _IDLE_S or not self._is_still_valid(session.viewer):
            del self._sessions[key]
            return None
        if renew:
            self._sessions[key] = _ViewerSession(session.viewer, now)
            self._sessions.move_to_end(key)
        return session.viewer

    def by_token(self, secret: str) -> Viewer | None:
        """Return the viewer of a static token; None if it is unknown or expired."""
        token = find_token(self.policy.tokens, secret)
        if token is None or token.expires <= time.time():
            return None
        return Viewer(token.admission, True, secret)

    def new_one_time_secret(self) -> str:
        """Return a secret that lets one more browser in; the one before is no longer valid."""
        secret = secrets.token_urlsafe(32)
        self._secret_hash = hash_of(secret)
        return secret

    def redeem_one_time_secret(self, secret: str) -> Viewer | None:
        """Return the viewer for the one-time secret, and invalidate it; None for a wrong one."""
        if self._secret_hash is None or not hmac.compare_digest(self._secret_hash, hash_of(secret)):
            return None
        self._secret_hash = None
        return Viewer()

    def count_failure(self, request: Request) -> None:
        """Count a failure of the address. HTTPException (429) says that there were too many."""
        try:
            count_failure(self.quotas, requester(request.scope))
        except RefusalError as error:
            seconds = str(error.retry_after_s)
            message = f"Too many attempts; try again in {seconds} s."
            raise HTTPException(429, message, {"retry-after": seconds}) from None

    async def begin(self, request: Request, response: Response, viewer: Viewer) -> None:
        """Start a new session, and set its cookie in the response."""
        await self.end(request)
        value = secrets.token_urlsafe(32)
        self._add(value, viewer)
        if self._store is not None and viewer.credential:
            sealed = _cipher(value).encrypt(viewer.credential.encode()).decode()
            with suppress(RequestError):  # not shared: the session is local
                await self._store.write(value, group=None, text=sealed, replaces=None)
        secure = request.url.scheme == "https"
        response.set_cookie(
            _cookie(request), value, path=base(), secure=secure, httponly=True, samesite="strict"
        )

    async def end(self, request: Request, response: Response | None = None) -> None:
        """End the session of a request, and remove its cookie in the response."""
        cookie = request.cookies.get(_cookie(request), "")
        self._sessions.pop(hash_of(cookie), None)
        if self._store is not None and cookie:
            with suppress(RequestError):
                await self._store.delete(cookie, group=None)
        if response is not None:
            response.delete_cookie(_cookie(request), path=base(), httponly=True, samesite="strict")

    def _add(self, cookie: str, viewer: Viewer) -> None:
        of_viewer = [
            key for key, session in self._sessions.items() if session.viewer.key == viewer.key
        ]
        for key in of_viewer[: max(0, len(of_viewer) + 1 - _MAX_OF_ONE)]:
            del self._sessions[key]
        while len(self._sessions) >= _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        kept = replace(viewer, credential="")
        self._sessions[hash_of(cookie)] = _ViewerSession(kept, time.monotonic())

    async def _synchronise(self, cookie: str) -> None:
        """Load a session that another replica began; drop one that another replica ended."""
        if self._store is None or not cookie:
            return
        try:
            sealed = await self._store.read(cookie, group=None)
        except RequestError:  # store unreachable: local sessions stay
            return
        if sealed is None:
            self._sessions.pop(hash_of(cookie), None)
        elif hash_of(cookie) not in self._sessions:
            try:
                credential = _cipher(cookie).decrypt(sealed.encode()).decode()
            except (InvalidToken, ValueError):
                return
            viewer = await self._verify(credential)
            if viewer is not None:
                self._add(cookie, viewer)

    async def _verify(self, credential: str) -> Viewer | None:
        viewer = self.by_token(credential)
        if viewer is None and self.policy.oauth is not None:
            with suppress(SkillsServerError):
                viewer = Viewer(await self.policy.oauth.verify(credential))
        return viewer

    def _is_still_valid(self, viewer: Viewer) -> bool:
        admission = viewer.admission
        if admission is None:
            return True
        tokens = self.policy.tokens
        if viewer.is_static_token and admission not in [token.admission for token in tokens]:
            return False
        return admission.expires > time.time()


def is_of_own_page(request: Request) -> bool:
    """Return whether the browser says that a POST comes from this page (CSRF check)."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return site is not None
    scheme, own = urlsplit(origin).scheme, request.headers.get("host", "").lower()
    return scheme in {"http", "https"} and urlsplit(origin).netloc.lower() == own


def is_of_other_page(request: Request) -> bool:
    """Return whether a page of another server caused the request.

    A browser sends the strict cookie even so, if that server differs only by its port.
    """
    return request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}


def _cookie(request: Request) -> str:
    """Return the cookie's name, with the port: browsers share cookies among ports of a host.

    The port is that of the Host header: replicas behind one address may listen on different ports.
    """
    port = request.headers.get("host", "").rpartition(":")[2]
    if port.isdecimal():
        return f"{_COOKIE}-{port}"
    return _COOKIE


def _cipher(cookie: str) -> Fernet:
    """Return a cipher whose key is the cookie, of which the store has only a hash."""
    return Fernet(base64.urlsafe_b64encode(hash_of(f"session of the page: {cookie}")))
