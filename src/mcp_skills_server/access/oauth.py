"""OAuth 2.1 resource server: token verification with cached keys of an issuer (RFC 8414, JWKS).

Concurrent requests share one fetch of the keys, and unknown key ids cause at most one fetch in
thirty seconds. Known keys stay valid while the issuer is unreachable.

PyJWT's `PyJWKClient` (2.15) lacks: a limit of the response size, discovery, an async or pinned HTTP
client (it blocks all requests in urllib, under a lock), known keys while the issuer is down, a
pause after failed fetches, tokens without `kid`, and keys without `alg` for all but one RSA
algorithm.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import jwt

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.access.jwt import precheck_token, verify_token
from mcp_skills_server.access.principal import Admission, RefusedError, UnavailableError
from mcp_skills_server.access.settings import KEY_TYPES, WELL_KNOWN, OAuthSettings, is_secure
from mcp_skills_server.access.tokens import hash_of
from mcp_skills_server.errors import REPEATS, SkillsServerError, clipped
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model.decoding import load_json

logger = logging.getLogger(__name__)

Fetch: TypeAlias = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Returns (status, body of limited size) of a URL, or raises a SkillsServerError."""

_UNKNOWN_S: Final = 30.0
"""Seconds after a fetch of the keys in which an unknown key id causes no other."""
_STALE_S: Final = 900.0
"""Seconds after which the keys are fetched again, so that a withdrawn key becomes invalid."""
_RETRY_S: Final = 5.0


class _UnusableError(SkillsServerError):
    """The issuer's metadata or keys cannot be used."""


