"""Who may come in, with plain values: Host, Origin, tokens."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.access.tokens import Tokens, find_token, read_tokens
from mcp_skills_server.errors import UsageError
from mcp_skills_server.server.sdk import PRINCIPAL
from mcp_skills_server.telemetry.events import Events
from mcp_skills_server.web import guards
from mcp_skills_server.web.bearer import secret_of
from mcp_skills_server.web.guards import Policy, Token, is_loopback, make_policy
from tables import each_row

SECRET = "not-a-real-secret-0123456789"
OTHER = "another-made-up-one-0123456789"
TOKENS = tuple(read_tokens(f"me={SECRET} groups=a,b", "x").require_valid())


def local(*hosts: str, origins: tuple[str, ...] = (), tokens: tuple[Token, ...] = ()) -> Policy:
    """The policy of a server on loopback."""
    return make_policy("127.0.0.1", hosts, origins, tokens)


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.10", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "example.com", "")))


NOT_A_HOST = [
    None, "", " ", "evil.example", "evil.example:8000", "localhost@evil.example", "evil.example@localhost",
    "evil@localhost:8000", "localhost:pass@evil.example", "localhost.evil.example", "localhost.", "xlocalhost",
    "localhost/evil", "localhost/", "localhost?x", "localhost#x", "localhost\\@evil.example", "localhost:junk",
    "localhost:8000:8000", "localhost:-1", "localhost, evil.example", "local\thost", "localhost\n", " localhost",
    "localhost ", "http://localhost", "//localhost", "::1", "[::1", "::1]", "[::1]x", "[localhost]", "[127.0.0.1]",
    "127.0.0.1.evil.example", "0.0.0.0", "127.1", "2130706433", "\u017flocalhost", "locaLho\u017ft", "*",
]  # fmt: skip


@pytest.mark.requirement("MCP-45")
@each_row("header", NOT_A_HOST)
def test_any_other_host_is_refused_and_so_is_its_page(header: str | None) -> None:
    assert not local().host_allowed(header)
    assert header is None or not local().origin_allowed(f"http://{header}")


@given(st.text())
def test_no_header_trips_the_guards(header: str) -> None:
    policy = local("mcp.example.com", tokens=TOKENS)
    assert policy.host_allowed(header) in {True, False}
    assert {policy.origin_allowed(header), policy.origin_allowed("http://" + header)} <= {True, False}
    secret = secret_of(header)
    assert secret is None or find_token(policy.tokens, secret) is None


def test_names_of_this_machine_are_served_on_loopback() -> None:
    names = ("localhost", "LocalHost:8000", "localhost:", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:8000")
    for policy in (local(), local("mcp.example.com")):
        assert all(map(policy.host_allowed, names))


@each_row(
    ("allowed", "header"),
    [
        ("mcp.example.com", "mcp.example.com"), ("mcp.example.com", "MCP.Example.com:443"),
        ("MCP.Example.COM", "mcp.example.com"), ("mcp.example.com:8443", "mcp.example.com"),
        ("mcp.example.com:8443", "mcp.example.com:9"), ("skills_server", "skills_server:8000"),
        ("2001:db8::7", "[2001:db8::7]:8000"), ("[2001:DB8::7]", "[2001:db8::7]"),
        ("[2001:db8::7]:8000", "[2001:DB8::7]"), ("192.0.2.7", "192.0.2.7:8000"),
    ],
)  # fmt: skip
def test_an_allowed_host_is_served_in_any_case_and_on_any_port(allowed: str, header: str) -> None:
    assert make_policy("0.0.0.0", [allowed], [], []).host_allowed(header)
    assert local(allowed).host_allowed(header)


def test_an_allow_list_on_another_address_is_the_whole_list_and_a_star_serves_every_host() -> None:
    policy = make_policy("0.0.0.0", ["mcp.example.com"], [], [])
    assert not any(map(policy.host_allowed, ("localhost", "sub.mcp.example.com", None)))
    assert not policy.origin_allowed("http://localhost")
    for policy in (make_policy("0.0.0.0", ["*"], [], []), local("*", "mcp.example.com")):
        assert all(map(policy.host_allowed, (None, "", "anything", "evil@x", "[::1")))
        assert not policy.origin_allowed("https://evil.example"), "it lets no browser in"


@each_row(
    "host", ["https://mcp.example.com", "mcp.example.com/mcp", "user@mcp.example.com", "*.example.com", "", "a b", "[x"]
)
def test_an_allowed_host_that_no_header_could_have_is_wrong_usage(host: str) -> None:
    with pytest.raises(UsageError, match=r"^--allowed-host takes a host name such as mcp\.example\.com"):
        local(host)


@each_row("origin", ["app.example", "https://app.example/page", "https://", "", "two words"])
def test_an_allowed_origin_that_no_browser_could_send_is_wrong_usage(origin: str) -> None:
    with pytest.raises(UsageError, match=r"^--allowed-origin takes an origin such as https://app\.example"):
        make_policy("127.0.0.1", (), (origin,), ())
    extension = make_policy("127.0.0.1", (), ("chrome-extension://abc", "https://APP.example/", "null", "*"), ())
    assert extension.origins == {"chrome-extension://abc", "https://app.example", "null", "*"}


@pytest.mark.requirement("MCP-46")
@each_row("host", ["0.0.0.0", "::", "192.0.2.7", "mcp.example.com", "localhost.example"])
def test_listening_for_others_wants_an_allow_list_or_tokens(host: str) -> None:
    with pytest.raises(UsageError, match=r"--allowed-host .* --token-file"):
        make_policy(host, [], ["https://app.example"], [])
    assert make_policy(host, ["mcp.example.com"], [], []).hosts == {"mcp.example.com"}
    guarded = make_policy(host, [], [], TOKENS)
    assert guarded.hosts is None and guarded.tokens == TOKENS
    issuer: Any = object()
    assert make_policy(host, [], [], [], issuer).oauth is issuer


@each_row(
    ("allowed", "headers"),
    [
        (
            True,
            [
                None, "http://localhost", "http://localhost:6274", "HTTP://LOCALHOST:6274", "https://127.0.0.1:1",
                "http://[::1]:3000", "https://app.example", "https://APP.example", "https://two.example:8443",
            ],
        ),
        (
            False,
            [
                "http://app.example", "https://app.example:8443", "https://two.example", "https://evil.example",
                "https://app.example.evil.example", "https://localhost@evil.example", "http://localhost/",
                "https://evil.example@localhost", "http://localhost http://evil.example", "ftp://localhost", "file://",
                "chrome-extension://localhost", "localhost", "null", "", "*", "http://[::1", "http://",
            ],
        ),
    ],
)  # fmt: skip
@pytest.mark.requirement("MCP-45")
def test_origins(allowed: bool, headers: list[str | None]) -> None:
    """A request without Origin comes from no browser."""
    policy = local(origins=("https://App.Example/", "https://two.example:8443"))
    assert [each for each in headers if policy.origin_allowed(each) is not allowed] == []
    assert all(map(local(origins=("*",)).origin_allowed, headers))


async def hand_over(scope: Any, _receive: Any, send: Any) -> None:
    """An app that answers with who asks."""
    await send({"type": "http.response.start", "status": 200, "headers": [], "who": scope.get(PRINCIPAL)})


def requested(
    policy: Policy, *headers: tuple[str, str], app: Any = hand_over, query: bytes = b"", path: str = "/mcp"
) -> list[Any]:
    """Return what is sent for one request that is handed to this app, if it is."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": raw}
    guard = guards.Guard(app, policy, Rates(QuotaSettings()))

    async def work() -> None:
        with anyio.fail_after(20):
            await guard(scope, send, send)  # nobody reads the body

    anyio.run(work)
    assert guard._open == {}, "nothing is kept of requests that were answered"  # type: ignore[attr-defined]
    return sent


