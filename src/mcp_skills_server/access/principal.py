"""Authenticated principals, the requester of a request, and the errors of authentication."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.errors import SkillsServerError

_IPV6_NETWORK: Final = 64
"""The prefix length of an IPv6 network that one client controls."""

Owner: TypeAlias = str | None
"""The key of a quota's owner. None stands for indistinguishable clients, as on stdio, and may
use the total."""


class Principal(NamedTuple):
    """An authenticated client: a line of the token file, or a user of an issuer."""

    kind: Literal["token", "user"]
    name: str  # of the line, or the issuer's subject
    issuer: str = ""  # of a user
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()  # of a user
    label: str = ""
    """Display name of a user, such as "ann". It authorizes nothing: OpenID Connect allows it to
    change and to be reassigned."""

    @property
    def id(self) -> str:
        """Return the name in grants, logs and the audit log, such as "token:laptop"."""
        return f"{self.kind}:{self.name}"

    @property
    def key(self) -> str:
        """Return the unique key of the principal for sessions and quotas."""
        return f"{self.id} {self.issuer}" if self.issuer else self.id


class Requester(NamedTuple):
    """The sender of a request.

    Attributes:
        principal: None without authentication.
        address: its network address; None for a pipe.
        owner: the owner whose quotas count the request; None for indistinguishable ones.
    """

    principal: Principal | None = None
    address: str | None = None
    owner: Owner = None


LOCAL_REQUESTER: Final = Requester()
"""The requester of all requests on a pipe."""


def owner_of(principal: str | None, address: str | None) -> Owner:
    """Return a request's owner: its authenticated principal, else its network, else None."""
    if principal is not None:
        return principal
    if not address:
        return None
    return _owner_of_address(address)


@lru_cache(maxsize=4096)
def _owner_of_address(address: str) -> str:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {address}"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"address {parsed.ipv4_mapped}"
        if not parsed.is_loopback:
            network = int(parsed) >> (128 - _IPV6_NETWORK) << (128 - _IPV6_NETWORK)
            return f"address {IPv6Address(network)}/{_IPV6_NETWORK}"
    return f"address {parsed}"


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of a successful authentication."""

    principal: Principal
    hashed: bytes  # SHA-256 of the bearer token, by which the admission can be revoked
    expires: float = math.inf  # seconds since the epoch


class RefusedError(SkillsServerError):
    """Raised for an invalid credential; the message for the log shows no part of a token."""


class ScopeError(RefusedError):
    """Raised for a valid token that lacks a required scope."""


class UnavailableError(SkillsServerError):
    """Raised if a credential cannot be verified now; retry after `retry_after_s` seconds."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
