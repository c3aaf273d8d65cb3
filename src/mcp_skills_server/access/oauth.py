"""The server as a resource of OAuth 2.1: takes the tokens that one issuer signs for it.

A token that was proved is not proved again until it ends or the issuer has other keys.
"""

from __future__ import annotations

import hashlib
import time
from typing import Final
from urllib.parse import urlsplit

from mcp_skills_server.access import jwt
from mcp_skills_server.access.admission import Admission, RefusedError
from mcp_skills_server.access.issuer import Fetch, Issuer
from mcp_skills_server.access.settings import OAuthSettings

_MOST_PROVED: Final = 4_096
WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""Where RFC 9728 has the metadata of a resource; the resource's own path comes after it."""


class ResourceServer:
    """Verifies tokens of the issuer. For one event loop.

    Args:
        settings: whose tokens are taken, and what must stand in them.
        fetch: gets the issuer's metadata and its keys.

    Attributes:
        issuer: its metadata and its keys.
    """

    def __init__(self, settings: OAuthSettings, fetch: Fetch) -> None:
        self.settings = settings
        self.issuer = Issuer(settings.issuer, fetch)
        self._proved: dict[bytes, Admission] = {}
        self._version = 0

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
        hashed = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        self._forget_older()
        known = self._proved.get(hashed)
        if known is not None:
            if known.expires > time.time():
                return known
            del self._proved[hashed]
            raise RefusedError("it has expired")
        claimed = jwt.look(token, self.settings)
        key = await self.issuer.key(claimed.kid, claimed.algorithm)
        principal, expires = jwt.prove(token, key, claimed, self.settings)
        found = Admission(principal, hashed, expires)
        self._forget_older()  # there may have been a look
        if len(self._proved) >= _MOST_PROVED:
            del self._proved[next(iter(self._proved))]
        self._proved[hashed] = found
        return found

    def _forget_older(self) -> None:
        """Forget what was proved by keys that may be the issuer's no more."""
        if self._version != self.issuer.version:
            self._proved.clear()
            self._version = self.issuer.version
