"""OAuth settings for access tokens of one issuer, and checks of its URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.model import keys
from mcp_skills_server.model.keys import ContradictionError, Key, Table

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""The well-known path prefix of a resource's metadata (RFC 9728), before the resource's path."""
KEY_TYPES: Final[Mapping[str, tuple[str, str | None]]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Key type and curve for each accepted signature algorithm; all are asymmetric."""
ALGORITHMS: Final = tuple(KEY_TYPES)


def is_secure(url: str) -> bool:
    """Tell whether a URL is well-formed and protected: https, or http to a loopback address."""
    if not (url.isascii() and url.isprintable()) or any(character in url for character in ' "<>\\'):
        return False  # the URL is written into a header, between quotes
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))


_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
_ENDPOINT: Final = "https://skills.example/mcp"
_read_scopes: Final = keys.list_of(keys.text_that(_SCOPE.fullmatch))


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """The expected issuer, audience and claims of access tokens."""

    issuer: str  # as its metadata and `iss` spell it
    audience: str
    resource: str  # URL of this server as its clients use it
    groups_claim: str = "groups"  # dots separate nested names, as in `realm_access.roles`
    scopes: tuple[str, ...] = ()  # that a token must have
    algorithms: tuple[str, ...] = ALGORITHMS
    skew_s: float = 60.0  # tolerated clock skew
    ui_client_id: str | None = None  # None disables sign-in to the page at the issuer
    principal_claim: str = "preferred_username"  # display name; it authorizes nothing
    request_scopes: tuple[str, ...] = ()  # if the issuer names scopes differently in its tokens
    ui_resource: bool = True  # whether the page sends the resource indicator of RFC 8707

    TABLE: ClassVar = Table(
        {
            "issuer": Key(
                'the https URL of the issuer as in its metadata, such as "https://login.example"',
                keys.text_that(lambda url: is_secure(url) and not urlsplit(url).query),
                'issuer = "https://login.example"',
            ),
            "audience": Key(
                f'the aud of its tokens, such as "{_ENDPOINT}"', missing=f'audience = "{_ENDPOINT}"'
            ),
            "resource": Key(
                f'the https URL of the endpoint for clients, such as "{_ENDPOINT}"',
                keys.text_that(is_secure),
            ),
            "groups-claim": Key('the name of a claim, such as "groups" or "realm_access.roles"'),
            "scopes": Key('a list of scopes, all required, such as ["skills:read"]', _read_scopes),
            "algorithms": keys.names(ALGORITHMS, least=1),
            "skew": keys.number(0, 600),
            "ui-client-id": Key("the client id of the page of --ui at the issuer, a public client"),
            "principal-claim": Key('the name of a claim to show beside sub, such as "email"'),
            "request-scopes": Key(
                'a list of scopes to ask the issuer for, such as ["api://skills/read"]',
                _read_scopes,
            ),
            "ui-resource": keys.FLAG,
        },
        "write a table [oauth] with issuer and audience",
        is_single=True,
    )

    @classmethod
    def from_table(cls, values: Mapping[str, Any]) -> OAuthSettings:
        """Return the settings of a table with these values, or raise ContradictionError."""
        audience = values["audience"]
        if "resource" not in values and not is_secure(audience):
            hint = f'add resource = "{_ENDPOINT}"'
            reason = "this is not an https URL, so it cannot be the URL of the endpoint"
            raise ContradictionError("audience", reason, hint)
        return cls(**{"resource": audience, **keys.fields_of(values, "skew")})

    @property
    def requested_scopes(self) -> tuple[str, ...]:
        """Return the scopes that clients and the page request from the issuer."""
        return self.request_scopes or self.scopes
