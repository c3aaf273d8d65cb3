"""The principal and the quota owner of a request, from the ASGI scope."""

from __future__ import annotations

from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from mcp_skills_server.server.sdk import principal, quota_owner


def scope(name: str | None, address: str | None) -> dict[str, Any]:
    out: dict[str, Any] = {"client": None if address is None else (address, 1234)}
    if name is not None:
        out["user"] = AuthenticatedUser(AccessToken(token="t", client_id=name, scopes=[]))
    return out


def test_a_request_counts_for_its_token_else_for_its_address_else_for_nobody() -> None:
    one, moved, other = scope("a", "192.0.2.1"), scope("a", "192.0.2.2"), scope("b", "192.0.2.1")
    assert principal(one) is not None and principal(one) == principal(moved) != principal(other)
    assert quota_owner(one) == quota_owner(moved) != quota_owner(other)
    plain = scope(None, "192.0.2.1")
    assert principal(plain) is None and quota_owner(plain) is not None
    assert quota_owner(plain) == quota_owner(scope(None, "192.0.2.1")) != quota_owner(scope(None, "192.0.2.2"))
    assert quota_owner(plain) != quota_owner(scope("192.0.2.1", None))  # a token may be called like an address
    for pipe in ({}, scope(None, None)):
        assert principal(pipe) is None and quota_owner(pipe) is None
