"""Requests behind a proxy: what a trusted one says of its client is believed, and what a client says never."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_skills_server.errors import UsageError
from mcp_skills_server.server.sdk import quota_owner
from mcp_skills_server.web.forwarded import PREFIX, RootPath, checked_prefix, trusted_networks
from tables import each_row

PROXY = "10.0.0.1"
TRUSTED = trusted_networks(["10.0.0.0/8", "fd00::/8"])
REAL = "203.0.113.7"


def seen_of(path: str = "/mcp", peer: str | None = PROXY, **headers: str) -> dict[str, Any]:
    """The scope that the application sees of a request with `X-Forwarded-` headers, of a server at `/skills`."""
    raw = [(f"x-forwarded-{name}".encode(), value.encode()) for name, value in headers.items()]
    client = None if peer is None else (peer, 5)
    given = {"type": "http", "path": path, "scheme": "http", "client": client, "headers": raw}
    seen: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        seen.append(scope)

    stack: Any = ProxyHeadersMiddleware(RootPath(app, "/skills"), TRUSTED)  # type: ignore[arg-type]
    anyio.run(stack, given, app, app)  # neither side says anything more
    return seen[0]


@each_row(
    ("value", "client"),
    [
        (REAL, REAL), (f"{REAL}:4711", REAL), (f"6.6.6.6, {REAL}, 10.9.9.9", REAL), ("2001:db8::1", "2001:db8::/64"),
        ("::ffff:203.0.113.7", REAL), ("", PROXY),
    ],
)  # fmt: skip
def test_the_last_address_that_is_no_trusted_proxy_is_the_clients(value: str, client: str) -> None:
    for peer in (PROXY, f"::ffff:{PROXY}"):  # as a dual-stack socket sees it
        assert quota_owner(seen_of(**{"for": value}, peer=peer)) == f"address {client}"


@each_row(
    "prefix",
    [
        "skills", "//evil.example", "/a//b", "/../x", "/a/..", "/.", "/a?b", "/a%2fb", "/a b", "/" + "a" * 256, "/é",
        "/.well-known/agent-skills",
    ],
)  # fmt: skip
def test_a_root_path_can_stand_before_a_path_and_has_no_slash_at_its_end(prefix: str) -> None:
    longest = "/" + "a" * 255
    given = ("", "/", "/skills", "/a/b.c/", "/~me", longest)
    assert [checked_prefix(each) for each in given] == ["", "", "/skills", "/a/b.c", "/~me", longest]
    with pytest.raises(UsageError, match="--root-path takes a path such as /skills"):
        checked_prefix(prefix)


@each_row("given", ["", "proxy", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1/8", "::/129", "1.2.3", "unix"])
def test_what_is_no_network_is_refused_in_one_line(given: str) -> None:
    with pytest.raises(UsageError, match="--trusted-proxy takes an address or a network") as caught:
        trusted_networks([given])
    assert "\n" not in str(caught.value)


RESOURCE = "/.well-known/oauth-protected-resource"


@each_row(
    ("sent", "seen"),
    [
        ("/skills/mcp", "/mcp"), ("/mcp", "/mcp"),
        ("/skills/skills/mcp", "/skills/mcp"),  # one is taken off, and no more
        ("/skills", "/skills"), ("/skills/", "/"), ("/skillset/mcp", "/skillset/mcp"), ("//skills/mcp", "//skills/mcp"),
        ("/skills//evil.example", "//evil.example"),
        # The path of a resource stands behind the well-known name (RFC 9728).
        (f"{RESOURCE}/skills/mcp", f"{RESOURCE}/mcp"), (f"/skills{RESOURCE}/mcp", f"{RESOURCE}/mcp"),
        (RESOURCE, RESOURCE),
        ("/.well-known/agent-skills/skills/x", "/.well-known/agent-skills/skills/x"),
    ],
)  # fmt: skip
def test_what_stands_before_a_path_is_taken_off_once(sent: str, seen: str) -> None:
    scope = seen_of(sent)
    assert (scope["path"], scope[PREFIX]) == (seen, "/skills")
