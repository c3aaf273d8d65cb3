"""The server as a resource of OAuth 2.1: takes the tokens that one issuer signs for it."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import urlsplit

from mcp_skills_server.access import jwt
from mcp_skills_server.access.issuer import Fetch, Issuer
from mcp_skills_server.access.principal import Admission
from mcp_skills_server.access.settings import OAuthSettings

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""Where RFC 9728 has the metadata of a resource; the resource's own path comes after it."""


class ResourceServer:
    """Verifies tokens of the issuer, whose metadata and keys `fetch` gets. For one event loop."""

    def __init__(self, settings: OAuthSettings, fetch: Fetch) -> None:
        self.settings = settings
        self.issuer = Issuer(settings.issuer, fetch)

    @property
    def metadata_url(self) -> str:
        """Return the URL of `metadata`."""
        parts = urlsplit(self.settings.resource)
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"

    @property
    def metadata(self) -> dict[str, object]:
        """Return the metadata of this resource (RFC 9728)."""
        settings = self.settings
        found: dict[str, object] = {
            "resource": settings.resource,
            "authorization_servers": [settings.issuer],
            "bearer_methods_supported": ["header"],
        }
        if settings.requested_scopes:
            found["scopes_supported"] = [*settings.requested_scopes]
        return found

    def begin(self) -> None:
        """Look at the issuer's keys, so that the first request finds them."""
        self.issuer.look()

    async def verify(self, token: str) -> Admission:
        """Return the admission of the bearer of this token.

        Raises:
            RefusedError: the token is refused; a ScopeError where it has not all scopes that are wanted.
            UnavailableError: that cannot be found out now.
        """
        self.issuer.keep_fresh()
        algorithm, kid = jwt.look(token, self.settings)
        key = await self.issuer.key(kid, algorithm)
        principal, expires = jwt.prove(token, key, algorithm, self.settings)
        return Admission(principal, hashlib.sha256(token.encode()).digest(), expires)
