"""Who asks, as far as the transport had it proved."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Principal(NamedTuple):
    """A client that proved a name.

    Attributes:
        kind: "token" for a line of the token file, "user" for whom an issuer vouches.
        name: the name of the line, or the issuer's subject.
        issuer: who vouches for a user; "" for a token.
        groups: the groups that the line or the issuer says.
        scopes: what the issuer lets the bearer do; empty for a token.
        label: what the issuer calls a user for people, such as "ann"; "" where it does not. Nothing is decided by it:
            OpenID Connect lets it change and pass on to another user.
    """

    kind: Literal["token", "user"]
    name: str
    issuer: str = ""
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    label: str = ""

    @property
    def id(self) -> str:
        """What grants, logs and the audit log call it, such as "token:laptop"."""
        return f"{self.kind}:{self.name}"

    @property
    def key(self) -> str:
        """What sessions and quotas are bound to: the same for each request of one principal, and for no other's."""
        return f"{self.id} {self.issuer}" if self.issuer else self.id
