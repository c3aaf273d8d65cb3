"""Requests behind a proxy: what a trusted one says of its client is believed, and what a client says never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_skills_server.errors import UsageError
from mcp_skills_server.server.callers import counted
from mcp_skills_server.web.forwarded import PREFIX, RootPath, checked_prefix, trusted_networks
from tables import each_row

PROXY = "10.0.0.1"
TRUSTED = trusted_networks(["10.0.0.0/8", "fd00::/8"])
REAL = "203.0.113.7"


def seen_of(
    *lines: str, path: str = "/mcp", peer: str | None = PROXY, trusted: Sequence[str] = TRUSTED
) -> dict[str, Any]:
    """The scope that the application sees of a request with these header lines, of a server at `/skills`."""
    pairs = (line.partition(": ") for line in lines)
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, _, value in pairs]
    client = None if peer is None else (peer, 5)
    given = {"type": "http", "path": path, "scheme": "http", "client": client, "headers": headers}
    seen: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        seen.append(scope)

    async def nothing(*_: Any) -> Any:
        """Neither side says anything more."""

    stack: Any = ProxyHeadersMiddleware(RootPath(app, "/skills"), [*trusted])  # type: ignore[arg-type]
    anyio.run(stack, given, nothing, nothing)
    return seen[0]


def owner(*lines: str, peer: str = PROXY) -> str | None:
    """Who is counted for it."""
    return counted(seen_of(*lines, peer=peer))


# Whom


@each_row(
    ("value", "client"),
    [
        (REAL, REAL),
        (f"{REAL}:4711", REAL),
        (f"  {REAL}\t", REAL),
        (f"6.6.6.6, {REAL}", REAL),
        (f"6.6.6.6, {REAL}, 10.9.9.9", REAL),
        (f"{REAL}, 10.9.9.9, 10.8.8.8, 10.7.7.7", REAL),
        (f"10.6.6.6, {REAL}", REAL),  # that it names a proxy helps a client to nothing
        ("10.2.3.4", "10.2.3.4"),  # all are proxies: the one that began
        ("2001:db8::1", "2001:db8::/64"),
        ("[2001:DB8:0::1]:443", "2001:db8::/64"),
        ("::ffff:203.0.113.7", REAL),
        (f"{REAL}, fd00::5", REAL),
        (f"{REAL}, ::ffff:10.1.1.1", REAL),
        ("unknown", "unknown"),
        ("", PROXY),
        (",", PROXY),
        (f"{REAL},", PROXY),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_clients(value: str, client: str) -> None:
    assert owner(f"X-Forwarded-For: {value}") == f"address {client}"


def test_lines_are_one_list() -> None:
    lines = ("X-Forwarded-For: 6.6.6.6", f"X-Forwarded-For: {REAL}", "X-Forwarded-For: 10.9.9.9")
    assert owner(*lines) == f"address {REAL}"


@each_row("peer", ["203.0.113.9", "11.0.0.1", "2001:db8::5", "fe80::1%eth0", "", "testclient", None])
def test_who_is_no_trusted_proxy_is_not_believed(peer: str | None) -> None:
    lines = (f"X-Forwarded-For: {REAL}", "X-Forwarded-Proto: https")
    for trusted in (TRUSTED, ()):
        scope = seen_of(*lines, peer=peer, trusted=trusted)
        assert (scope["client"], scope["scheme"]) == (None if peer is None else (peer, 5), "http")


def test_a_proxy_is_known_by_any_form_of_its_address() -> None:
    for peer in ("10.255.0.1", "::ffff:10.0.0.1", "fd00::1"):
        assert owner(f"X-Forwarded-For: {REAL}", peer=peer) == f"address {REAL}"
    alone = trusted_networks(["192.0.2.5"])
    assert seen_of(f"X-Forwarded-For: {REAL}", peer="192.0.2.5", trusted=alone)["client"] == (REAL, 0)
    assert seen_of(f"X-Forwarded-For: {REAL}", peer="192.0.2.6", trusted=alone)["client"] == ("192.0.2.6", 5)


@each_row("scheme", ["", "ftp", "javascript", "https://evil", "https x"])
def test_another_scheme_is_none(scheme: str) -> None:
    assert seen_of(f"X-Forwarded-Proto: {scheme}")["scheme"] == "http"
    assert seen_of("X-Forwarded-Proto: https")["scheme"] == "https"


# By which path


@each_row(
    "prefix",
    [
        "skills",
        "//evil.example",
        "/a//b",
        "/../x",
        "/a/..",
        "/.",
        "/a?b",
        "/a%2fb",
        "/a b",
        "/" + "a" * 256,
        "/é",
    ],
)
def test_what_can_stand_before_no_path_is_no_prefix(prefix: str) -> None:
    with pytest.raises(UsageError, match="--root-path takes a path such as /skills"):
        checked_prefix(prefix)


def test_a_root_path_has_no_slash_at_its_end() -> None:
    assert [checked_prefix(each) for each in ("", "/", "/skills", "/a/b.c/", "/~me")] == [
        "",
        "",
        "/skills",
        "/a/b.c",
        "/~me",
    ]


@each_row("given", ["", "proxy", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1/8", "::/129", "1.2.3", "unix"])
def test_what_is_no_network_is_refused_in_one_line(given: str) -> None:
    with pytest.raises(UsageError, match="--trusted-proxy takes an address or a network") as caught:
        trusted_networks([given])
    assert "\n" not in str(caught.value)


@each_row(
    ("sent", "seen"),
    [
        ("/skills/mcp", "/mcp"),
        ("/mcp", "/mcp"),
        ("/skills/skills/mcp", "/skills/mcp"),  # one is taken off, and no more
        ("/skills", "/skills"),
        ("/skills/", "/"),
        ("/skillset/mcp", "/skillset/mcp"),
        ("//skills/mcp", "//skills/mcp"),
        ("/skills//evil.example", "//evil.example"),
        # The path of a resource stands behind the well-known name (RFC 9728).
        ("/.well-known/oauth-protected-resource/skills/mcp", "/.well-known/oauth-protected-resource/mcp"),
        ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource"),
        ("/skills/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource/mcp"),
        ("/.well-known/agent-skills/skills/x", "/.well-known/agent-skills/skills/x"),
    ],
)
def test_what_stands_before_a_path_is_taken_off_once(sent: str, seen: str) -> None:
    scope = seen_of(path=sent)
    assert (scope["path"], scope[PREFIX]) == (seen, "/skills")


# Whatever comes

_TEXT = st.text(st.sampled_from('for=_,;"\\[]:.0123456789abcdef \t/unknown%'), max_size=60)


@given(_TEXT)
def test_nothing_that_a_client_sends_hides_what_its_proxy_adds(sent: str) -> None:
    assert owner(f"X-Forwarded-For: {sent}, {REAL}") == f"address {REAL}"
    assert owner(f"X-Forwarded-For: {sent}", f"X-Forwarded-For: {REAL}") == f"address {REAL}"


@each_row(
    "value",
    [
        "6.6.6.6, " * 100_000 + REAL,
        "," * 1_000_000 + REAL,
        "a" * 1_000_000 + "," + REAL,
        " " * 1_000_000 + REAL,
    ],
)
def test_a_megabyte_before_the_address_changes_nothing(value: str) -> None:
    assert owner(f"X-Forwarded-For: {value}") == f"address {REAL}"
