"""MCP over HTTP: refusals that the protocol prescribes, and clients that disconnect."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from mcp_skills_server.server.dispatch import Answer
from mcp_skills_server.web import mcp
from tables import each_row
from web.http_wire import HELLO, MCP_HEADERS, MODERN_META, HttpClient, Reply, Server, client, http_serving
from wire import DEADLINE, FIXTURES, META, VERSIONS, write_skill

RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
"""The socket option that makes a close send RST."""
URI = "skill://commit-messages/SKILL.md"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of the fixture skills that accepts bodies of 64 KiB."""
    with http_serving(FIXTURES, "--max-body", str(1 << 16)) as started:
        yield started


@pytest.fixture
def modern(server: Server) -> Iterator[HttpClient]:
    """A modern client without a handshake."""
    with client(server, "modern", opened=False) as connected:
        yield connected


def envelope_without(key: str) -> dict[str, Any]:
    return {name: value for name, value in MODERN_META.items() if name != META + key}


@pytest.mark.requirement("MCP-3")
@each_row("version", ["2031-01-01", "2026-07-27", "draft", "1"])
def test_unknown_version_is_refused_with_supported_ones(modern: HttpClient, version: str) -> None:
    message = modern.message("skills/list", {"_meta": {META + "protocolVersion": version}})
    reply = modern.post(message, {"MCP-Protocol-Version": version})
    assert reply.error == (400, -32022, message["id"])
    assert reply.messages[0]["error"]["data"] == {"supported": [VERSIONS["modern"]], "requested": version}


@pytest.mark.requirement("MCP-2")
@each_row(
    "params",
    [
        {"_meta": envelope_without("clientCapabilities")}, {"_meta": envelope_without("protocolVersion")},
        {"_meta": {}}, {"_meta": None}, {"_meta": []}, {}, None,
    ],
)  # fmt: skip
def test_missing_envelope_is_refused(modern: HttpClient, params: dict[str, Any] | None) -> None:
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
def test_header_that_disagrees_with_body_is_refused(modern: HttpClient, headers: dict[str, str | None]) -> None:
    message = modern.message("resources/read", {"uri": URI})
    reply = modern.post(message, headers)
    assert reply.error == (400, -32020, message["id"])
    assert "Mcp-Session-Id" not in reply.headers
    message = modern.message("server/discover")  # so is the handshake
    assert modern.post(message, {"MCP-Protocol-Version": None}).error == (400, -32020, message["id"])


@pytest.mark.requirement("MCP-42")
@each_row(
    ("name", "value"),
    [
        ("MCP-Protocol-Version", VERSIONS["modern"]), ("MCP-Protocol-Version", VERSIONS["legacy"]),
        ("Mcp-Method", "resources/read"), ("Mcp-Method", "skills/list"), ("Mcp-Name", URI),
        ("mcp-name", "skill://x"),
    ],
)  # fmt: skip
def test_repeated_header_is_refused(modern: HttpClient, name: str, value: str) -> None:
    message = modern.message("resources/read", {"uri": URI})
    headers = list(modern.headers(message).items())
    body = json.dumps(message).encode()
    for repeated in ([(name, value), *headers], [*headers, (name, value)]):
        reply = modern.server.send(body=body, headers=repeated)
        assert reply.error == (400, -32020, message["id"])


@pytest.mark.requirement("MCP-42")
def test_base64_header_is_decoded(modern: HttpClient) -> None:
    def read(uri: str) -> Reply:
        name = {"Mcp-Name": f"=?base64?{base64.b64encode(uri.encode()).decode()}?="}
        return modern.post({**modern.message("resources/read", {"uri": uri}), "id": 1}, name)

    assert read(URI).messages[0]["result"]["contents"][0]["uri"] == URI
    # A name that only base64 can carry passes the check; the registry does not know it.
    assert read("skill://naïve-ß/Übersicht 表.md").error == (400, -32602, 1)


