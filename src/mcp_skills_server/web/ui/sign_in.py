"""The ways in and out of the page: an address that works once, a token in a form, the issuer; and
signing out.

At the issuer it is the authorization code flow with PKCE. The answer is no proof by itself: the
access token is proved as on any request, and is forgotten with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from mcp_skills_server.access.principal import RefusedError
from mcp_skills_server.access.settings import is_safe
from mcp_skills_server.errors import REPEATS, SkillsServerError, clipped
from mcp_skills_server.model import printable
from mcp_skills_server.server.entrance import address
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.guards import Policy
from mcp_skills_server.web.oauth import fetch
from mcp_skills_server.web.ui.look import BASE, base
from mcp_skills_server.web.ui.session import Viewer, Viewers, is_of_other_page, is_of_own_page

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer

logger = logging.getLogger(__name__)

CALLBACK: Final = "/oauth/callback"
"""Where an issuer sends people back to."""
_SIGN_IN_COOKIE: Final = "skills-ui-away"
"""The cookie that binds a sign-in at the issuer to the browser that began it."""
_LONGEST_FORM: Final = 1 << 16
_MCP: Final = "/mcp"
_ISS_SUPPORTED: Final = "authorization_response_iss_parameter_supported"
"""Says in the metadata that every answer names the issuer, so that one without it is none of it
(RFC 9207)."""
_LEAST_SCOPE: Final = "openid"
"""Asked for where no other is and the issuer knows it: some refuse a request without any scope."""
_SILENT: Final = "The issuer does not answer. Try again later."
_FOREIGN_FORM: Final = "This form was sent from another page."

Post: TypeAlias = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class SignInError(SkillsServerError):
    """Signing in failed. The message is for the person who tried."""


class NotBegunError(SignInError):
    """An answer of an issuer reached a browser that was not sent there, which any foreign page can
    cause."""


class Entrance:
    """Endpoints for signing in and out."""

    def __init__(self, viewers: Viewers, policy: Policy, templates: Environment) -> None:
        self._viewers = viewers
        self._templates = templates
        self._flow: Flow | None = None
        if policy.oauth is not None and policy.oauth.settings.ui_client_id is not None:
            self._flow = Flow(policy.oauth, policy.oauth.settings.ui_client_id, fetch)

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
        """Take the one-time secret of one's own page out of the address, and give a cookie for
        it."""
        response = RedirectResponse(f"{base()}/", 303)
        if await self._viewers.viewer(request) is None:
            viewer = self._viewers.by_first_use(request.query_params.get("once", ""))
            if viewer is None:
                return self._refused(request, "This address was used before, or is not whole.")
            await self._viewers.begin(request, response, viewer)
        return response

    async def _by_token(self, request: Request) -> Response:
        if request.method != "POST":
            if await self._viewers.viewer(request) is not None:
                return RedirectResponse(f"{base()}/", 303)
            return self._form("", 200)
        if not is_of_own_page(request):
            return self._form(_FOREIGN_FORM, 403)
        form = await form_of(request) or {}
        viewer = self._viewers.by_token(form.get("token", "").strip())
        if viewer is None:
            logger.warning("refused a token at the page", extra=REPEATS)
            events.emit_refusal(
                f"POST {BASE}/sign-in", "unknown-token", address=address(request.scope)
            )
            return self._refused(request, "This is no token that lets you in.")
        response = RedirectResponse(f"{base()}/", 303)
        await self._viewers.begin(request, response, viewer)
        return response

    async def _sign_out(self, request: Request) -> Response:
        if not is_of_own_page(request):
            return self._form(_FOREIGN_FORM, 403)
        response = RedirectResponse(f"{base()}/", 303)
        await self._viewers.end(request, response)
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
            _SIGN_IN_COOKIE,
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
            found = await self._flow.finish(
                request.query_params, request.cookies.get(_SIGN_IN_COOKIE, "")
            )
        except SignInError as error:
            # repeats of one line are dropped: this must hide no real reason
            if isinstance(error, NotBegunError):
                logger.warning("nobody was signed in: %s", error, extra=REPEATS)
            else:
                logger.warning("signing in at the issuer failed: %s", error, extra=REPEATS)
            events.emit_refusal(f"GET {BASE}{CALLBACK}", "issuer", address=address(request.scope))
            return self._form(str(error), 403)
        # No redirect: a browser sends a strict cookie only along a way that began on a page of
        # ours.
        response = self._page("signed_in.html", 200)
        response.headers["refresh"] = f"0; url={base()}/"
        await self._viewers.begin(request, response, found)
        response.delete_cookie(
            _SIGN_IN_COOKIE, path=f"{base()}/oauth", httponly=True, samesite="lax"
        )
        return response

    def _form(self, trouble: str, status: int) -> Response:
        issuer = ""
        if self._flow is not None:
            issuer = self._flow.host
        values = {
            "tokens": self._viewers.takes_tokens,
            "issuer": issuer,
            "own": self._viewers.is_private,
        }
        return self._page("sign_in.html", status, trouble=trouble, **values)

    def _page(self, template: str, status: int, **values: object) -> Response:
        body = self._templates.get_template(template).render(look=None, base=base(), **values)
        return Response(body, status, media_type="text/html")

    def _refused(self, request: Request, trouble: str) -> Response:
        """Count a failed attempt, and return the form with the reason, or 429."""
        wait = self._viewers.failed(request)
        if wait:
            return self.too_often(wait)
        return self._form(trouble, 403)

    def too_often(self, wait: float) -> Response:
        """Return the answer to an address that brought something wrong too often."""
        seconds = max(1, math.ceil(wait))
        response = self._form(f"Too many tries from your address; try again in {seconds} s.", 429)
        response.headers["retry-after"] = str(seconds)
        return response


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


class Flow:
    """Authorization code flow of a public client. For one event loop.

    It keeps nothing between the two requests: `state` and the verifier of PKCE are derived from a
    secret that the browser has in a cookie, so that any replica can finish what another began, and
    no other browser can end it.

    Args:
        server: proves the tokens of the issuer.
        client_id: OAuth client id of the page.
        post: sends a form, and returns status and body.
    """

    def __init__(self, server: ResourceServer, client_id: str, post: Post) -> None:
        self._server = server
        self._client_id = client_id
        self._post = post

    @property
    def callback(self) -> str:
        """Return the redirect URI: below the URL by which clients know this server, and nowhere
        else."""
        parts = urlsplit(self._server.settings.resource)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(_MCP)}{BASE}{CALLBACK}"

    @property
    def host(self) -> str:
        """Return the name of the issuer's host, for people."""
        return urlsplit(self._server.settings.issuer).netloc

    async def begin(self, browser: str) -> str:
        """Return the address at the issuer to go to, for the browser that has this secret."""
        metadata = await self._metadata()
        place = _address(metadata, "authorization_endpoint")
        # No nonce: that is OpenID's, refused without the scope openid, and PKCE binds the code to
        # the browser already.
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self.callback,
            "state": _derived(browser, "state"),
            "code_challenge": _encoded(
                hashlib.sha256(_derived(browser, "verifier").encode()).digest()
            ),
            "code_challenge_method": "S256",
            **self._resource,
        }
        known: Any = metadata.get("scopes_supported")
        if self._server.settings.requested_scopes:
            asked["scope"] = " ".join(self._server.settings.requested_scopes)
        elif isinstance(known, list) and _LEAST_SCOPE in known:
            asked["scope"] = _LEAST_SCOPE
        separator = "?"
        if urlsplit(place).query:
            separator = "&"
        return f"{place}{separator}{urlencode(asked)}"

    @property
    def _resource(self) -> dict[str, str]:
        """Return the parameter of RFC 8707 of both requests: without it an issuer may mean its own
        userinfo."""
        if self._server.settings.ui_resource:
            return {"resource": self._server.settings.resource}
        return {}

    async def finish(self, given: Mapping[str, str], browser: str) -> Viewer:
        """Redeem the authorization code in the query that the issuer's answer came with, and return
        the viewer.

        Raises:
            SignInError: the sign-in was not begun by this browser, the issuer refused it, or its
                token is refused.
        """
        state = given.get("state", "")
        if not browser or not hmac.compare_digest(
            state.encode(), _derived(browser, "state").encode()
        ):
            raise NotBegunError(
                "This browser did not begin to sign in, or it was too long ago. Begin again."
            )
        issuer = self._server.settings.issuer
        if given.get("iss", issuer) != issuer:
            raise SignInError("Another issuer answered.")
        if "error" in given or not given.get("code"):
            raise SignInError(f"The issuer let nobody in{_reason(given)}.")
        metadata = await self._metadata()
        if metadata.get(_ISS_SUPPORTED) is True and "iss" not in given:
            raise SignInError("It is not known which issuer answered.")
        form = {
            "grant_type": "authorization_code",
            "code": given["code"],
            "redirect_uri": self.callback,
            "client_id": self._client_id,
            "code_verifier": _derived(browser, "verifier"),
            **self._resource,
        }
        try:
            status, body = await self._post(
                _address(metadata, "token_endpoint"), urlencode(form).encode()
            )
            answer = _object(body)
            token = answer.get("access_token")
            if status != 200 or not isinstance(token, str):
                raise SignInError(f"The issuer gave no token{_reason(answer)}.")
            return Viewer(await self._server.verify(token), credential=token)
        except SignInError:
            raise
        except RefusedError as error:
            raise SignInError(f"The issuer's token lets nobody in here: {error}.") from None
        except SkillsServerError:
            raise SignInError(_SILENT) from None

    async def _metadata(self) -> Mapping[str, Any]:
        try:
            return await self._server.issuer.metadata()
        except SkillsServerError:
            raise SignInError(_SILENT) from None


def _address(metadata: Mapping[str, Any], key: str) -> str:
    found = metadata.get(key)
    if not isinstance(found, str) or not is_safe(found):
        raise SignInError("The issuer has no way to sign in here.")
    return found


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    return {}


def _reason(said: Mapping[str, Any]) -> str:
    """Return an issuer's words on an error, as RFC 6749 has them; "" for none."""
    words = [
        each
        for key in ("error", "error_description")
        if isinstance(each := said.get(key), str) and each
    ]
    if not words:
        return ""
    return printable(f" ({clipped(': '.join(words))})")


def _derived(browser: str, what: str) -> str:
    """Return a secret for one use, from that of a browser. 43 characters, as PKCE wants at
    least."""
    return _encoded(
        hmac.digest(browser.encode("utf-8", "surrogateescape"), what.encode(), "sha256")
    )


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
