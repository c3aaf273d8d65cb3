"""Signing in at the issuer whose tokens the server takes: the authorization code flow with PKCE.

The answer is no proof by itself: the access token is proved as on any request, and is forgotten with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlencode, urlsplit

from mcp_skills_server.access.oauth import ResourceServer
from mcp_skills_server.access.principal import RefusedError
from mcp_skills_server.access.settings import is_safe
from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.model import printable
from mcp_skills_server.web.ui.look import BASE
from mcp_skills_server.web.ui.session import CALLBACK, NotBegunError, SignInError, Viewer

_MCP: Final = "/mcp"
_SAYS_WHO: Final = "authorization_response_iss_parameter_supported"
"""Says in the metadata that every answer names the issuer, so that one without it is none of it (RFC 9207)."""
_LEAST_SCOPE: Final = "openid"
"""Asked for where no other is and the issuer knows it: some refuse a request without any scope."""
_SILENT: Final = "The issuer does not answer. Try again later."

Post: TypeAlias = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class Flow:
    """Authorization code flow of a public client. For one event loop.

    It keeps nothing between the two requests: `state` and the verifier of PKCE are derived from a secret that the
    browser has in a cookie, so that any replica can finish what another began, and no other browser can end it.

    Args:
        server: proves the tokens of the issuer.
        client_id: as what the issuer knows the page.
        post: sends a form, and returns status and body.
    """

    def __init__(self, server: ResourceServer, client_id: str, post: Post) -> None:
        self._server = server
        self._client_id = client_id
        self._post = post

    @property
    def callback(self) -> str:
        """Return the redirect URI: below the URL by which clients know this server, and nowhere else."""
        parts = urlsplit(self._server.settings.resource)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(_MCP)}{BASE}{CALLBACK}"

    @property
    def host(self) -> str:
        """Return the name of the issuer's host, for people."""
        return urlsplit(self._server.settings.issuer).netloc

    async def begin(self, browser: str) -> str:
        """Return the address at the issuer to go to, for the browser that has this secret.

        Raises:
            SignInError: the issuer cannot be used now.
        """
        metadata = await self._metadata()
        place = self._address(metadata, "authorization_endpoint")
        settings = self._server.settings
        challenge = _encoded(hashlib.sha256(_derived(browser, "verifier").encode()).digest())
        # No nonce: that is OpenID's, refused without the scope openid, and PKCE binds the code to the browser already.
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self.callback,
            "state": _derived(browser, "state"),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **self._resource,
        }
        known: Any = metadata.get("scopes_supported")
        if settings.requested_scopes:
            asked["scope"] = " ".join(settings.requested_scopes)
        elif isinstance(known, list) and _LEAST_SCOPE in known:
            asked["scope"] = _LEAST_SCOPE
        return f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}"

    @property
    def _resource(self) -> dict[str, str]:
        """Return the parameter of RFC 8707 of both requests: without it an issuer may mean its own userinfo."""
        settings = self._server.settings
        return {"resource": settings.resource} if settings.ui_resource else {}

    async def finish(self, given: Mapping[str, str], browser: str) -> Viewer:
        """Redeem the authorization code, and return the viewer.

        Args:
            given: the query of the address that the issuer sent him to.
            browser: the secret of the browser that he came with.

        Raises:
            SignInError: it is not whom this browser sent there, the issuer said no, or its token is refused.
        """
        state = given.get("state", "")
        if not browser or not hmac.compare_digest(state.encode(), _derived(browser, "state").encode()):
            raise NotBegunError("This browser did not begin to sign in, or it was too long ago. Begin again.")
        issuer = self._server.settings.issuer
        if given.get("iss", issuer) != issuer:
            raise SignInError("Another issuer answered.")
        if "error" in given or not given.get("code"):
            raise SignInError(f"The issuer let nobody in{_reason(given)}.")
        metadata = await self._metadata()
        if metadata.get(_SAYS_WHO) is True and "iss" not in given:
            raise SignInError("It is not known which issuer answered.")
        place = self._address(metadata, "token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": given["code"],
            "redirect_uri": self.callback,
            "client_id": self._client_id,
            "code_verifier": _derived(browser, "verifier"),
            **self._resource,
        }
        try:
            status, body = await self._post(place, urlencode(form).encode())
        except SkillsServerError:
            raise SignInError(_SILENT) from None
        answer = _object(body)
        token = answer.get("access_token")
        if status != 200 or not isinstance(token, str):
            raise SignInError(f"The issuer gave no token{_reason(answer)}.")
        try:
            return Viewer(await self._server.verify(token), credential=token)
        except RefusedError as error:
            raise SignInError(f"The issuer's token lets nobody in here: {error}.") from None
        except SkillsServerError:
            raise SignInError(_SILENT) from None

    async def _metadata(self) -> Mapping[str, Any]:
        try:
            return await self._server.issuer.metadata()
        except SkillsServerError:
            raise SignInError(_SILENT) from None

    @staticmethod
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
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _reason(said: Mapping[str, Any]) -> str:
    """Return an issuer's words on an error, as RFC 6749 has them; "" for none."""
    words = [each for key in ("error", "error_description") if isinstance(each := said.get(key), str) and each]
    return printable(f" ({clipped(': '.join(words))})") if words else ""


def _derived(browser: str, what: str) -> str:
    """Return a secret for one use, from that of a browser. 43 characters, as PKCE wants at least."""
    return _encoded(hmac.digest(browser.encode("utf-8", "surrogateescape"), what.encode(), "sha256"))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
