"""Admission: Host and Origin checks, bearer tokens, and refusals."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.tokens import find_token, read_tokens
from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry.events import Events
from mcp_skills_server.web import open_responses
from mcp_skills_server.web.bearer import secret_of
from mcp_skills_server.web.connections import SLOT
from mcp_skills_server.web.front import Front, FrontSettings
from mcp_skills_server.web.open_responses import OpenResponses
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.policy import Policy, Token, make_policy
from mcp_skills_server.web.probes import Drain
from tables import each_row
from wire import DEADLINE

SECRET = "not-a-real-secret-0123456789"
WRONG_SECRET = "another-made-up-one-0123456789"
TOKENS = tuple(read_tokens(f"me={SECRET} groups=a,b", "x").require_valid())


def loopback_policy(*hosts: str, origins: tuple[str, ...] = (), tokens: tuple[Token, ...] = ()) -> Policy:
    return make_policy("127.0.0.1", hosts, origins, tokens)


FOREIGN_HOSTS = [
    None, "", " ", "evil.example", "evil.example:8000", "localhost@evil.example", "evil.example@localhost",
    "evil@localhost:8000", "localhost:pass@evil.example", "localhost.evil.example", "localhost.", "xlocalhost",
    "localhost/evil", "localhost/", "localhost?x", "localhost#x", "localhost\\@evil.example", "localhost:junk",
    "localhost:8000:8000", "localhost:-1", "localhost, evil.example", "local\thost", "localhost\n", " localhost",
    "localhost ", "http://localhost", "//localhost", "::1", "[::1", "::1]", "[::1]x", "[localhost]", "[127.0.0.1]",
    "127.0.0.1.evil.example", "0.0.0.0", "127.1", "2130706433", "\u017flocalhost", "locaLho\u017ft", "*",
]  # fmt: skip


@pytest.mark.requirement("MCP-45")
@each_row("header", FOREIGN_HOSTS)
def test_foreign_host_and_its_origin_are_refused(header: str | None) -> None:
    assert not loopback_policy().host_allowed(header)
    assert header is None or not loopback_policy().origin_allowed(f"http://{header}")


@given(st.text())
def test_any_header_text_is_decided_without_error(header: str) -> None:
    policy = loopback_policy("mcp.example.com", tokens=TOKENS)
    assert policy.host_allowed(header) in {True, False}
    assert policy.origin_allowed(header) in {True, False}
    assert policy.origin_allowed(f"http://{header}") in {True, False}
    secret = secret_of(header)
    assert secret is None or find_token(policy.tokens, secret) is None


@each_row(
    "header", ["localhost", "LocalHost:8000", "localhost:", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:8000"]
)
def test_loopback_names_are_allowed_on_loopback(header: str) -> None:
    assert loopback_policy("mcp.example.com").host_allowed(header)
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        assert make_policy(host, [], [], []).host_allowed(header)


def test_loopback_address_that_is_listened_on_is_allowed() -> None:
    for allowed in ((), ("mcp.example.com",)):
        policy = make_policy("127.0.0.2", allowed, [], [])
        assert policy.host_allowed("127.0.0.2:8000") and policy.origin_allowed("http://127.0.0.2:8000")
        assert not policy.host_allowed("127.0.0.3")
        assert make_policy("0:0::1", allowed, [], []).host_allowed("[0:0::1]:80")


@each_row(("allowed", "header"), [
    ("mcp.example.com", "mcp.example.com"), ("mcp.example.com", "MCP.Example.com:443"),
    ("MCP.Example.COM", "mcp.example.com"), ("mcp.example.com:8443", "mcp.example.com"),
    ("mcp.example.com:8443", "mcp.example.com:9"), ("skills_server", "skills_server:8000"),
    ("2001:db8::7", "[2001:db8::7]:8000"), ("[2001:DB8::7]", "[2001:db8::7]"),
    ("[2001:db8::7]:8000", "[2001:DB8::7]"), ("192.0.2.7", "192.0.2.7:8000"),
])  # fmt: skip
def test_allowed_host_matches_any_case_and_port(allowed: str, header: str) -> None:
    assert make_policy("0.0.0.0", [allowed], [], []).host_allowed(header)
    assert loopback_policy(allowed).host_allowed(header)


@each_row("host", [None, "", "anything", "evil@x", "[::1"])
def test_star_allows_every_host_but_no_origin(host: str | None) -> None:
    for policy in (make_policy("0.0.0.0", ["*"], [], []), loopback_policy("*", "mcp.example.com")):
        assert policy.host_allowed(host)
        assert not policy.origin_allowed("https://evil.example")


@each_row(("hosts", "origins", "message"), [
    *(((host,), (), r"^--allowed-host takes a host name such as mcp\.example\.com") for host in (
        "https://mcp.example.com", "mcp.example.com/mcp", "user@mcp.example.com", "*.example.com", "", "a b", "[x",
    )),
    *(((), (origin,), r"^--allowed-origin takes an origin such as https://app\.example") for origin in (
        "app.example", "https://app.example/page", "https://", "", "two words",
    )),
])  # fmt: skip
def test_malformed_allowed_host_or_origin_is_usage_error(
    hosts: tuple[str, ...], origins: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        loopback_policy(*hosts, origins=origins)


def test_allowed_origins_may_be_extensions_null_and_star() -> None:
    policy = loopback_policy(origins=("chrome-extension://abc", "https://APP.example/", "null", "*"))
    assert policy.origins == {"chrome-extension://abc", "https://app.example", "null", "*"}


@pytest.mark.requirement("MCP-46")
@each_row("host", ["0.0.0.0", "::", "192.0.2.7", "mcp.example.com", "localhost.example", ""])
def test_public_address_requires_allow_list_or_tokens(host: str) -> None:
    with pytest.raises(UsageError, match=r"--allowed-host .* --token-file"):
        make_policy(host, [], ["https://app.example"], [])
    assert make_policy(host, ["mcp.example.com"], [], []).hosts == {"mcp.example.com"}
    policy = make_policy(host, [], [], TOKENS)
    assert policy.hosts is None
    assert policy.tokens == TOKENS
    issuer: Any = object()
    assert make_policy(host, [], [], [], issuer).oauth is issuer


@each_row(("is_allowed", "headers"), [
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
])  # fmt: skip
@pytest.mark.requirement("MCP-45")
def test_origin_is_allowed_if_loopback_listed_or_absent(is_allowed: bool, headers: list[str | None]) -> None:
    policy = loopback_policy(origins=("https://App.Example/", "https://two.example:8443"))
    for header in headers:
        assert policy.origin_allowed(header) is is_allowed, header
        assert loopback_policy(origins=("*",)).origin_allowed(header), header


async def send_principal(scope: Any, _receive: Any, send: Any) -> None:
    """Answer 200, and add the principal to the message."""
    principal = requester(scope).principal
    await send({"type": "http.response.start", "status": 200, "headers": [], "principal": principal})


def front_of(app: Any, policy: Policy, events: Events | None = None) -> Front:
    return Front(app, FrontSettings(policy), events or Events(), Drain(0))


def messages(
    policy: Policy,
    *headers: tuple[str, str],
    app: Any = send_principal,
    query: bytes = b"",
    path: str = "/mcp",
    events: Events | None = None,
    **state: Any,
) -> list[Any]:
    """Return the ASGI messages of the response to a request that the front may pass to `app`."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": raw, "state": state}
    front = front_of(app, policy, events)

    async def work() -> None:
        with anyio.fail_after(20):
            await front(scope, send, send)  # the body is not read

    anyio.run(work)
    return sent


