"""Principal, quota owner and address of a request, as the transport and its guard found them.

Sessions are bound to the principal. Quotas count by the principal or, where none is required, by the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.runtime.quota import Owner, owner_of

PRINCIPAL: Final = "principal"
"""The key of the ASGI scope that holds the principal, set by our guard."""


def principal(scope: Mapping[str, Any]) -> Principal | None:
    """Return the proved identity of a request's caller, None where none is required; takes the ASGI scope, empty for a
    pipe.
    """
    found: Principal | None = scope.get(PRINCIPAL)
    if found is not None:
        return found
    user = scope.get("user")
    if not isinstance(user, AuthenticatedUser):  # of the server that we are attached to
        return None
    client, issuer, subject = principal_components(user.access_token)
    return Principal("user", subject or client or "", issuer or "", scopes=frozenset(user.access_token.scopes))


def counted(scope: Mapping[str, Any]) -> Owner:
    """Return the owner whose quotas count what a request opens; takes the ASGI scope, empty for a pipe."""
    who = principal(scope)
    return owner_of(None if who is None else who.key, address(scope))


def address(scope: Mapping[str, Any]) -> str | None:
    """Return the address that a request comes from; takes the ASGI scope, empty for a pipe."""
    client: tuple[str, int] | None = scope.get("client")
    if client:
        return client[0]
    return None
