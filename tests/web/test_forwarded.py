"""Who is behind a proxy, with plain values: what a trusted one says is believed, and what a client says never."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.forwarded import HOST, OWNER, PREFIX, Client, Forwarding, Proxies, believed, checked_prefix

PROXY = "10.0.0.1"
TRUSTED = Proxies(["10.0.0.0/8", "fd00::/8"])
REAL = "203.0.113.7"


def said(*lines: str, peer: str | None = PROXY, trusted: Proxies = TRUSTED) -> Client | None:
    """What is believed of header lines `name: value`."""
    pairs = (line.partition(": ") for line in lines)
    return believed(peer, [(name.lower().encode(), value.encode("latin-1")) for name, _, value in pairs], trusted)


def address(*lines: str, peer: str = PROXY) -> str:
    found = said(*lines, peer=peer)
    return found.address if found else "nobody"


# Whom


@pytest.mark.parametrize(
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
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:DB8:0::1]:443", "2001:db8::1"),
        ("::ffff:203.0.113.7", REAL),
        (f"{REAL}, fd00::5", REAL),
        (f"{REAL}, ::ffff:10.1.1.1", REAL),
        # A proxy that does not say stands for whom it asks.
        ("unknown", PROXY),
        (f"{REAL}, unknown", PROXY),
        (f"{REAL}, nonsense, 10.9.9.9", "10.9.9.9"),
        ("", PROXY),
        (",", PROXY),
        (f"{REAL},", PROXY),
        ("203.0.113.7.8", PROXY),
        ("203.0.113.07", PROXY),
        ("0x7f.1", PROXY),
        ("2001:db8::1:443:zz", PROXY),
        ("fe80::1%eth0", PROXY),
        ("[2001:db8::1", PROXY),
        (f"{REAL}:123456", PROXY),
        (f"{REAL} {REAL}", PROXY),
        ("localhost", PROXY),
        ("²", PROXY),
        ("10.0.0.1, " * 200, PROXY),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_clients(value: str, client: str) -> None:
    assert address(f"X-Forwarded-For: {value}") == client


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (f"for={REAL}", REAL),
        (f"For={REAL};proto=https;by=10.0.0.1", REAL),
        (f'for="{REAL}:4711"', REAL),
        (f"for={REAL}:4711", REAL),
        ('for="[2001:db8::1]:4711"', "2001:db8::1"),
        ("for=[2001:db8::1]", "2001:db8::1"),
        (f"for=6.6.6.6, for={REAL}", REAL),
        (f"for=6.6.6.6;proto=http,for={REAL};proto=https , for=10.9.9.9", REAL),
        (f'for="6.6.6.6, for=7.7.7.7", for={REAL}', REAL),
        (f'for="{REAL[:-1]}\\7"', REAL),
        (f"for=6.6.6.6;for={REAL}", REAL),
        (f";;for={REAL};;,,", REAL),
        # Names that a proxy gave to those it hides, and that tell them apart.
        ("for=_hidden", "_hidden"),
        ('for="_SEVKISEK:_port"', "_SEVKISEK"),
        ("for=unknown", PROXY),
        ("for=_", PROXY),
        ("for=_hid/den", PROXY),
        ("proto=https", PROXY),
        ("by=10.0.0.1", PROXY),
        (f"for={REAL}, proto=https", PROXY),
        # Malformed: what was added to such a line cannot be told from what was there.
        (f'for=", for={REAL}', PROXY),
        (f'for="6.6.6.6, for={REAL}', PROXY),
        (f"for = {REAL}", PROXY),
        (f"for={REAL} proto=https", PROXY),
        (f"={REAL}", PROXY),
        ("for=", PROXY),
        (f"for={REAL}\x00", PROXY),
        ("nonsense", PROXY),
    ],
)
def test_forwarded_is_read_as_its_rfc_says(value: str, client: str) -> None:
    assert address(f"Forwarded: {value}") == client


def test_lines_are_one_list_and_a_malformed_one_ends_it() -> None:
    assert address("X-Forwarded-For: 6.6.6.6", f"X-Forwarded-For: {REAL}", "X-Forwarded-For: 10.9.9.9") == REAL
    assert address('Forwarded: for="', f"Forwarded: for={REAL}", "Forwarded: for=10.9.9.9") == REAL
    assert address(f"Forwarded: for={REAL}", 'Forwarded: for="') == PROXY


@pytest.mark.parametrize("peer", ["203.0.113.9", "11.0.0.1", "2001:db8::5", "fe80::1%eth0", "", "testclient", None])
def test_who_is_no_trusted_proxy_is_not_believed(peer: str | None) -> None:
    lines = (f"X-Forwarded-For: {REAL}", f"Forwarded: for={REAL}", "X-Forwarded-Host: skills.example")
    assert said(*lines, peer=peer) is None
    assert said(*lines, trusted=Proxies()) is None


def test_a_proxy_is_known_by_any_form_of_its_address() -> None:
    for peer in ("10.255.0.1", "::ffff:10.0.0.1", "fd00::1"):
        assert address(f"X-Forwarded-For: {REAL}", peer=peer) == REAL
    assert said("X-Forwarded-For: " + REAL, peer="192.0.2.5", trusted=Proxies(["192.0.2.5"])) == Client(REAL)
    assert said("Host: skills.example") is None  # nothing is said


def test_two_headers_that_disagree_are_both_not_believed() -> None:
    # A proxy that writes one kind of header hands on the other kind as its client sent it.
    assert said("Forwarded: for=6.6.6.6", f"X-Forwarded-For: {REAL}") is None
    assert said("Forwarded: proto=https;host=evil.example", f"X-Forwarded-For: {REAL}") is None
    assert said('Forwarded: for="', f"X-Forwarded-For: {REAL}") is None
    assert said(f"Forwarded: for={REAL};proto=https", f"X-Forwarded-For: 6.6.6.6, {REAL}") == Client(REAL, "https")


# By which name, scheme and path


def test_the_rest_is_of_the_proxy_that_the_client_spoke_to() -> None:
    elements = f"for=6.6.6.6;host=evil;proto=http, for={REAL};host=skills.example;proto=HTTPS, for=10.9.9.9;host=inner"
    assert said(f"Forwarded: {elements}") == Client(REAL, "https", "skills.example")
    listed = (
        f"X-Forwarded-For: 6.6.6.6, {REAL}, 10.9.9.9",
        "X-Forwarded-Proto: http, https, http",
        "X-Forwarded-Host: evil, skills.example, inner",
    )
    assert said(*listed) == Client(REAL, "https", "skills.example")


def test_a_value_that_is_replaced_and_no_list_is_taken_as_it_is() -> None:
    lines = ("X-Forwarded-For: 6.6.6.6, " + REAL, "X-Forwarded-Proto: https", "X-Forwarded-Host: skills.example:8443")
    assert said(*lines, "X-Forwarded-Prefix: /skills/") == Client(REAL, "https", "skills.example:8443", "/skills")
    assert said("X-Forwarded-Proto: https") == Client(PROXY, "https")


@pytest.mark.parametrize("scheme", ["", "ftp", "javascript", "https://evil", "https x"])
def test_another_scheme_is_none(scheme: str) -> None:
    raw = [(b"x-forwarded-for", REAL.encode()), (b"x-forwarded-proto", scheme.encode())]
    assert believed(PROXY, raw, TRUSTED) == Client(REAL)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "/",
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
    found = said(f"X-Forwarded-For: {REAL}", f"X-Forwarded-Prefix: {prefix}")
    assert found is not None and found.prefix is None
    if prefix.strip("/"):
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


@pytest.mark.parametrize("given", ["", "proxy", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1/8", "::/129", "1.2.3", "unix"])
def test_what_is_no_network_is_refused_in_one_line(given: str) -> None:
    with pytest.raises(UsageError, match="--trusted-proxy takes an address or a network") as caught:
        Proxies([given])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
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
    assert forwarded(sent)["path"] == seen


def test_a_request_looks_as_its_client_sent_it() -> None:
    said = {"x-forwarded-for": REAL, "x-forwarded-proto": "https", "x-forwarded-host": "skills.example"}
    scope = forwarded("/team/mcp", said | {"x-forwarded-prefix": "/team"})  # which changes redirects alone
    assert (scope["client"], scope["scheme"], scope["path"]) == ((REAL, 0), "https", "/team/mcp")
    assert (scope[OWNER], scope[HOST], scope[PREFIX]) == (f"address {REAL}", "skills.example", "/team")
    # What a proxy that says nothing uses again belongs to no client that was there before.
    scope = forwarded("/mcp")
    assert (scope["client"], scope["scheme"], scope[OWNER]) == ((PROXY, 5), "http", f"address {PROXY}")
    scope = forwarded("/mcp", said, peer="203.0.113.9")
    assert (scope["client"], scope["scheme"]) == (("203.0.113.9", 5), "http")
    assert OWNER not in scope and HOST not in scope


def forwarded(path: str, said: Mapping[str, str] | None = None, peer: str = PROXY) -> dict[str, Any]:
    """The scope that the application sees, of a server at `/skills`."""
    headers = [(name.encode(), value.encode()) for name, value in (said or {}).items()]
    given = {"type": "http", "path": path, "scheme": "http", "client": (peer, 5), "headers": headers}
    seen: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        seen.append(scope)

    async def nothing(*_: Any) -> Any:
        """Neither side says anything more."""

    anyio.run(Forwarding(app, "/skills", TRUSTED), given, nothing, nothing)
    assert given["path"] == path  # which the server goes on to use
    return seen[0]


# Whatever comes

_TEXT = st.text(st.sampled_from('for=_,;"\\[]:.0123456789abcdef \t/unknown%'), max_size=60)


@given(st.lists(st.tuples(st.sampled_from(["Forwarded", "X-Forwarded-For", "X-Forwarded-Host"]), _TEXT), max_size=6))
@example([("Forwarded", 'for="\\')])
def test_nothing_that_is_sent_fails(lines: list[tuple[str, str]]) -> None:
    found = said(*(f"{name}: {value}" for name, value in lines))
    if found is not None and not found.address.startswith("_"):
        assert str(ip_address(found.address)) == found.address


@given(_TEXT.filter(lambda text: '"' not in text))
def test_nothing_that_a_client_sends_hides_what_its_proxy_adds(sent: str) -> None:
    assert address(f"X-Forwarded-For: {sent}, {REAL}") == REAL
    assert address(f"X-Forwarded-For: {sent}", f"X-Forwarded-For: {REAL}") == REAL
    assert address(f"Forwarded: {sent}", f"Forwarded: for={REAL}") == REAL
    assert address(f"Forwarded: {sent}, for={REAL}") in (REAL, PROXY)


@pytest.mark.parametrize(
    "value",
    [
        "6.6.6.6, " * 100_000 + REAL,
        "," * 1_000_000 + REAL,
        "a" * 1_000_000 + "," + REAL,
        " " * 1_000_000 + REAL,
    ],
)
def test_a_megabyte_before_the_address_changes_nothing(value: str) -> None:
    assert address(f"X-Forwarded-For: {value}") == REAL


@pytest.mark.parametrize("unit", ["for=6.6.6.6, ", 'for="', "\\", ";", '"\\"', "for=x;", " "])
def test_a_megabyte_of_forwarded_is_not_read(unit: str) -> None:
    assert address("Forwarded: " + unit * (1_000_000 // len(unit)) + f", for={REAL}") == PROXY
    assert address(*[f"Forwarded: {unit}"] * 10_000, f"Forwarded: for={REAL}") == REAL