@pytest.mark.requirement("MCP-42")
def test_modern_version_in_invalid_modern_request_is_ignored(server: Server) -> None:
    envelope = {"_meta": {META + "protocolVersion": VERSIONS["modern"]}}

    def post(message: dict[str, Any]) -> Reply:
        return server.send(body=json.dumps({"jsonrpc": "2.0", **message}).encode(), headers=MCP_HEADERS)

    opened = post({"id": 1, "method": "initialize", "params": {**HELLO, **envelope}})
    assert opened.messages[0]["result"]["protocolVersion"] == VERSIONS["legacy"]
    for identifier in (True, None, 1.5, [1], {"a": 1}):
        reply = post({"id": identifier, "method": "skills/list", "params": envelope})
        (message,) = reply.messages
        assert reply.status == 400
        assert message["error"]["code"] != -32020
        assert message.get("id") is None


def test_legacy_version_in_envelope_is_accepted(server: Server) -> None:
    envelope = {"_meta": {META + "protocolVersion": VERSIONS["legacy"]}}
    with client(server, "legacy") as legacy:
        message = legacy.message("skills/list", envelope)
        assert legacy.post(message).messages[0]["result"]["skills"]


@pytest.mark.requirement("MCP-7", "MCP-32", "MCP-43", "MCP-52")
@each_row(
    "method",
    [
        "skills/none", "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
        "tasks/list", "", "x" * 4000,
    ],
)  # fmt: skip
def test_unknown_or_removed_method_is_not_found(modern: HttpClient, method: str) -> None:
    message = modern.message(method, {"uri": URI, **HELLO})
    assert modern.post(message).error == (404, -32601, message["id"])


@pytest.mark.requirement("S40-30")
@each_row(("method", "params", "fault"), [
    ("resources/read", {}, "params.uri is missing"), ("tools/call", {"arguments": {}}, "params.name is missing"),
    ("prompts/get", {"name": "x", "arguments": {"a": 5}}, "params.arguments.a must be a string"),
    ("completion/complete", {}, "params.argument is missing"), ("resources/list", {"cursor": 5}, "params.cursor must"),
])  # fmt: skip
def test_invalid_param_is_named(http_client: HttpClient, method: str, params: dict[str, Any], fault: str) -> None:
    (answer,) = http_client.post(http_client.message(method, params)).messages
    assert answer["error"]["code"] == -32602
    assert answer["error"]["message"].startswith(f"Invalid params: {fault}")


def test_null_for_an_argument_of_a_prompt_means_not_given(http_client: HttpClient) -> None:
    result = http_client.request("prompts/get", {"name": "polite-greetings", "arguments": {"tone": None}})
    assert "polite-greetings" in result["messages"][0]["content"]["text"]


@pytest.mark.requirement("MCP-44")
def test_notification_gets_202_without_body(http_client: HttpClient) -> None:
    cancelled = {"requestId": 1, "_meta": MODERN_META}
    for method, params in (("anything", {}), ("cancelled", cancelled), ("initialized", {})):
        message = {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}
        reply = http_client.post(message)
        assert (reply.status, reply.body) == (202, b"")


@pytest.mark.requirement("MCP-47")
def test_modern_era_has_no_sessions(modern: HttpClient) -> None:
    for method in ("GET", "DELETE", "PUT", "HEAD", "PATCH", "OPTIONS", "TRACE"):
        reply = modern.server.send(method, headers={**modern.headers(), "Mcp-Session-Id": "x"})
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    headers: dict[str, str | None] = {"Mcp-Session-Id": "0" * 32, "Last-Event-ID": "7"}
    reply = modern.post(modern.message("skills/list"), headers)
    assert reply.status == 200
    assert "Mcp-Session-Id" not in reply.headers
    assert "Mcp-Session-Id" not in modern.listen(skillsListChanged=True).headers


@each_row(
    ("status", "name", "values"),
    [
        (406, "Accept", ["application/json", "text/html", ""]),
        (
            200,
            "Accept",
            ["*/*", "application/*, text/*", "text/event-stream;q=0.5 , APPLICATION/JSON", "text/event-stream"],
        ),
        (400, "Content-Type", ["text/plain", "application/x-www-form-urlencoded", "", None]),
    ],
)
def test_accept_and_content_type_are_checked(
    http_client: HttpClient, status: int, name: str, values: list[str | None]
) -> None:
    for value in values:
        assert http_client.post(http_client.message("skills/list"), {name: value}).status == status


