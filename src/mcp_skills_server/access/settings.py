"""Settings of an issuer of access tokens."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those that a token may be signed by: with a key of which the issuer publishes the other half."""


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """Whose tokens are taken, and what must stand in them.

    Attributes:
        issuer: the issuer, as its metadata and `iss` spell it.
        audience: what `aud` must name.
        resource: the URL by which clients know this server.
        groups_claim: the claim that has the groups; dots lead into objects, as in `realm_access.roles`.
        scopes: scopes that are all wanted.
        algorithms: by which a token may be signed.
        skew_s: seconds by which clocks may differ.
        ui_client_id: as what the issuer knows the page, where people sign in; None where they cannot at the issuer.
        principal_claim: the claim that is shown beside the subject. Nothing is decided by it.
        request_scopes: scopes to ask the issuer for, where it spells them otherwise than its tokens do.
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
    """Tell whether no one on the way can read or change what goes to this URL: https, or http to this machine."""
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
