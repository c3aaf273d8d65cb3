"""Headers of trusted reverse proxies, and the path prefix of `--root-path`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_skills_server.access.quota import owner_of
from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.forwarded import PREFIX, checked_prefix, strip_prefix, trusted_networks
from tables import each_row

PROXY = "10.0.0.1"
TRUSTED = trusted_networks(["10.0.0.0/8", "fd00::/8"])
REAL = "203.0.113.7"


def scope_in_app(path: str = "/mcp", peer: str = PROXY, forwarded_for: str = "") -> dict[str, Any]:
    """Return the ASGI scope of a request as the application gets it, with the prefix `/skills`."""
    headers = [(b"x-forwarded-for", forwarded_for.encode())]
    given = {"type": "http", "path": path, "scheme": "http", "client": (peer, 5), "headers": headers}
    scopes: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        strip_prefix(scope, "/skills")
        scopes.append(scope)

    stack: Any = ProxyHeadersMiddleware(app, TRUSTED)
    anyio.run(stack, given, app, app)
    return scopes[0]


@each_row(("forwarded_for", "client"), [
    (REAL, REAL), (f"{REAL}:4711", REAL), (f"6.6.6.6, {REAL}, 10.9.9.9", REAL), ("2001:db8::1", "2001:db8::/64"),
    ("::ffff:203.0.113.7", REAL), ("", PROXY),
])  # fmt: skip
def test_client_is_last_address_that_is_no_trusted_proxy(forwarded_for: str, client: str) -> None:
    for peer in (PROXY, f"::ffff:{PROXY}"):  # as a dual-stack socket sees it
        scope = scope_in_app(peer=peer, forwarded_for=forwarded_for)
        assert str(owner_of(None, scope["client"][0])) == f"address {client}"


@each_row("prefix", [
    "skills", "//evil.example", "/a//b", "/../x", "/a/..", "/.", "/a?b", "/a%2fb", "/a b", "/" + "a" * 256, "/é",
    "/.well-known/agent-skills",
])  # fmt: skip
def test_malformed_root_path_is_usage_error(prefix: str) -> None:
    with pytest.raises(UsageError, match="--root-path takes a path such as /skills"):
        checked_prefix(prefix)


def test_root_path_loses_trailing_slash() -> None:
    longest = "/" + "a" * 255
    given = ("", "/", "/skills", "/a/b.c/", "/~me", longest)
    assert [checked_prefix(each) for each in given] == ["", "", "/skills", "/a/b.c", "/~me", longest]


@each_row("given", ["", "proxy", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1/8", "::/129", "1.2.3", "unix"])
def test_malformed_trusted_proxy_is_refused_with_one_line(given: str) -> None:
    with pytest.raises(UsageError, match="--trusted-proxy takes an address or a network") as caught:
        trusted_networks([given])
    assert "\n" not in str(caught.value)


RESOURCE = "/.well-known/oauth-protected-resource"


@each_row(("path", "stripped"), [
    ("/skills/mcp", "/mcp"), ("/mcp", "/mcp"),
    ("/skills/skills/mcp", "/skills/mcp"),  # only one prefix is stripped
    ("/skills", "/skills"), ("/skills/", "/"), ("/skillset/mcp", "/skillset/mcp"), ("//skills/mcp", "//skills/mcp"),
    ("/skills//evil.example", "//evil.example"),
    # RFC 9728 inserts the well-known name before the path of the resource.
    (f"{RESOURCE}/skills/mcp", f"{RESOURCE}/mcp"), (f"/skills{RESOURCE}/mcp", f"{RESOURCE}/mcp"),
    (RESOURCE, RESOURCE),
    ("/.well-known/agent-skills/skills/x", "/.well-known/agent-skills/skills/x"),
])  # fmt: skip
def test_prefix_is_stripped_once(path: str, stripped: str) -> None:
    scope = scope_in_app(path)
    assert (scope["path"], scope[PREFIX]) == (stripped, "/skills")