def status_of(policy: Policy, *headers: tuple[str, str], **options: Any) -> int:
    return messages(policy, *headers, **options)[0]["status"]


LOCAL = ("host", "localhost")
FOREIGN = ("origin", "https://evil.example")
VALID = ("authorization", f"Bearer {SECRET}")
UNKNOWN = ("authorization", f"Bearer {WRONG_SECRET}")
EXPIRED = ("authorization", f"Bearer {WRONG_SECRET}-expired")
NO_VALID_TOKEN = "refused a request without a valid token"


@each_row(("status", "reason", "warning", "headers"), [
    (403, "host", "refused Host None; --allowed-host admits it", []),
    (403, "host", "refused Host 'x.example'; --allowed-host admits it", [("host", "x.example")]),
    (403, "origin", "refused Origin 'https://evil.example'; --allowed-origin admits it", [LOCAL, FOREIGN]),
    (401, "no-token", NO_VALID_TOKEN, [LOCAL]),
    (401, "unknown-token", NO_VALID_TOKEN, [LOCAL, UNKNOWN]),
    (401, "expired-token", "refused the token old, which expired at 1970-01-01T00:00Z", [LOCAL, EXPIRED]),
    (400, "misplaced-token", "refused a request with a token in its query, or with", [LOCAL, VALID, VALID]),
])  # fmt: skip
def test_refusal_emits_event_with_reason_and_one_rate_limited_warning(
    status: int, reason: str, warning: str, headers: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    emitted: list[tuple[str, str | None, str | None]] = []
    events = Events()
    events.subscribe(lambda event: emitted.append((event.outcome, event.reason, event.method)))
    (expired,) = read_tokens(f"old={WRONG_SECRET}-expired", "x").require_valid()
    policy = loopback_policy(tokens=(*TOKENS, replace(expired, expires=1)))
    assert status_of(policy, *headers, events=events) == status
    assert emitted == [("refused", reason, "POST")]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(warning)
    assert record.__dict__["repeats"] is True  # unauthenticated requests must not fill the disk


def test_refusal_of_an_authenticated_request_names_its_principal() -> None:
    emitted: list[tuple[str, str | None]] = []
    events = Events()
    events.subscribe(lambda event: emitted.append((event.reason, event.principal)))
    slot = Mock(admit=Mock(return_value=False), is_spare=False)  # all connections are in use
    assert status_of(loopback_policy(tokens=TOKENS), LOCAL, VALID, events=events, **{SLOT: slot}) == 503
    assert emitted == [("busy", f"token:{TOKENS[0].name}")]


def test_admitted_request_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of(loopback_policy(), LOCAL, ("origin", "http://localhost:3000")) == 200
    assert status_of(loopback_policy(tokens=TOKENS), LOCAL, VALID) == 200
    assert status_of(loopback_policy(tokens=TOKENS), path="/healthz") == 200
    assert caplog.records == []


@each_row(("status", "query", "headers"), [
    (200, b"", [f"Bearer {SECRET}"]), (200, b"q=access_token", [f"Bearer {SECRET}"]),
    (400, b"", [f"Bearer {SECRET}", f"Bearer {SECRET}"]), (400, b"", [f"Bearer {SECRET}", ""]),
    (400, b"access_token=x", [f"Bearer {SECRET}"]), (400, f"access_token={SECRET}".encode(), []),
    (400, b"a=b&access%5Ftoken", []),
    (401, b"", [f"Bearer {SECRET}, Bearer {SECRET}"]), (401, b"", ["Bearer"]), (401, b"", []),
])  # fmt: skip
def test_token_is_accepted_only_once_and_in_header(
    status: int, query: bytes, headers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = [("authorization", each) for each in headers]
    start, *_ = messages(loopback_policy(tokens=TOKENS), LOCAL, *given, query=query)
    assert start["status"] == status
    assert SECRET not in caplog.text
    if status == 200:
        assert start["principal"] == Principal("token", "me", groups=frozenset("ab"))
    else:
        challenge = dict(start["headers"])[b"www-authenticate"]
        assert (b'error="invalid_request"' in challenge) == (status == 400)
        has_token = headers != ["Bearer"] and bool(headers or query)
        assert (b"error=" in challenge) == has_token


@pytest.mark.parametrize(("is_started", "status"), [(True, 200), (False, 401)])
def test_response_ends_when_its_token_expires(is_started: bool, status: int) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if is_started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await anyio.sleep_forever()

    seconds = 2.0 if is_started else 0.05  # in the first a busy machine must start the response
    token = replace(TOKENS[0], expires=time.time() + seconds)
    start, end = messages(loopback_policy(tokens=(token,)), LOCAL, VALID, app=app)
    assert start["status"] == status
    assert not end.get("more_body")


@pytest.mark.anyio
async def test_stream_ends_when_the_wall_clock_is_past_the_expiry_of_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline of the event loop does not know that the clock was set, or that the machine slept."""
    sent: list[Any] = []
    started = anyio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        started.set()
        await anyio.sleep_forever()

    async def sending(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(open_responses, "_CLOCK_S", 0.01)
    token = replace(TOKENS[0], expires=time.time() + 3600)
    outer = front_of(app, loopback_policy(tokens=(token,)))
    outer.start()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/mcp",
        "headers": [(each[0].encode(), each[1].encode()) for each in (LOCAL, VALID)],
    }
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outer, scope, None, sending)
            await started.wait()
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + 3601)
    assert sent[-1] == {"type": "http.response.body", "body": b""}


def test_response_that_waits_for_an_earlier_one_is_refused_when_its_token_expires() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if message.get("status") == 200:
            await anyio.sleep(20)  # the client does not read
        sent.append(message.get("status"))

    token = replace(TOKENS[0], expires=time.time() + 0.05)
    front = front_of(send_principal, loopback_policy(tokens=(token,)))
    headers = [(name.encode(), value.encode()) for name, value in (LOCAL, VALID)]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
    anyio.run(front, scope, send, send)
    assert sent == [401, None]


def test_expired_token_is_refused_like_unknown_token() -> None:
    policy = loopback_policy(tokens=(replace(TOKENS[0], expires=time.time() - 1),))
    expired, unknown = (messages(policy, LOCAL, given) for given in (VALID, UNKNOWN))
    for start, *_ in (expired, unknown):
        start["headers"] = [header for header in start["headers"] if header[0] != b"x-request-id"]
    assert expired == unknown
    assert expired[0]["status"] == 401


@each_row(("origin", "path", "status"), [
    ("https://S.example", "/ui/sign-in", 200),
    ("https://evil.example", "/ui/sign-in", 403),
    ("https://S.example", "/mcp", 403),
])  # fmt: skip
def test_form_is_accepted_only_from_page_of_same_host(origin: str, path: str, status: int) -> None:
    policy = replace(make_policy("0.0.0.0", ["*"], [], TOKENS), page="/ui/", open_below=("/ui/",))
    assert status_of(policy, ("host", "s.example"), ("origin", origin), path=path) == status


def test_token_changes_run_in_event_loop_between_requests() -> None:
    responses, calls = OpenResponses(), list[int]()

    def note_thread() -> None:
        calls.append(threading.get_ident())

    async def main() -> int:
        responses.start()
        await anyio.to_thread.run_sync(responses.between_requests, note_thread)
        return threading.get_ident()

    responses.between_requests(lambda: calls.append(1))
    loop_thread = anyio.run(main)
    responses.between_requests(lambda: calls.append(2))
    assert calls == [1, loop_thread, 2]
