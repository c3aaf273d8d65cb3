"""What the protocol says of wrong requests over HTTP, and what becomes of clients that behave badly."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tables import each_row
from web.http_wire import BOTH, HELLO, MODERN_META, HttpClient, Reply, Server, client, http_serving
from wire import FIXTURES, META, VERSIONS

RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
"""The option of a socket whose end is a reset."""
ANYTHING = "skill://commit-messages/SKILL.md"


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


def without(key: str) -> dict[str, Any]:
    """The envelope without one of its keys."""
    return {name: value for name, value in MODERN_META.items() if name != META + key}


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
        {"_meta": without("clientCapabilities")}, {"_meta": without("protocolVersion")}, {"_meta": {}},
        {"_meta": None}, {"_meta": []}, {}, None,
    ],
)  # fmt: skip
def test_a_missing_envelope_is_refused(modern: HttpClient, params: dict[str, Any] | None) -> None:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": "half", "method": "skills/list"}
    if params is not None:
        message["params"] = params
    assert modern.post(message).error == (400, -32602, "half")


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
        ("MCP-Protocol-Version", VERSIONS["modern"]), ("MCP-Protocol-Version", VERSIONS["legacy"]),
        ("Mcp-Method", "resources/read"), ("Mcp-Method", "skills/list"), ("Mcp-Name", ANYTHING),
        ("mcp-name", "skill://x"),
    ],
)  # fmt: skip
@each_row("first", [True, False])
def test_a_header_that_stands_twice_is_refused(modern: HttpClient, name: str, other: str, first: bool) -> None:
    message = modern.message("resources/read", {"uri": ANYTHING})
    headers = list(modern.headers(message).items())
    headers.insert(0 if first else len(headers), (name, other))
    assert modern.server.send(body=json.dumps(message).encode(), headers=headers).error == (400, -32020, message["id"])


@pytest.mark.requirement("MCP-42")
def test_a_header_in_base64_is_decoded_first(modern: HttpClient) -> None:
    def read(uri: str) -> Reply:
        name = {"Mcp-Name": f"=?base64?{base64.b64encode(uri.encode()).decode()}?="}
        return modern.post({**modern.message("resources/read", {"uri": uri}), "id": 1}, name)

    assert read(ANYTHING).messages[0]["result"]["contents"][0]["uri"] == ANYTHING
    # A name that no header could carry as it is: it gets as far as the registry, which does not know it.
    assert read("skill://naïve-ß/Übersicht 表.md").error == (400, -32602, 1)


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


def test_a_legacy_request_that_names_its_version_in_the_envelope_is_no_modern_one(server: Server) -> None:
    with client(server, "legacy") as one:
        message = one.message("skills/list", {"_meta": {META + "protocolVersion": VERSIONS["legacy"]}})
        assert one.post(message).messages[0]["result"]["skills"]


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
def test_a_notification_is_accepted_without_a_body(http_client: HttpClient) -> None:
    for method, params in (
        ("anything", {}),
        ("cancelled", {"requestId": 1, "_meta": MODERN_META}),
        ("initialized", {}),
    ):
        reply = http_client.post({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})
        assert (reply.status, reply.body) == (202, b"")


@pytest.mark.requirement("MCP-47")
def test_there_are_no_sessions_in_the_modern_era(modern: HttpClient) -> None:
    for method in ("GET", "DELETE", "PUT", "HEAD", "PATCH", "OPTIONS", "TRACE"):
        reply = modern.server.send(method, headers={**modern.headers(), "Mcp-Session-Id": "x"})
        assert (reply.status, reply.body, reply.headers["Allow"]) == (405, b"", "POST")
    reply = modern.post(modern.message("skills/list"), {"Mcp-Session-Id": "0" * 32, "Last-Event-ID": "7"})
    assert reply.status == 200 and "Mcp-Session-Id" not in reply.headers
    assert "Mcp-Session-Id" not in modern.listen(skillsListChanged=True).headers


@each_row(
    ("status", "name", "values"),
    [
        (406, "Accept", ["application/json", "text/event-stream", "text/html", ""]),
        (200, "Accept", ["*/*", "application/*, text/*", "text/event-stream;q=0.5 , APPLICATION/JSON"]),
        (400, "Content-Type", ["text/plain", "application/x-www-form-urlencoded", "", None]),
    ],
)
def test_json_is_sent_and_taken_beside_streams(
    http_client: HttpClient, status: int, name: str, values: list[str | None]
) -> None:
    for value in values:
        assert http_client.post(http_client.message("skills/list"), {name: value}).status == status


def test_an_envelope_of_another_shape_is_a_wrong_parameter(http_client: HttpClient) -> None:
    for meta in ("protocolVersion", ["protocolVersion"], {"protocolVersion": {}}, {META + "protocolVersion": 5}, 5):
        message = {"jsonrpc": "2.0", "id": 1, "method": "skills/list", "params": {"_meta": meta}}
        (answer,) = http_client.post(message).messages
        assert "result" in answer or answer["error"]["code"] in {-32602, -32020}


def test_a_body_of_more_than_the_limit_is_too_large(http_client: HttpClient) -> None:
    message = http_client.message("skills/list", {"cursor": "x" * (1 << 16)})
    assert http_client.post(message).status == 413
    # The same without its length beforehand, and far too much of it is not waited for.
    for header, body in (
        ("Transfer-Encoding: chunked", (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5),
        ("Content-Length: 99999999999", b""),
    ):
        with http_client.server.connect() as bare:
            bare.sendall(http_client.head(message, header) + body)
            assert bare.recv(100).split()[1] == b"413"
    small = http_client.message("skills/list", {"cursor": "x" * ((1 << 16) - 1000)})
    assert http_client.post(small).messages[0]["error"]["code"] == -32602  # not too large: no such cursor
    assert http_client.request("skills/list")["skills"]


@each_row("abruptly", [False, True])
@each_row("sent", [b"", b'{"jsonrpc":"2.0","id":1,"method":"skills/li'])
def test_a_client_that_leaves_within_its_request_harms_nobody(
    http_client: HttpClient, sent: bytes, abruptly: bool
) -> None:
    """Nor does it leave a traceback in the log, as the server's fixture sees."""
    for _ in range(3):
        with http_client.server.connect() as bare:
            bare.sendall(http_client.head({"method": "skills/list"}, "Content-Length: 999") + sent)
            if abruptly:
                bare.setsockopt(*RESET)
    assert http_client.request("skills/list")["skills"]
