"""Authenticated principals, and the errors of authentication."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mcp_skills_server.errors import SkillsServerError


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
