"""OAuth settings for access tokens of one issuer, and checks of its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

KEY_TYPES: Final[Mapping[str, tuple[str, str | None]]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Key type and curve for each accepted signature algorithm; all are asymmetric."""
ALGORITHMS: Final = tuple(KEY_TYPES)


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
