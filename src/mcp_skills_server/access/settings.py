"""Settings of an issuer of access tokens."""

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
        audience: what `aud` must name.
        resource: the URL by which clients know this server.
        groups_claim: the claim that has the groups; dots lead into objects, as in
            `realm_access.roles`.
        scopes: scopes that a token must have.
        algorithms: signature algorithms that are accepted.
        skew_s: seconds by which clocks may differ.
        ui_client_id: OAuth client id of the page; None where people cannot sign in at the issuer.
        principal_claim: the claim that is shown beside the subject; it authorizes nothing.
        request_scopes: scopes to ask the issuer for, where it spells them otherwise than its tokens
            do.
        ui_resource: whether the page names the resource to the issuer, as RFC 8707 has it.
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
        """The scopes that clients and the page ask the issuer for."""
        return self.request_scopes or self.scopes


def is_loopback(host: str) -> bool:
    """Tell whether this address, or name, reaches this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_safe(url: str) -> bool:
    """Tell whether traffic to this URL is safe from others: https, or http to a loopback
    address."""
    if not (url.isascii() and url.isprintable()) or any(each in url for each in ' "<>\\'):
        return False  # it stands in a header, between quotes
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
