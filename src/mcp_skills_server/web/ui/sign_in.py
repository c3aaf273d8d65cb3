"""Sign-in at the page by one-time address, token or OAuth issuer, and sign-out.

OAuth uses the authorization code flow with PKCE. The issuer's response proves nothing by itself:
the access token is verified as on any request. Only a session store keeps the token, encrypted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from mcp_skills_server.access.principal import RefusedError
from mcp_skills_server.access.settings import is_secure
from mcp_skills_server.errors import REPEATS, SkillsServerError, clipped
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.oauth import fetch
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.ui.addresses import BASE, base
from mcp_skills_server.web.ui.session import PageSessions, Viewer, is_of_other_page, is_of_own_page

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer

logger = logging.getLogger(__name__)

CALLBACK: Final = "/oauth/callback"
"""Path of the redirect URI, to which the issuer sends browsers back."""
_SIGN_IN_COOKIE: Final = "skills-ui-away"
"""The cookie that binds a sign-in at the issuer to the browser that began it."""
_MAX_FORM: Final = 1 << 16
_MCP: Final = "/mcp"
_ISS_SUPPORTED: Final = "authorization_response_iss_parameter_supported"
"""Metadata flag: each response of the issuer names it; others are forged (RFC 9207)."""
_DEFAULT_SCOPE: Final = "openid"
"""Default scope, if the issuer knows it: some refuse a request without any scope."""
_NO_RESPONSE: Final = "The issuer does not respond. Try again later."
_FOREIGN_FORM: Final = "This form was sent from another page."

Post: TypeAlias = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class SignInError(SkillsServerError):
    """A failed sign-in. The message is for the person who tried."""


class NotBegunError(SignInError):
    """A callback to a browser that began no sign-in, which any foreign page can cause."""


class NoResponseError(SignInError):
    """The issuer does not respond; this is no refusal."""


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
        return self._form(trouble, 403)


async def form_of(request: Request) -> dict[str, str] | None:
    """Return the fields of a small form; None if it is malformed or too large."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MAX_FORM:
            return None
    try:
        return dict(parse_qsl(raw.decode("ascii"), max_num_fields=10))
    except ValueError:
        return None


class Flow:
    """Authorization code flow of a public client. For one event loop.

    It is stateless between the two requests: `state` and the PKCE verifier are derived from a
    secret in the browser's cookie. Any replica can finish what another began, and no other browser
    can. `server` verifies the tokens of the issuer. `post` sends a form.
    """

    def __init__(self, server: ResourceServer, client_id: str, post: Post) -> None:
        self._server = server
        self._client_id = client_id
        self._post = post

    @property
    def callback(self) -> str:
        """Return the redirect URI, below the public URL of this server."""
        parts = urlsplit(self._server.settings.resource)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(_MCP)}{BASE}{CALLBACK}"

    @property
    def host(self) -> str:
        """Return the issuer's host name, for people."""
        return urlsplit(self._server.settings.issuer).netloc

    async def begin(self, secret: str) -> str:
        """Return the authorization URL at the issuer, for the browser with this secret."""
        metadata = await self._metadata()
        endpoint = _address(metadata, "authorization_endpoint")
        verifier = _derived(secret, "verifier").encode()
        # No nonce: issuers refuse this parameter of OpenID without the scope openid, and PKCE
        # binds the code to the browser already.
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self.callback,
            "state": _derived(secret, "state"),
            "code_challenge": _encoded(hashlib.sha256(verifier).digest()),
            "code_challenge_method": "S256",
            **self._resource,
        }
        known: Any = metadata.get("scopes_supported")
        if self._server.settings.requested_scopes:
            parameters["scope"] = " ".join(self._server.settings.requested_scopes)
        elif isinstance(known, list) and _DEFAULT_SCOPE in known:
            parameters["scope"] = _DEFAULT_SCOPE
        separator = "?"
        if urlsplit(endpoint).query:
            separator = "&"
        return f"{endpoint}{separator}{urlencode(parameters)}"

    @property
    def _resource(self) -> dict[str, str]:
        """Return the `resource` parameter (RFC 8707), lest the issuer mean its own userinfo."""
        if self._server.settings.ui_resource:
            return {"resource": self._server.settings.resource}
        return {}

    async def finish(self, given: Mapping[str, str], secret: str) -> Viewer:
        """Redeem the authorization code in the query of a callback, and return the viewer.

        SignInError says that another browser began the sign-in, or who refused it.
        """
        state, own = given.get("state", "").encode(), _derived(secret, "state").encode()
        if not secret or not hmac.compare_digest(state, own):
            words = "This browser did not begin the sign-in, or too long ago. Sign in again."
            raise NotBegunError(words)
        issuer = self._server.settings.issuer
        if given.get("iss", issuer) != issuer:
            raise SignInError("The response is from another issuer.")
        if "error" in given or not given.get("code"):
            raise SignInError(f"The issuer refused the sign-in{_reason(given)}.")
        metadata = await self._metadata()
        if metadata.get(_ISS_SUPPORTED) is True and "iss" not in given:
            raise SignInError("The response does not name its issuer.")
        form = {
            "grant_type": "authorization_code",
            "code": given["code"],
            "redirect_uri": self.callback,
            "client_id": self._client_id,
            "code_verifier": _derived(secret, "verifier"),
            **self._resource,
        }
        endpoint = _address(metadata, "token_endpoint")
        try:
            status, body = await self._post(endpoint, urlencode(form).encode())
            answer = _object(body)
            token = answer.get("access_token")
            if status != 200 or not isinstance(token, str):
                raise SignInError(f"The issuer issued no token{_reason(answer)}.")
            return Viewer(await self._server.verify(token), credential=token)
        except SignInError:
            raise
        except RefusedError as error:
            raise SignInError(f"The issuer's token is not accepted here: {error}.") from None
        except SkillsServerError:
            raise NoResponseError(_NO_RESPONSE) from None

    async def _metadata(self) -> Mapping[str, Any]:
        try:
            return await self._server.issuer.metadata()
        except SkillsServerError:
            raise NoResponseError(_NO_RESPONSE) from None


def _address(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not is_secure(value):
        raise SignInError("The issuer's metadata has no usable sign-in address.")
    return value


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        return mapping(load_json(raw))
    except ValueError:
        return {}


def _reason(said: Mapping[str, Any]) -> str:
    """Return an issuer's error, as RFC 6749 defines it, for a message; "" for none."""
    given = said.get("error"), said.get("error_description")
    words = [word for word in given if isinstance(word, str) and word]
    if not words:
        return ""
    return printable(f" ({clipped(': '.join(words))})")


def _derived(secret: str, what: str) -> str:
    """Derive a secret for one purpose from a browser's: 43 characters, PKCE's minimum."""
    return _encoded(hmac.digest(secret.encode("utf-8", "surrogateescape"), what.encode(), "sha256"))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
