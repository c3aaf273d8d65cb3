"""What the protocol says of wrong requests over HTTP, and what becomes of clients that behave badly."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tables import each_row
from web.http_wire import BOTH, HELLO, MODERN_META, HttpClient, Reply, Server, client, http_serving
from wire import DEADLINE, FIXTURES, META, VERSIONS, Era, write_skill

RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
"""The option of a socket whose end is a reset."""
ANYTHING = "skill://commit-messages/SKILL.md"
ODD = "skill://naïve-ß/Übersicht 表.md"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server on the fixtures that takes bodies of 64 KiB."""
    with http_serving(FIXTURES, "--max-body", str(1 << 16)) as started:
        yield started


@pytest.fixture
def modern(server: Server) -> Iterator[HttpClient]:
    """A modern client of it."""
    with client(server, "modern", opened=False) as one:
        yield one


def without(meta: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The envelope without some of its keys."""
    return {key: value for key, value in meta.items() if key.removeprefix(META) not in keys}


# The modern era: versions, envelope, headers


@pytest.mark.requirement("MCP-3")
@each_row("version", ["2031-01-01", "2026-07-27", "draft", "1"])
def test_an_unknown_version_is_refused_with_those_that_are_known(modern: HttpClient, version: str) -> None:
    message = modern.message("skills/list", {"_meta": {META + "protocolVersion": version}})
    reply = modern.post(message, {"MCP-Protocol-Version": version})
    assert reply.error == (400, -32022, message["id"])
    assert reply.messages[0]["error"]["data"] == {"supported": [VERSIONS["modern"]], "requested": version}


@pytest.mark.requirement("MCP-2")
@each_row(
    "params",
    [
        {"_meta": without(MODERN_META, "clientCapabilities")},
        {"_meta": without(MODERN_META, "protocolVersion")},
        {"_meta": {}},
        {"_meta": None},
        {"_meta": []},
        {},
        None,
    ],
)
def test_a_missing_envelope_is_refused(modern: HttpClient, params: dict[str, Any] | None) -> None:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": "half", "method": "skills/list"}
    if params is not None:
        message["params"] = params
    assert modern.post(message).error == (400, -32602, "half")


def test_the_name_of_the_client_may_be_left_out(modern: HttpClient) -> None:
    message = modern.message("skills/list")
    message["params"]["_meta"] = without(MODERN_META, "clientInfo")
    assert modern.post(message).messages[0]["result"]["skills"]


@pytest.mark.requirement("MCP-42")
@each_row(
    "headers",
    [
        {"Mcp-Method": "skills/get"}, {"Mcp-Method": "RESOURCES/READ"}, {"Mcp-Method": ""}, {"Mcp-Method": None},
        {"MCP-Protocol-Version": "2031-01-01"}, {"MCP-Protocol-Version": VERSIONS["legacy"]},
        {"MCP-Protocol-Version": "2024-11-05"}, {"MCP-Protocol-Version": ""}, {"MCP-Protocol-Version": None},
        {"MCP-Protocol-Version": None, "Mcp-Method": None},
        {"MCP-Protocol-Version": None, "Mcp-Session-Id": "0" * 32},
        {"Mcp-Name": "skill://commit-messages/other.md"}, {"Mcp-Name": ""}, {"Mcp-Name": None},
        {"Mcp-Name": "=?base64?eA==?="}, {"Mcp-Name": "=?base64?not base64?="}, {"Mcp-Name": "=?base64?/w==?="},
    ],
)  # fmt: skip
def test_headers_that_disagree_with_the_body_are_refused(modern: HttpClient, headers: dict[str, str | None]) -> None:
    message = modern.message("resources/read", {"uri": ANYTHING})
    reply = modern.post(message, headers)
    assert reply.error == (400, -32020, message["id"])
    assert "Mcp-Session-Id" not in reply.headers
    message = modern.message("server/discover")  # the handshake is no exception
    assert modern.post(message, {"MCP-Protocol-Version": None}).error == (400, -32020, message["id"])


@pytest.mark.requirement("MCP-42")
@each_row(
    ("name", "other"),
    [
        ("MCP-Protocol-Version", VERSIONS["modern"]),
        ("MCP-Protocol-Version", VERSIONS["legacy"]),
        ("Mcp-Method", "resources/read"),
        ("Mcp-Method", "skills/list"),
        ("Mcp-Name", ANYTHING),
        ("mcp-name", "skill://x"),
    ],
)
@each_row("first", [True, False])
def test_a_header_that_stands_twice_is_refused(modern: HttpClient, name: str, other: str, first: bool) -> None:
    message = modern.message("resources/read", {"uri": ANYTHING})
    headers = list(modern.headers(message).items())
    headers.insert(0 if first else len(headers), (name, other))
    assert modern.server.send(body=json.dumps(message).encode(), headers=headers).error == (400, -32020, message["id"])


@pytest.mark.requirement("MCP-42")
def test_a_header_in_base64_is_decoded_first(modern: HttpClient, tmp_path: Path) -> None:
    encoded = base64.b64encode(ANYTHING.encode()).decode()
    message = modern.message("resources/read", {"uri": ANYTHING})
    reply = modern.post(message, {"Mcp-Name": f"=?base64?{encoded}?="})
    assert reply.messages[0]["result"]["contents"][0]["uri"] == ANYTHING
    # A name that no header could carry as it is: it gets as far as the registry, which does not know it.
    encoded = base64.b64encode(ODD.encode()).decode()
    message = modern.message("resources/read", {"uri": ODD})
    assert modern.post(message, {"Mcp-Name": f"=?base64?{encoded}?="}).error == (400, -32602, message["id"])


@pytest.mark.requirement("MCP-42")
def test_what_is_no_request_of_the_modern_era_is_not_answered_as_one(server: Server) -> None:
    envelope = {"_meta": {META + "protocolVersion": VERSIONS["modern"]}}
    accept = {"Accept": BOTH, "Content-Type": "application/json"}

    def post(message: dict[str, Any]) -> Reply:
        return server.send(body=json.dumps({"jsonrpc": "2.0", **message}).encode(), headers=accept)

    opened = post({"id": 1, "method": "initialize", "params": {**HELLO, **envelope}})
    assert opened.messages[0]["result"]["protocolVersion"] == VERSIONS["legacy"]
    for identifier in (True, None, 1.5, [1], {"a": 1}):
        reply = post({"id": identifier, "method": "skills/list", "params": envelope})
        assert reply.status == 400 and reply.messages[0]["error"]["code"] != -32020
        assert reply.messages[0].get("id") is None


@pytest.mark.parametrize("escaped", ["protocolVersion", "\\u0070rotocolVersion"])
def test_a_legacy_request_that_quotes_the_envelope_is_no_modern_one(server: Server, escaped: str) -> None:
    with client(server, "legacy") as one:
        for meta in ({META + "protocolVersion": VERSIONS["legacy"]}, {"x": META + "protocolVersion"}):
            message = one.message("skills/list", {"_meta": meta})
            body = json.dumps(message).replace("protocolVersion", escaped).encode()
            reply = server.send(body=body, headers=one.headers())
            assert reply.messages[0]["result"]["skills"]


@pytest.mark.requirement("MCP-7", "MCP-32", "MCP-43", "MCP-52")
@each_row(
    "method",
    [
        "skills/none", "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
        "tasks/list", "", "x" * 4000,
    ],
)  # fmt: skip
def test_a_method_that_is_unknown_or_gone_is_not_found(modern: HttpClient, method: str) -> None:
    message = modern.message(method, {"uri": ANYTHING, **(HELLO if method == "initialize" else {})})
    assert modern.post(message).error == (404, -32601, message["id"])


@pytest.mark.requirement("MCP-44")
@each_row(
    "message",
    [
        {"method": "notifications/anything"},
        {"method": "notifications/cancelled", "params": {"requestId": 1, "_meta": MODERN_META}},
        {"method": "notifications/initialized", "params": {}},
    ],
)
def test_a_notification_is_accepted_without_a_body(asked: HttpClient, message: dict[str, Any]) -> None:
    reply = asked.post({"jsonrpc": "2.0", **message})
    assert (reply.status, reply.body) == (202, b"")


@pytest.mark.requirement("MCP-47")
def test_there_are_no_sessions_in_the_modern_era(modern: HttpClient) -> None:
    for method in ("GET", "DELETE", "PUT", "HEAD"):
        reply = modern.server.send(method, headers={**modern.headers(), "Mcp-Session-Id": "x"})
        assert (reply.status, reply.body) == (405, b"")
        assert reply.headers["Allow"] == "POST"
    message = modern.message("skills/list")
    reply = modern.post(message, {"Mcp-Session-Id": "0" * 32, "Last-Event-ID": "7"})
    assert reply.status == 200 and "Mcp-Session-Id" not in reply.headers
    stream = modern.listen(skillsListChanged=True)
    assert "Mcp-Session-Id" not in stream.headers


@pytest.mark.requirement("MCP-15")
@each_row("identifier", ["text", "", 0, -5, 2**53])
def test_ids_come_back_as_they_were_sent(asked: HttpClient, identifier: str | int) -> None:
    (answer,) = asked.post({**asked.message("skills/list"), "id": identifier}).messages
    assert answer["id"] == identifier and answer["result"]["skills"]


# Both eras: what is no request


@each_row("accept", ["application/json", "text/event-stream", "text/html", ""])
def test_a_client_that_takes_no_streams_or_no_json_is_told(asked: HttpClient, accept: str) -> None:
    assert asked.post(asked.message("skills/list"), {"Accept": accept}).status == 406


@each_row("accept", ["*/*", "application/*, text/*", "text/event-stream;q=0.5 , APPLICATION/JSON"])
def test_accept_may_have_wild_cards(asked: HttpClient, accept: str) -> None:
    assert asked.post(asked.message("skills/list"), {"Accept": accept}).messages[0]["result"]["skills"]


@each_row("kind", ["text/plain", "application/x-www-form-urlencoded", "", None])
def test_a_body_of_another_type_is_refused(asked: HttpClient, kind: str | None) -> None:
    assert asked.post(asked.message("skills/list"), {"Content-Type": kind}).status in {400, 415}


def test_an_envelope_of_another_shape_is_a_wrong_parameter(asked: HttpClient) -> None:
    for meta in ("protocolVersion", ["protocolVersion"], {"protocolVersion": {}}, {META + "protocolVersion": 5}):
        message = {"jsonrpc": "2.0", "id": 1, "method": "skills/list", "params": {"_meta": meta}}
        (answer,) = asked.post(message).messages
        assert "result" in answer or answer["error"]["code"] in {-32602, -32020}


def test_a_body_of_more_than_the_limit_is_too_large(asked: HttpClient) -> None:
    message = asked.message("skills/list", {"cursor": "x" * (1 << 16)})
    assert asked.post(message).status == 413
    # The same without its length beforehand.
    with asked.server.connect() as bare:
        bare.sendall(asked.head(message, "Transfer-Encoding: chunked"))
        bare.sendall((b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5)
        assert bare.recv(100).split()[1] == b"413"
    # And far too much of it is not waited for.
    with asked.server.connect() as bare:
        bare.sendall(asked.head(message, "Content-Length: 99999999999"))
        assert bare.recv(100).split()[1] == b"413"
    small = asked.message("skills/list", {"cursor": "x" * ((1 << 16) - 1000)})
    assert asked.post(small).messages[0]["error"]["code"] == -32602  # not too large: no such cursor
    assert asked.request("skills/list")["skills"]


def test_headers_without_end_are_refused(asked: HttpClient) -> None:
    with asked.server.connect() as bare:
        bare.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: ")
        try:
            bare.sendall(b"x" * (1 << 20) + b"\r\n\r\n")
            assert bare.recv(100).split()[1] == b"400"
        except ConnectionError:
            pass  # refused before all of it was sent
    assert asked.request("skills/list")["skills"]


@each_row("raw", [b"\x16\x03\x01\x02\x00\x01\x00", b"junk\r\n\r\n", b"GET / SPDY/9\r\n\r\n", b"\0" * 99])
def test_what_is_no_http_is_refused(server: Server, raw: bytes) -> None:
    with server.connect() as bare:
        bare.sendall(raw + b"\r\n\r\n")
        assert bare.recv(100).split()[1] == b"400"


# Clients that behave badly, and the others


@each_row("abruptly", [False, True])
@each_row("sent", [b"", b'{"jsonrpc":"2.0","id":1,"method":"skills/li'])
def test_a_client_that_leaves_in_the_middle_of_its_request_harms_nobody(
    asked: HttpClient, sent: bytes, abruptly: bool
) -> None:
    """Nor does it leave a traceback in the log, as the server's fixture sees."""
    for _ in range(3):
        with asked.server.connect() as bare:
            bare.sendall(asked.head({"method": "skills/list"}, "Content-Length: 999") + sent)
            if abruptly:
                bare.setsockopt(*RESET)
    assert asked.request("skills/list")["skills"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skill with a file of 6 MB, more than any socket takes at once."""
    root = tmp_path_factory.mktemp("large")
    write_skill(root / "big", data_txt="0123456789abcde\n" * 400_000)
    return root


def unread(one: HttpClient) -> socket.socket:
    """Ask for the large file on a bare connection and read no more than its beginning."""
    bare = one.server.connect(receive_buffer=4096)
    bare.sendall(one.raw(one.message("resources/read", {"uri": "skill://big/data.txt"})))
    assert bare.recv(100).startswith(b"HTTP/1.1 200")
    return bare


@pytest.mark.requirement("MCP-49")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_slow_reader_holds_nobody_up_and_neither_does_one_that_vanishes(large: Path, era: Era) -> None:
    with http_serving(large) as server, ExitStack() as stack:
        slow, other = (stack.enter_context(client(server, era)) for _ in range(2))
        stack.enter_context(client(server, "modern" if era == "legacy" else "legacy")).every_skill()
        held = [stack.enter_context(unread(slow)) for _ in range(5)]
        for _ in range(5):
            assert other.request("skills/list")["skills"]
        assert len(other.read("skill://big/data.txt")) == 6_400_000
        for bare in held[:3]:
            bare.setsockopt(*RESET)
            bare.close()
        assert other.request("skills/list")["skills"]
        held[3].settimeout(DEADLINE)
        got = len(held[3].recv(1000, socket.MSG_WAITALL))
        assert got == 1000  # who reads on gets on
        assert slow.request("skills/list")["skills"]


def test_streams_that_nobody_reads_hold_nobody_up(tmp_path: Path) -> None:
    """Each is owed every kind of news once at the most, and others hear all of it."""
    write_skill(tmp_path / "a", zz_md="0")
    with http_serving(tmp_path) as server, ExitStack() as stack:
        listener = stack.enter_context(client(server, "modern"))
        listener.every_skill()
        wanted = {"skillsListChanged": True, "resourceSubscriptions": ["skill://a/zz.md"]}
        request = listener.raw(listener.message("subscriptions/listen", {"notifications": wanted}))
        for number in range(10):
            bare = stack.enter_context(server.connect(receive_buffer=4096))
            bare.sendall(request)
            if number % 2:
                bare.setsockopt(*RESET)
                bare.close()
        stream = listener.hear("skill://a/zz.md")
        for number in range(3):
            (tmp_path / "a" / "zz.md").write_text(f"{number} more")
            stream.until("notifications/resources/updated", "skill://a/zz.md")


@each_row("method", ["PUT", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_allowed(server: Server, method: str) -> None:
    reply = server.send(method, headers={"Accept": BOTH})
    assert reply.status == 405 and "POST" in reply.headers["Allow"]


def test_streams_that_ask_for_more_than_can_be_kept_are_refused_and_cost_nothing() -> None:
    with http_serving(FIXTURES) as server, client(server, "modern") as asked:
        asked.request("skills/list")
        before = server.resident()
        wanted = {"notifications": {"resourceSubscriptions": ["x" * 1_000_000]}, "_meta": MODERN_META}
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": wanted}).encode()
        headers = {**asked.headers(), "Mcp-Method": "subscriptions/listen"}
        assert headers["MCP-Protocol-Version"] == VERSIONS["modern"]
        for _ in range(40):
            assert server.send(body=body, headers=headers).error == (400, -32602, 7)
        assert server.resident() - before < 20 << 20
