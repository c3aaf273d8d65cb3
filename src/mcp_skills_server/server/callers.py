"""Who a request is from, as the transport and its guard found it.

A caller is bound by what it proved, so that nobody finds its sessions; it is counted by that or, where nobody has to
prove anything, by its address, so that nobody pays for what it opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.runtime.quota import Owner, owner_of

PRINCIPAL: Final = "principal"
"""Where our guard leaves the principal in the ASGI scope."""


def principal(scope: Mapping[str, Any]) -> Principal | None:
    """Whom the caller of a request proved to be, None where nobody has to; takes the ASGI scope, empty for a pipe."""
    found: Principal | None = scope.get(PRINCIPAL)
    if found is not None:
        return found
    user = scope.get("user")
    if not isinstance(user, AuthenticatedUser):  # of the server that we are attached to
        return None
    client, issuer, subject = principal_components(user.access_token)
    return Principal("user", subject or client or "", issuer or "", scopes=frozenset(user.access_token.scopes))


def counted(scope: Mapping[str, Any]) -> Owner:
    """Among whose things counts what a request opens; takes the ASGI scope, empty for a pipe."""
    who = principal(scope)
    return owner_of(None if who is None else who.key, address(scope))


def address(scope: Mapping[str, Any]) -> str | None:
    """The address that a request comes from; takes the ASGI scope, empty for a pipe."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else None
