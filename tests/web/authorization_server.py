"""An OAuth authorization server on loopback, with the SDK's endpoints and signed access tokens.

Its page signs in every visitor as `user`.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import time
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import build_metadata, create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from access.signing import public, signed
from wire import DEADLINE

_LIFETIME_S = 3600
_SCOPES = ["skills:read", "skills:run"]


class AuthorizationServer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The state of the server.

    Attributes:
        requests: the paths of the received requests, in order.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.user, self.groups = "ann", ["finance"]
        self.requests: list[str] = []
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.resources: list[str | None] = []
        self._codes: dict[str, AuthorizationCode] = {}

    def token(self, audience: str, scopes: list[str], **more: Any) -> str:
        now = int(time())
        claims = {"iss": self.url, "sub": self.user, "aud": audience, "iat": now, "exp": now + _LIFETIME_S}
        claims |= {"scope": " ".join(scopes), "groups": self.groups, "jti": secrets.token_hex()}
        return signed({**claims, **more})

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id or ""] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Return the redirect back to the client, with a code."""
        fields = params.model_dump(exclude={"state"})
        fields |= {"scopes": params.scopes or [], "client_id": client.client_id or ""}
        fields |= {"code": secrets.token_urlsafe(32), "expires_at": time() + 60}
        code = AuthorizationCode(**fields, subject=self.user)
        self._codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        """Return a token for the resource that the client named (RFC 8707)."""
        del self._codes[authorization_code.code]
        self.resources.append(authorization_code.resource)
        token = self.token(authorization_code.resource or "", authorization_code.scopes)
        return OAuthToken(access_token=token, expires_in=_LIFETIME_S, scope=" ".join(authorization_code.scopes))

    def app(self) -> Starlette:
        """Return the application: the SDK's endpoints, metadata, and keys."""
        registration = ClientRegistrationOptions(enabled=True, valid_scopes=_SCOPES, default_scopes=_SCOPES)
        url = AnyHttpUrl(self.url)
        built = build_metadata(url, None, registration, RevocationOptions())
        metadata = built.model_dump(mode="json", exclude_none=True)
        metadata |= {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

        async def describe(request: Request) -> JSONResponse:
            return JSONResponse(metadata)

        async def keys(request: Request) -> JSONResponse:
            return JSONResponse({"keys": [public()]})

        routes = [Route("/.well-known/oauth-authorization-server", describe), Route("/keys", keys)]
        app = Starlette(routes=[*routes, *create_auth_routes(self, url, client_registration_options=registration)])

        async def record_path(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.requests.append(scope["path"])
            await app(scope, receive, send)

        return record_path  # type: ignore[return-value]


@contextmanager
def authorization_server() -> Iterator[AuthorizationServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        issuer = AuthorizationServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        config = uvicorn.Config(issuer.app(), log_config=None, access_log=False, ws="none", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield issuer
        finally:
            server.should_exit = True
            thread.join(DEADLINE)
