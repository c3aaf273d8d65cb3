"""The caller of a request as far as its identity was proved, or the reason why it was not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mcp_skills_server.errors import SkillsServerError


class Principal(NamedTuple):
    """A client that proved a name.

    Attributes:
        kind: "token" for a line of the token file, "user" for whom an issuer vouches.
        name: the name of the line, or the issuer's subject.
        issuer: who vouches for a user; "" for a token.
        groups: the groups that the line or the issuer says.
        scopes: what the issuer lets the bearer do; empty for a token.
        label: what the issuer calls a user for people, such as "ann"; "" where it does not. Nothing
            is decided by it: OpenID Connect lets it change and pass on to another user.
    """

    kind: Literal["token", "user"]
    name: str
    issuer: str = ""
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    label: str = ""

    @property
    def id(self) -> str:
        """The name in grants, logs and the audit log, such as "token:laptop"."""
        return f"{self.kind}:{self.name}"

    @property
    def key(self) -> str:
        """The key of sessions and quotas: the same for each request of one principal, and for no
        other's."""
        return f"{self.id} {self.issuer}" if self.issuer else self.id


@dataclass(frozen=True, slots=True)
class Admission:
    """A client that is admitted.

    Attributes:
        principal: who it is.
        hashed: SHA-256 of what was borne, by which it can be taken away.
        expires: seconds since the epoch after which it is refused; infinite where it holds for
            good.
    """

    principal: Principal
    hashed: bytes
    expires: float = math.inf


class RefusedError(SkillsServerError):
    """The credential is refused. The message is for the operator's log, and has nothing of a
    token."""


class ScopeError(RefusedError):
    """The bearer is known, and the issuer did not let it do this."""


class UnavailableError(SkillsServerError):
    """The credential cannot be verified now. `retry_after_s` is when to ask again."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
