"""Sign-in at an OAuth issuer: the authorization code flow of a public client, with PKCE.

The issuer's response proves nothing by itself: the access token is verified as on any request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

from mcp_skills_server.access.principal import RefusedError
from mcp_skills_server.access.settings import is_secure
from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.web.ui.addresses import BASE
from mcp_skills_server.web.ui.session import Viewer

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer

CALLBACK: Final = "/oauth/callback"
"""Path of the redirect URI, to which the issuer sends browsers back."""
_MCP: Final = "/mcp"
_ISS_SUPPORTED: Final = "authorization_response_iss_parameter_supported"
"""Metadata flag: each response of the issuer names it; others are forged (RFC 9207)."""
_DEFAULT_SCOPE: Final = "openid"
"""Default scope, if the issuer knows it: some refuse a request without any scope."""
_NO_RESPONSE: Final = "The issuer does not respond. Try again later."

Post: TypeAlias = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class SignInError(SkillsServerError):
    """A failed sign-in. The message is for the person who tried."""


class NotBegunError(SignInError):
    """A callback to a browser that began no sign-in, which any foreign page can cause."""


class NoResponseError(SignInError):
    """The issuer does not respond; this is no refusal."""


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
