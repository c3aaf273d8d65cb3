"""OAuth settings for access tokens of one issuer, and checks of its URLs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""The asymmetric signature algorithms of JWT that are accepted."""


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """The expected issuer, audience and claims of access tokens.

    Attributes:
        issuer: the issuer, as its metadata and `iss` spell it.
        audience: required value of `aud`.
        resource: URL of this server as its clients use it.
        groups_claim: claim with the groups; dots separate nested names, as in `realm_access.roles`.
        scopes: scopes that a token must have.
        algorithms: accepted signature algorithms.
        skew_s: tolerated clock skew in seconds.
        ui_client_id: OAuth client id of the page; None disables sign-in at the issuer.
        principal_claim: claim for the display name of a principal; it authorizes nothing.
        request_scopes: scopes to request, if the issuer names them differently in its tokens.
        ui_resource: whether the page sends the resource indicator of RFC 8707.
    """

    issuer: str
    audience: str
    resource: str
    groups_claim: str = "groups"
    scopes: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS
    skew_s: float = 60.0
    ui_client_id: str | None = None
    principal_claim: str = "preferred_username"
    request_scopes: tuple[str, ...] = ()
    ui_resource: bool = True

    @property
    def requested_scopes(self) -> tuple[str, ...]:
        """Return the scopes that clients and the page request from the issuer."""
        return self.request_scopes or self.scopes


def is_loopback(host: str) -> bool:
    """Tell whether an address or host name is a loopback one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_secure(url: str) -> bool:
    """Tell whether a URL is well-formed and protected: https, or http to a loopback address."""
    if not (url.isascii() and url.isprintable()) or any(each in url for each in ' "<>\\'):
        return False  # the URL is written into a header, between quotes
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
