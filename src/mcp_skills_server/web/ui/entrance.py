"""The ways in and out of the page: an address that works once, a token in a form, the issuer; and signing out."""

from __future__ import annotations

import logging
import math
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.callers import address
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.guards import Policy
from mcp_skills_server.web.issuer_fetch import fetch
from mcp_skills_server.web.ui.look import BASE, base
from mcp_skills_server.web.ui.session import (
    CALLBACK,
    NotBegunError,
    SignInError,
    Viewers,
    is_of_other_page,
    is_of_own_page,
)

if TYPE_CHECKING:
    from mcp_skills_server.web.ui.oauth import Flow

logger = logging.getLogger(__name__)

_AWAY: Final = "skills-ui-away"
"""The cookie of a browser that is at the issuer."""
_LONGEST_FORM: Final = 1 << 16


class Entrance:
    """Endpoints for signing in and out.

    Args:
        viewers: who is signed in.
        policy: whose tokens are taken.
        templates: the templates.
    """

    def __init__(self, viewers: Viewers, policy: Policy, templates: Environment) -> None:
        self._viewers = viewers
        self._templates = templates
        self._flow = _flow_of(policy)

    def routes(self) -> list[BaseRoute]:
        """Return the routes, from the page's own path on."""
        return [
            Route("/enter", self._once, methods=["GET"]),
            Route("/sign-in", self._by_token, methods=["GET", "POST"]),
            Route("/oauth/begin", self._leave_for_issuer, methods=["GET"]),
            Route(CALLBACK, self._come_back, methods=["GET"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def _once(self, request: Request) -> Response:
        """Take the one-time secret of one's own page out of the address, and give a cookie for it."""
        if await self._viewers.viewer(request) is None:
            viewer = self._viewers.by_first_use(request.query_params.get("once", ""))
            if viewer is None:
                return self.refused(request, "This address was used before, or is not whole.")
            response = RedirectResponse(f"{base()}/", 303)
            await self._viewers.begin(request, response, viewer)
            return response
        return RedirectResponse(f"{base()}/", 303)

    async def _by_token(self, request: Request) -> Response:
        if request.method != "POST":
            if await self._viewers.viewer(request) is not None:
                return RedirectResponse(f"{base()}/", 303)
            return self._form("", 200)
        if not is_of_own_page(request):
            return self._form("This form was sent from another page.", 403)
        form = await form_of(request)
        viewer = None if form is None else self._viewers.by_token(form.get("token", "").strip())
        if viewer is None:
            logger.warning("refused a token at the page", extra=REPEATS)
            events.emit_refusal(f"POST {BASE}/sign-in", "unknown-token", address=address(request.scope))
            return self.refused(request, "This is no token that lets you in.")
        response = RedirectResponse(f"{base()}/", 303)
        await self._viewers.begin(request, response, viewer)
        return response

    async def _leave_for_issuer(self, request: Request) -> Response:
        if self._flow is None:
            return self._form("There is no issuer to sign in at.", 404)
        if is_of_other_page(request):
            return self._form("Another page asked for this. Sign in here if you want to.", 403)
        browser = secrets.token_urlsafe(32)
        try:
            response = RedirectResponse(await self._flow.begin(browser), 303)
        except SignInError as error:
            return self._form(str(error), 503)
        # Lax, for the way back begins at the issuer; it opens nothing by itself.
        response.set_cookie(
            _AWAY,
            browser,
            max_age=600,
            path=f"{base()}/oauth",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return response

    async def _come_back(self, request: Request) -> Response:
        if self._flow is None:
            return self._form("There is no issuer to sign in at.", 404)
        try:
            found = await self._flow.finish(request.query_params, request.cookies.get(_AWAY, ""))
        except SignInError as error:
            if isinstance(error, NotBegunError):  # so that it hides no real reason in the log
                logger.warning("nobody was signed in: %s", error, extra=REPEATS)
            else:
                logger.warning("signing in at the issuer failed: %s", error, extra=REPEATS)
            events.emit_refusal(f"GET {BASE}{CALLBACK}", "issuer", address=address(request.scope))
            return self._form(str(error), 403)
        # No redirect: a browser sends a strict cookie only along a way that began on a page of ours.
        body = self._templates.get_template("signed_in.html").render(look=None, base=base())
        response = Response(body, media_type="text/html", headers={"refresh": f"0; url={base()}/"})
        await self._viewers.begin(request, response, found)
        response.delete_cookie(_AWAY, path=f"{base()}/oauth", httponly=True, samesite="lax")
        return response

    async def _sign_out(self, request: Request) -> Response:
        if not is_of_own_page(request):
            return self._form("This form was sent from another page.", 403)
        response = RedirectResponse(f"{base()}/", 303)
        await self._viewers.end(request, response)
        return response

    @property
    def _issuer(self) -> str:
        """Return the host of the issuer; "" for none."""
        return "" if self._flow is None else self._flow.host

    def _form(self, trouble: str, status: int) -> Response:
        template = self._templates.get_template("sign_in.html")
        body = template.render(
            look=None,
            base=base(),
            trouble=trouble,
            tokens=self._viewers.takes_tokens,
            issuer=self._issuer,
            own=self._viewers.is_private,
        )
        return Response(body, status, media_type="text/html")

    def refused(self, request: Request, trouble: str) -> Response:
        """Count a failed attempt, and return the form with the reason, or 429."""
        wait = self._viewers.failed(request)
        return self.too_often(wait) if wait else self._form(trouble, 403)

    def too_often(self, wait: float) -> Response:
        """Return the answer to an address that brought something wrong too often."""
        seconds = max(1, math.ceil(wait))
        response = self._form(f"Too many tries from your address; try again in {seconds} s.", 429)
        response.headers["retry-after"] = str(seconds)
        return response


def _flow_of(policy: Policy) -> Flow | None:
    """Return the way to the issuer and back; None where the issuer does not know the page."""
    oauth = policy.oauth
    if oauth is None or oauth.settings.ui_client_id is None:
        return None
    from mcp_skills_server.web.ui.oauth import Flow  # with what proves signatures

    return Flow(oauth, oauth.settings.ui_client_id, fetch)


async def form_of(request: Request) -> dict[str, str] | None:
    """Return the fields of a small form, None where it is none."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _LONGEST_FORM:
            return None
    try:
        return dict(parse_qsl(raw.decode("ascii"), max_num_fields=10))
    except ValueError:
        return None