def asked(policy: Policy, *headers: tuple[str, str], **more: Any) -> int:
    """The status of an answer; 200 where the request was handed on."""
    return requested(policy, *headers, **more)[0]["status"]


LOCAL = ("host", "localhost")
EVIL = ("origin", "https://evil.example")
BEARING = ("authorization", f"Bearer {SECRET}")
UNKNOWN = ("authorization", f"Bearer {OTHER}")
OLD = f"{OTHER}-of-old"
EXPIRED = ("authorization", f"Bearer {OLD}")


NO_VALID_TOKEN = "refused a request without a valid token"


@each_row(
    ("status", "reason", "said", "headers"),
    [
        (403, "host", "refused Host None; --allowed-host admits it", []),
        (403, "host", "refused Host 'x.example'; --allowed-host admits it", [("host", "x.example")]),
        (403, "origin", "refused Origin 'https://evil.example'; --allowed-origin admits it", [LOCAL, EVIL]),
        (401, "no-token", NO_VALID_TOKEN, [LOCAL]),
        (401, "unknown-token", NO_VALID_TOKEN, [LOCAL, UNKNOWN]),
        (401, "expired-token", "refused the token old, which expired at 1970-01-01T00:00Z", [LOCAL, EXPIRED]),
        (400, "misplaced-token", "refused a request with a token in its query, or with", [LOCAL, BEARING, BEARING]),
    ],
)
def test_each_refusal_is_an_event_with_its_reason(
    status: int, reason: str, said: str, headers: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, str | None, str | None]] = []
    events = Events()
    events.subscribe(lambda event: seen.append((event.outcome, event.reason, event.method)))
    old = replace(read_tokens(f"old={OLD}", "x").require_valid()[0], expires=1)
    with events.serving():
        assert asked(local(tokens=(*TOKENS, old)), *headers) == status
    assert seen == [("refused", reason, "POST")]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage().startswith(said)
    assert record.__dict__["repeats"] is True  # or a stranger would fill the disk


