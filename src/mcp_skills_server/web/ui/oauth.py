"""Signing in at the issuer whose tokens the server takes: the authorization code flow with PKCE.

What comes back lets nobody in by itself: the access token is proved as on any request, and is forgotten with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlencode, urlsplit

from mcp_skills_server.access.admission import RefusedError
from mcp_skills_server.access.issuer import Fetch, metadata_urls
from mcp_skills_server.access.oauth import ResourceServer
from mcp_skills_server.access.settings import is_safe
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.web.ui.look import BASE
from mcp_skills_server.web.ui.session import CALLBACK, SignInError, Viewer

_MCP: Final = "/mcp"
_SAYS_WHO: Final = "authorization_response_iss_parameter_supported"
"""Says in the metadata that every answer names the issuer, so that one without it is none of it (RFC 9207)."""

Post: TypeAlias = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class Flow:
    """Takes people to the issuer and back. For one event loop.

    Args:
        server: proves the tokens of the issuer.
        client_id: as what the issuer knows the page.
        fetch: gets the issuer's metadata.
        post: sends a form, and returns status and body.
    """

    def __init__(
        self,
        server: ResourceServer,
        client_id: str,
        fetch: Fetch,
        post: Post,
    ) -> None:
        self._server = server
        self._client_id = client_id
        self._fetch = fetch
        self._post = post

    @property
    def callback(self) -> str:
        """Where the issuer sends people back to: below the URL by which clients know this server, and nowhere else."""
        parts = urlsplit(self._server.settings.resource)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(_MCP)}{BASE}{CALLBACK}"

    @property
    def host(self) -> str:
        """The name of the issuer's host, for people."""
        return urlsplit(self._server.settings.issuer).netloc

    async def begin(self, browser: str) -> str:
        """The address at the issuer to go to, for the browser that has this secret.

        Raises:
            SignInError: the issuer cannot be used now.
        """
        place = self._address(await self._metadata(), "authorization_endpoint")
        settings = self._server.settings
        challenge = _base64(hashlib.sha256(_derived(browser, "verifier").encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self.callback,
            "state": _derived(browser, "state"),
            "nonce": _derived(browser, "nonce"),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": settings.resource,
        }
        if settings.scopes:
            asked["scope"] = " ".join(settings.scopes)
        return f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}"

    async def finish(self, given: Mapping[str, str], browser: str) -> Viewer:
        """Who came back from the issuer.

        Args:
            given: the query of the address that the issuer sent him to.
            browser: the secret of the browser that he came with.

        Raises:
            SignInError: it is not whom this browser sent there, the issuer said no, or its token lets nobody in.
        """
        state = given.get("state", "").encode("utf-8", "surrogateescape")
        if not browser or not hmac.compare_digest(state, _derived(browser, "state").encode()):
            raise SignInError("This browser did not begin to sign in, or it was too long ago. Begin again.")
        issuer = self._server.settings.issuer
        if given.get("iss", issuer) != issuer:
            raise SignInError("Another issuer answered.")
        if "error" in given or not given.get("code"):
            raise SignInError("The issuer let nobody in.")
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
            "resource": self._server.settings.resource,
        }
        try:
            status, body = await self._post(place, urlencode(form).encode())
            answer = _object(body) if status == 200 else {}
        except SkillsServerError:
            raise SignInError("The issuer does not answer. Try again later.") from None
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise SignInError("The issuer gave no token.")
        identity = answer.get("id_token")
        if isinstance(identity, str) and _claims(identity).get("nonce") != _derived(browser, "nonce"):
            raise SignInError("The issuer's answer belongs to something else.")
        try:
            return Viewer(await self._server.verify(token), credential=token)
        except RefusedError as error:
            raise SignInError(f"The issuer's token lets nobody in here: {error}.") from None
        except SkillsServerError:
            raise SignInError("The issuer does not answer. Try again later.") from None

    async def _metadata(self) -> dict[str, Any]:
        issuer = self._server.settings.issuer
        for place in metadata_urls(issuer):
            try:
                status, body = await self._fetch(place)
            except SkillsServerError:
                continue
            if status == 200 and (found := _object(body)).get("issuer") == issuer:
                return found
        raise SignInError("The issuer does not answer. Try again later.")

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


def _claims(token: str) -> dict[str, Any]:
    """What an identity token says. It came from the issuer itself, over a connection that nobody can change."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        return _object(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return {}


def _derived(browser: str, purpose: str) -> str:
    """Derive a value from the secret in the browser's cookie, so that any replica can finish what another began."""
    return _base64(hmac.digest(browser.encode("utf-8", "surrogateescape"), purpose.encode(), "sha256"))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
