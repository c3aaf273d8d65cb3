"""Who looks at the page: a cookie with a random id that stands for what was proved once, and never for a secret.

A session ends with the token that opened it. It lives in memory: a server that starts anew asks again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.access.admission import Admission
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.tokens import find
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.web.bearer import Refusal, admission
from mcp_skills_server.web.failures import FailedAuthentications
from mcp_skills_server.web.forwarded import HOST
from mcp_skills_server.web.guards import Policy
from mcp_skills_server.web.ui.look import base

CALLBACK: Final = "/oauth/callback"
"""Where an issuer sends people back to."""
_COOKIE: Final = "skills-ui"
_IDLE_S: Final = 12 * 3600.0
_MOST: Final = 10_000
_MOST_OF_ONE: Final = 50
"""Sessions of one principal; then its oldest goes."""


class SignInError(SkillsServerError):
    """Signing in failed. The message is for whoever tried."""


class NotBegunError(SignInError):
    """An answer of an issuer reached a browser that was not sent there, which any foreign page can cause."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who may look.

    Attributes:
        admission: what was proved; None where nobody has to prove anything, and for whoever has the page for himself.
        is_of_token: whether it was a token of the operator, which can be taken away.
    """

    admission: Admission | None = None
    is_of_token: bool = False

    @property
    def principal(self) -> Principal | None:
        """Who it is, as far as that was proved."""
        return None if self.admission is None else self.admission.principal


@dataclass(frozen=True, slots=True)
class _Session:
    viewer: Viewer
    used: float


class Viewers:
    """Who is signed in.

    Args:
        policy: whose tokens are taken.
        once: SHA-256 of what lets the first who brings it in, for the page of one person; None for a server.
        failures: counts what is brought and is wrong, with what fails elsewhere.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        policy: Policy,
        once: bytes | None = None,
        failures: FailedAuthentications | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._once = once
        self._private = once is not None
        self._failures = failures or FailedAuthentications()
        self._now = now
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        """By the hash of the id, the one used longest ago first."""

    @property
    def is_open(self) -> bool:
        """Whether everybody may look."""
        return self._policy.is_open and not self._private

    @property
    def is_private(self) -> bool:
        """Whether somebody opened the page for himself, by an address that lets in once."""
        return self._private

    @property
    def takes_tokens(self) -> bool:
        """Whether a token of the operator lets somebody in."""
        return bool(self._policy.tokens)

    async def viewer(self, request: Request, *, renew: bool = True) -> Viewer | None:
        """Who looks; None for somebody who must sign in first. With `renew` it counts as a use of the session."""
        if self.is_open:
            return Viewer()
        if "authorization" in request.headers and not self._private:
            found = await admission(request.scope, self._policy.tokens, self._policy.oauth)
            return None if isinstance(found, Refusal) else Viewer(found)
        led = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if not led and is_of_other_page(request):
            return None
        key = _hashed(request.cookies.get(_cookie(request), ""))
        session, now = self._sessions.get(key), self._now()
        if session is None:
            return None
        if now - session.used > _IDLE_S or not self._holds(session.viewer):
            del self._sessions[key]
            return None
        if renew:
            self._sessions[key] = replace(session, used=now)
            self._sessions.move_to_end(key)
        return session.viewer

    def by_token(self, secret: str) -> Viewer | None:
        """Who has this token of the operator's."""
        token = find(self._policy.tokens, secret)
        return None if token is None or token.expires <= time.time() else Viewer(token.admission, is_of_token=True)

    def by_first_use(self, secret: str) -> Viewer | None:
        """Who opened the page for himself; the secret is good for this once."""
        if self._once is None or not hmac.compare_digest(self._once, _hashed(secret)):
            return None
        self._once = None
        return Viewer()

    def failed(self, request: Request) -> float:
        """Count that the address brought something wrong. Returns the seconds to wait; 0 within the quota."""
        return self._failures.count(request.scope)

    def begin(self, request: Request, response: Response, viewer: Viewer) -> None:
        """Have the response set the cookie of a new session."""
        self.end(request)
        of_viewer = [key for key, each in self._sessions.items() if _key(each.viewer) == _key(viewer)]
        for key in of_viewer[: max(0, len(of_viewer) + 1 - _MOST_OF_ONE)]:
            del self._sessions[key]
        while len(self._sessions) >= _MOST:
            self._sessions.popitem(last=False)
        value = secrets.token_urlsafe(32)
        self._sessions[_hashed(value)] = _Session(viewer, self._now())
        response.set_cookie(
            _cookie(request),
            value,
            path=base(),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def end(self, request: Request, response: Response | None = None) -> None:
        """Forget the session of a request, and have the response remove its cookie."""
        self._sessions.pop(_hashed(request.cookies.get(_cookie(request), "")), None)
        if response is not None:
            response.delete_cookie(_cookie(request), path=base(), httponly=True, samesite="strict")

    def _holds(self, viewer: Viewer) -> bool:
        """Whether what was shown still lets its bearer in."""
        shown = viewer.admission
        if shown is None:
            return True
        known = not viewer.is_of_token or any(each.admission == shown for each in self._policy.tokens)
        return known and shown.expires > time.time()


def is_of_own_page(request: Request) -> bool:
    """Whether a POST comes from a page of ours. A browser says so; who says nothing is refused."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return site is not None
    parts = urlsplit(origin)
    named: str = request.scope.get(HOST) or request.headers.get("host", "")
    return parts.scheme in {"http", "https"} and parts.netloc.lower() == named.lower()


def is_of_other_page(request: Request) -> bool:
    """Whether a page of another server has the browser ask, or leads it here.

    The strict cookie comes along where that server differs by its port alone.
    """
    return request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}


def _key(viewer: Viewer) -> str | None:
    return None if viewer.principal is None else viewer.principal.key


def _cookie(request: Request) -> str:
    """The cookie's name. Browsers do not tell ports of a host apart, and somebody may have two servers."""
    server = request.scope.get("server")
    return f"{_COOKIE}-{server[1]}" if server else _COOKIE


def _hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
