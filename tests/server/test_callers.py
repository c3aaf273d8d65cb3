"""Who a request is from, out of scopes as a transport and its guard leave them."""

from __future__ import annotations

from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from mcp_skills_server.server.sdk import principal, quota_owner


def scope(name: str | None, address: str | None) -> dict[str, Any]:
    out: dict[str, Any] = {"client": None if address is None else (address, 1234)}
    return (
        out if name is None else {**out, "user": AuthenticatedUser(AccessToken(token="t", client_id=name, scopes=[]))}
    )


def test_nobody_has_to_prove_anything_over_a_pipe() -> None:
    assert principal({}) is None and quota_owner({}) is None


def test_a_bearer_is_bound_and_counted_by_the_token_and_not_by_the_address() -> None:
    one, moved, other = scope("a", "192.0.2.1"), scope("a", "192.0.2.2"), scope("b", "192.0.2.1")
    assert principal(one) is not None and principal(one) == principal(moved) != principal(other)
    assert quota_owner(one) is not None and quota_owner(one) == quota_owner(moved) != quota_owner(other)


def test_who_proves_nothing_is_counted_by_the_address_and_bound_to_nothing() -> None:
    one, other = scope(None, "192.0.2.1"), scope(None, "192.0.2.2")
    assert principal(one) is None
    assert quota_owner(one) is not None and quota_owner(one) == quota_owner(scope(None, "192.0.2.1")) != quota_owner(
        other
    )
    assert quota_owner(scope(None, None)) is None
    assert quota_owner(one) != quota_owner(scope("192.0.2.1", None))  # a token may be called like an address
