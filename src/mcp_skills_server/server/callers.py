"""Who a request is from, as the transport and its guard found it.

A caller is bound by what it proved, so that nobody finds its sessions; it is counted by that or, where nobody has to
prove anything, by its address, so that nobody pays for what it opens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components

from mcp_skills_server.runtime.quota import Owner, owner_of


def bearer(scope: Mapping[str, Any]) -> str | None:
    """Whom the caller of a request proved to be, None where nobody has to; takes the ASGI scope, empty for a pipe."""
    user = scope.get("user")
    return json.dumps(principal_components(user.access_token)) if isinstance(user, AuthenticatedUser) else None


def principal(scope: Mapping[str, Any]) -> str | None:
    """The name of whom the caller proved to be, None where nobody has to; takes the ASGI scope, empty for a pipe."""
    user = scope.get("user")
    return user.access_token.client_id if isinstance(user, AuthenticatedUser) else None


def counted(scope: Mapping[str, Any]) -> Owner:
    """Among whose things counts what a request opens; takes the ASGI scope, empty for a pipe."""
    client: tuple[str, int] | None = scope.get("client")
    return owner_of(bearer(scope), client[0] if client else None)
