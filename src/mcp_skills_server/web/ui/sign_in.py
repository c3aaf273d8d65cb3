"""Sign-in at the page by one-time address, token or OAuth issuer, and sign-out.

Only a session store keeps a token of the issuer, encrypted.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final
from urllib.parse import parse_qsl

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.oauth import fetch
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.ui.addresses import BASE, base
from mcp_skills_server.web.ui.issuer_flow import (
    CALLBACK,
    Flow,
    NoResponseError,
    NotBegunError,
    SignInError,
)
from mcp_skills_server.web.ui.session import PageSessions, is_of_other_page, is_of_own_page

logger = logging.getLogger(__name__)

_SIGN_IN_COOKIE: Final = "skills-ui-away"
"""The cookie that binds a sign-in at the issuer to the browser that began it."""
MAX_FORM: Final = 1 << 16
_FOREIGN_FORM: Final = "This form was sent from another page."


class SignInEndpoints:
    """Endpoints for signing in and out."""

    def __init__(self, sessions: PageSessions, templates: Environment) -> None:
        self._sessions = sessions
        self._templates = templates
        self._flow: Flow | None = None
        oauth = sessions.policy.oauth
        if oauth is not None and oauth.settings.ui_client_id is not None:
            self._flow = Flow(oauth, oauth.settings.ui_client_id, fetch)

    def routes(self) -> list[Route]:
        """Return the routes, relative to the page's path."""
        return [
            Route("/enter", self._one_time, methods=["GET"]),
            Route("/sign-in", self._by_token, methods=["GET", "POST"]),
            Route("/oauth/begin", self._redirect_to_issuer, methods=["GET"]),
            Route(CALLBACK, self._callback, methods=["GET"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/another", self._another, methods=["POST"]),
        ]

    async def _one_time(self, request: Request) -> Response:
        """Exchange the one-time secret in the address of a local page for a cookie."""
        response = RedirectResponse(f"{base()}/", 303)
        if await self._sessions.viewer(request) is None:
            viewer = self._sessions.redeem_one_time_secret(request.query_params.get("once", ""))
            if viewer is None:
                return self._refused(request, "This address was used before, or is incomplete.")
            await self._sessions.begin(request, response, viewer)
        return response

    async def _by_token(self, request: Request) -> Response:
        if request.method != "POST":
            if await self._sessions.viewer(request) is not None:
                return RedirectResponse(f"{base()}/", 303)
            return self._form("", 200)
        if not is_of_own_page(request):
            return self._form(_FOREIGN_FORM, 403)
        form = await form_of(request) or {}
        viewer = self._sessions.by_token(form.get("token", "").strip())
        if viewer is None:
            logger.warning("refused a token at the page", extra=REPEATS)
            client = requester(request.scope).address
            events.emit_refusal(f"POST {BASE}/sign-in", "unknown-token", address=client)
            return self._refused(request, "This token is not valid here.")
        response = RedirectResponse(f"{base()}/", 303)
        await self._sessions.begin(request, response, viewer)
        return response

    async def _sign_out(self, request: Request) -> Response:
        if not is_of_own_page(request):
            return self._form(_FOREIGN_FORM, 403)
        response = RedirectResponse(f"{base()}/", 303)
        await self._sessions.end(request, response)
        return response

    async def _another(self, request: Request) -> Response:
        """Return an address that lets another browser of this machine in, to the local page."""
        is_private, viewer = self._sessions.is_private, await self._sessions.viewer(request)
        if not is_private or viewer is None or not is_of_own_page(request):
            return self._form(_FOREIGN_FORM, 403)
        secret, page = self._sessions.new_one_time_secret(), f"http://{request.url.netloc}{base()}"
        words = f"Open this address in it. It lets in once: {page}/enter?once={secret}"
        return self.page("message.html", 200, title="Another browser", words=words)

    async def _redirect_to_issuer(self, request: Request) -> Response:
        if self._flow is None:
            return self._form("There is no issuer to sign in at.", 404)
        if is_of_other_page(request):
            return self._form("Another page started this sign-in. To sign in, do it here.", 403)
        secret = secrets.token_urlsafe(32)
        try:
            response = RedirectResponse(await self._flow.begin(secret), 303)
        except SignInError as error:
            return self._form(str(error), 503)
        path, secure = f"{base()}/oauth", request.url.scheme == "https"
        # Lax, since the callback comes from the issuer; the cookie alone gives no access.
        response.set_cookie(
            _SIGN_IN_COOKIE, secret, 600, path=path, secure=secure, httponly=True, samesite="lax"
        )
        return response

    async def _callback(self, request: Request) -> Response:
        if self._flow is None:
            return self._form("There is no issuer to sign in at.", 404)
        try:
            secret = request.cookies.get(_SIGN_IN_COOKIE, "")
            outcome = await self._flow.finish(request.query_params, secret)
        except SignInError as error:
            # logged apart: repeats of a message are dropped, and must not hide real failures
            if isinstance(error, NotBegunError):
                logger.warning("refused a callback without a sign-in: %s", error, extra=REPEATS)
            else:
                logger.warning("signing in at the issuer failed: %s", error, extra=REPEATS)
            if isinstance(error, NoResponseError):
                return self._form(str(error), 503)
            client = requester(request.scope).address
            events.emit_refusal(f"GET {BASE}{CALLBACK}", "issuer", address=client)
            return self._form(str(error), 403)
        # No HTTP redirect: the browser would not send the strict cookie, since the chain began
        # at the issuer.
        response = self.page("message.html", 200, title="Signed in", words="")
        response.headers["refresh"] = f"0; url={base()}/"
        await self._sessions.begin(request, response, outcome)
        response.delete_cookie(
            _SIGN_IN_COOKIE, path=f"{base()}/oauth", httponly=True, samesite="lax"
        )
        return response

    def _form(self, trouble: str, status: int) -> Response:
        return self.page(
            "sign_in.html", status, trouble=trouble, sessions=self._sessions, flow=self._flow
        )

    def page(self, template: str, status: int, **values: object) -> Response:
        """Return a response for a viewer who is not signed in: no name of a folder, no views."""
        body = self._templates.get_template(template).render(ctx=None, base=base(), **values)
        return HTMLResponse(body, status)

    def _refused(self, request: Request, trouble: str) -> Response:
        """Count a failed attempt, and return the form with the reason, or 429."""
        try:
            self._sessions.count_failure(request)
        except HTTPException as error:
            response = self._form(error.detail, error.status_code)
            response.headers.update(error.headers or {})
            return response
        return self._form(trouble, 200 if self._sessions.is_private else 403)


async def form_of(request: Request, most: int = MAX_FORM) -> dict[str, str] | None:
    """Return the fields of a form of at most so many bytes; None for another one."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > most:
            return None
    try:
        return dict(parse_qsl(raw.decode("ascii"), max_num_fields=10))
    except ValueError:
        return None