class Issuer:
    """The cached metadata and keys of one issuer; for use in one event loop."""

    def __init__(self, url: str, fetch: Fetch, now: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._metadata_urls = metadata_urls(url)
        self._fetch = fetch
        self._now = now
        self._keys: tuple[dict[str, Any], ...] = ()
        self._metadata: dict[str, Any] | None = None
        self._fetched_at = self._tried_at = -math.inf
        self._trouble = ""
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, kid: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the key with this id for this algorithm; fetch the keys if it is unknown.

        Raises:
            RefusedError: the issuer has no such key.
            UnavailableError: the issuer cannot be reached now.
        """
        key = self._known_key(kid, algorithm)
        if key is None and await self._fetch_unless_recent():
            key = self._known_key(kid, algorithm)
        if key is None and self._trouble:
            left = max(0.0, self._tried_at + _RETRY_S - self._now())
            raise UnavailableError("the issuer does not answer", 1 + int(left))
        if key is None:
            raise RefusedError("the issuer has no such key")
        return key

    async def metadata(self) -> Mapping[str, Any]:
        """Return the issuer's metadata as of the last successful fetch.

        Raises:
            UnavailableError: no fetch has succeeded yet, and the issuer cannot be reached now.
        """
        if self._metadata is None:
            await self._fetch_unless_recent()
        if self._metadata is None:
            raise UnavailableError("the issuer does not answer", 1 + int(_RETRY_S))
        self.keep_fresh()
        return self._metadata

    def keep_fresh(self) -> None:
        """Fetch the keys in the background if they are stale."""
        if self._now() - self._fetched_at > _STALE_S and self._now() - self._tried_at > _RETRY_S:
            self.start_fetch()

    def start_fetch(self) -> asyncio.Task[None]:
        """Start to fetch the keys, or return the task of the current fetch; failures are logged."""
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_and_log())
        return self._fetching

    async def _fetch_unless_recent(self) -> bool:
        """Fetch the keys, unless the last fetch was recent; return whether they were fetched."""
        pause = _UNKNOWN_S
        if self._trouble:
            pause = _RETRY_S
        if self._fetching is None and self._now() - self._tried_at < pause:
            return False
        await asyncio.shield(self.start_fetch())
        return True

    async def _fetch_and_log(self) -> None:
        try:
            self._replace_keys(await self._fetch_keys())
        except SkillsServerError as error:
            if not self._trouble:
                has = "its tokens cannot be verified"
                if self._keys:
                    has = "tokens signed by known keys are accepted"
                logger.warning(
                    "the issuer %s: %s; %s until it answers", self._url, clipped(str(error)), has
                )
            self._trouble = str(error)
        else:
            if self._trouble:
                logger.info("the issuer %s answers again", self._url)
            self._trouble = ""
            self._fetched_at = self._now()
        finally:
            self._tried_at = self._now()
            self._fetching = None

    async def _fetch_metadata(self) -> str:
        """Fetch and store the issuer's metadata; return the URL of its keys (`jwks_uri`)."""
        failed: SkillsServerError = _UnusableError("it has no metadata (RFC 8414 or OpenID)")
        for url in self._metadata_urls:
            try:
                status, body = await self._fetch(url)
            except SkillsServerError as error:
                failed = error
                continue
            if status != 200:
                if status >= 500 or status == 429:
                    failed = _UnusableError(f"{url} answers with status {status}")
                continue
            metadata = _parse_object(body, url)
            if metadata.get("issuer") != self._url:
                raise _UnusableError(
                    f"{url} is from another issuer, {clipped(repr(metadata.get('issuer')))}"
                )
            address = metadata.get("jwks_uri")
            if not isinstance(address, str) or not is_secure(address) or not self._allows(address):
                raise _UnusableError(f"{url} has no https URL of its keys (jwks_uri)")
            self._metadata = metadata
            others = (other for other in self._metadata_urls if other != url)
            self._metadata_urls = [url, *others]  # the one that answered is asked first
            return address
        raise failed

    def _allows(self, address: str) -> bool:
        """Return whether the URL is allowed: only a loopback issuer may name a loopback address."""
        issuer, keys = (is_loopback(urlsplit(url).hostname or "") for url in (self._url, address))
        return issuer or not keys

    async def _fetch_keys(self) -> list[Any]:
        address = await self._fetch_metadata()
        status, body = await self._fetch(address)
        if status != 200:
            raise _UnusableError(f"{address} answers with status {status}")
        keys: Any = _parse_object(body, address).get("keys")
        if not isinstance(keys, list):
            raise _UnusableError(f"{address} is not a key set (JWKS)")
        return cast("list[Any]", keys)

    def _replace_keys(self, keys: list[Any]) -> None:
        raw = tuple(key for key in keys if _is_public(key))
        if len(raw) < len(keys):
            logger.debug(
                "the issuer %s: %s of its keys are unusable here", self._url, len(keys) - len(raw)
            )
        if raw != self._keys:
            self._keys = raw
            logger.info("the issuer %s has %s keys", self._url, len(raw))

    def _known_key(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Return the known key with this id, or without an id the only suitable key, else None."""
        fitting = [
            key for key in self._keys if kid in (None, key.get("kid")) and _fits(key, algorithm)
        ]
        if not fitting or (kid is None and len(fitting) > 1):
            return None
        try:
            return jwt.PyJWK(fitting[0], algorithm)
        # Their messages show the key, so they are not logged.
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            logger.warning("the issuer %s: one of its keys is invalid", self._url, extra=REPEATS)
            return None


class ResourceServer:
    """A verifier of one issuer's access tokens, for use in one event loop."""

    def __init__(self, settings: OAuthSettings, fetch: Fetch) -> None:
        self.settings = settings
        self.issuer = Issuer(settings.issuer, fetch)

    @property
    def metadata_url(self) -> str:
        """Return the URL at which `metadata` is served (RFC 9728)."""
        parts = urlsplit(self.settings.resource)
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"

    @property
    def metadata(self) -> dict[str, object]:
        """Return the metadata of this resource (RFC 9728)."""
        metadata: dict[str, object] = {
            "resource": self.settings.resource,
            "authorization_servers": [self.settings.issuer],
            "bearer_methods_supported": ["header"],
        }
        if self.settings.requested_scopes:
            metadata["scopes_supported"] = [*self.settings.requested_scopes]
        return metadata

    async def verify(self, token: str) -> Admission:
        """Return the admission of the bearer of this token.

        Raises:
            RefusedError: the token is invalid; ScopeError if it lacks a required scope.
            UnavailableError: the issuer cannot be reached now.
        """
        self.issuer.keep_fresh()
        algorithm, kid = precheck_token(token, self.settings)
        key = await self.issuer.key(kid, algorithm)
        principal, expires = verify_token(token, key, algorithm, self.settings)
        return Admission(principal, hash_of(token), expires)


def metadata_urls(issuer: str) -> list[str]:
    """Return the possible metadata URLs of an issuer: RFC 8414's, its form for OpenID, OpenID's."""
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = (
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}/.well-known/openid-configuration{path}",
        f"{base}{path}/.well-known/openid-configuration",
    )
    return [*dict.fromkeys(urls)]


def _parse_object(body: bytes, url: str) -> dict[str, Any]:
    try:
        answer: Any = load_json(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _UnusableError(f"{url} is not a JSON object")
    return cast("dict[str, Any]", answer)


def _is_public(key: Any) -> bool:
    """Return whether an item of a key set is a public key for signatures."""
    fields = mapping(key)
    kind, use = fields.get("kty"), fields.get("use", "sig")
    return kind in ("RSA", "EC", "OKP") and "d" not in fields and use == "sig"


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    kind, curve = KEY_TYPES[algorithm]
    operations: Any = key.get("key_ops", ["verify"])
    return (
        key["kty"] == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("alg", algorithm) == algorithm
        and isinstance(operations, list)
        and "verify" in operations
    )