def test_who_is_let_in_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(local(), LOCAL, ("origin", "http://localhost:3000")) == 200
    assert asked(local(tokens=TOKENS), LOCAL, BEARING) == 200
    assert asked(local(tokens=TOKENS), path="/healthz") == 200
    assert caplog.records == []


@each_row(
    ("status", "query", "headers"),
    [
        (200, b"", [f"Bearer {SECRET}"]), (200, b"q=access_token", [f"Bearer {SECRET}"]),
        (400, b"", [f"Bearer {SECRET}", f"Bearer {SECRET}"]), (400, b"", [f"Bearer {SECRET}", ""]),
        (400, b"access_token=x", [f"Bearer {SECRET}"]), (400, f"access_token={SECRET}".encode(), []),
        (400, b"a=b&access%5Ftoken", []),
        (401, b"", [f"Bearer {SECRET}, Bearer {SECRET}"]), (401, b"", ["Bearer"]), (401, b"", []),
    ],
)  # fmt: skip
def test_a_token_is_borne_once(status: int, query: bytes, headers: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = [("authorization", each) for each in headers]
    first, *_ = requested(local(tokens=TOKENS), LOCAL, *given, query=query)
    assert first["status"] == status and SECRET not in caplog.text
    if status == 200:
        assert first["who"] == Principal("token", "me", groups=frozenset("ab"))
    else:
        challenge = dict(first["headers"])[b"www-authenticate"]
        assert (b'error="invalid_request"' in challenge) == (status == 400)
        assert (b"error=" in challenge) == (headers != ["Bearer"] and bool(headers or query))


@pytest.mark.parametrize("started", [True, False])
def test_what_a_token_opened_ends_with_it(started: bool) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await anyio.sleep(1)  # 20 times as long as the token lasts

    token = replace(TOKENS[0], expires=time.time() + 0.05)
    sent = requested(local(tokens=(token,)), LOCAL, BEARING, app=app)
    assert sent[0]["status"] == (200 if started else 401)
    assert len(sent) == 2 and not sent[1].get("more_body")


def test_a_token_that_has_ended_is_refused_as_an_unknown_one() -> None:
    policy = local(tokens=(replace(TOKENS[0], expires=time.time() - 1),))
    ended, unknown = (requested(policy, LOCAL, each) for each in (BEARING, UNKNOWN))
    assert ended == unknown and ended[0]["status"] == 401


def test_under_any_name_only_the_page_takes_forms_and_only_its_own() -> None:
    policy = replace(make_policy("0.0.0.0", ["*"], [], TOKENS), page="/ui/", open_below=("/ui/",))
    host, own = ("host", "s.example"), ("origin", "https://S.example")
    for origin, path, status in ((own, "/ui/sign-in", 200), (EVIL, "/ui/sign-in", 403), (own, "/mcp", 403)):
        assert asked(policy, host, origin, path=path) == status


def test_who_may_what_changes_where_requests_are_answered() -> None:
    async def nothing(*_: Any) -> None:
        """Do nothing."""

    tokens = Tokens(TOKENS)
    guard = guards.Guard(nothing, local(tokens=tokens), Rates(QuotaSettings()))
    seen: list[int] = []

    async def main() -> int:
        await guard({"type": "lifespan"}, nothing, nothing)
        tokens.between_requests(lambda: seen.append(0))  # a handler that changes them waits for nobody
        await anyio.to_thread.run_sync(tokens.between_requests, lambda: seen.append(threading.get_ident()))
        return threading.get_ident()

    tokens.between_requests(lambda: seen.append(1))
    loop = anyio.run(main)
    tokens.between_requests(lambda: seen.append(2))
    assert seen == [1, 0, loop, 2]