@each_row("accept", ["text/event-stream", "Text/Event-Stream; charset=utf-8", "text/event-stream, text/html"])
def test_client_that_accepts_only_streams_is_answered_with_one(http_client: HttpClient, accept: str) -> None:
    message = http_client.message("skills/list")
    reply = http_client.post(message, {"Accept": accept})
    assert (reply.status, reply.headers["Content-Type"].partition(";")[0]) == (200, "text/event-stream")
    (answer,) = reply.messages
    assert answer["id"] == message["id"] and answer["result"]["skills"]


def test_malformed_envelope_is_invalid_params_or_ignored(http_client: HttpClient) -> None:
    for meta in ("protocolVersion", ["protocolVersion"], {"protocolVersion": {}}, {META + "protocolVersion": 5}, 5):
        message = {"jsonrpc": "2.0", "id": 1, "method": "skills/list", "params": {"_meta": meta}}
        (answer,) = http_client.post(message).messages
        assert "result" in answer or answer["error"]["code"] in {-32602, -32020}


def test_body_over_limit_is_too_large(http_client: HttpClient) -> None:
    message = http_client.message("skills/list", {"cursor": "x" * (1 << 16)})
    assert http_client.post(message).status == 413
    # A chunked body is counted, and a Content-Length over the limit is refused at once.
    for header, body in (
        ("Transfer-Encoding: chunked", (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5),
        ("Content-Length: 99999999999", b""),
    ):
        with http_client.server.connect() as connection:
            connection.sendall(http_client.head(message, header) + body)
            assert connection.recv(100).split()[1] == b"413"
    small = http_client.message("skills/list", {"cursor": "x" * ((1 << 16) - 1000)})
    assert http_client.post(small).messages[0]["error"]["code"] == -32602  # an unknown cursor
    assert http_client.request("skills/list")["skills"]


@each_row("is_reset", [False, True])
@each_row("body", [b"", b'{"jsonrpc":"2.0","id":1,"method":"skills/li'])
def test_client_that_disconnects_within_request_leaves_server_working(
    http_client: HttpClient, body: bytes, is_reset: bool
) -> None:
    """The server fixture also fails on a traceback in the log."""
    head = http_client.head({"method": "skills/list"}, "Content-Length: 999")
    for _ in range(3):
        with http_client.server.connect() as connection:
            connection.sendall(head + body)
            if is_reset:
                connection.setsockopt(*RESET)
    assert http_client.request("skills/list")["skills"]


def test_request_whose_body_is_incomplete_is_not_answered(tmp_path: Path) -> None:
    """It has no permit, so a client could have any number of them answered at once."""
    write_skill(tmp_path / "a")
    with http_serving(tmp_path, "--log-level", "info") as server, client(server, "modern") as sender:
        message = sender.message("resources/list")
        with server.connect() as connection:
            connection.sendall(sender.head(message, "Content-Length: 9999") + json.dumps(message).encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
        sender.request("skills/list")
        server.wait_for_log("skills/list: ok")
        assert "resources/list" not in server.stderr


@pytest.mark.anyio
async def test_answer_begins_stream_that_its_first_comment_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a pipelined response that the client does not read."""
    monkeypatch.setattr(mcp, "_PING_S", 0)
    sent: list[str] = []
    is_waiting, is_read = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        is_waiting.set()
        await is_read.wait()
        sent.append(message["type"])

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()

    reply = mcp.Reply(send)
    reply.watch(receive, None)
    async with asyncio.timeout(DEADLINE):
        await is_waiting.wait()
        reply.close()
        answering = asyncio.create_task(reply.answer(Answer(b"{}"), 200))
        await asyncio.sleep(0)
        is_read.set()
        await answering
    assert sent == ["http.response.start", "http.response.body"]
