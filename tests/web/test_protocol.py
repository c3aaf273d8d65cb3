"""MCP over HTTP: refusals that the protocol prescribes, and clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import Message

from mcp_skills_server.server.dispatch import Answer
from mcp_skills_server.web import mcp
from tables import each_row
from web.http_wire import HttpClient, Server, client, http_serving
from wire import DEADLINE, FIXTURES, VERSIONS, write_skill

RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
"""The socket option that makes a close send RST."""
URI = "skill://commit-messages/SKILL.md"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with http_serving(FIXTURES, "--max-body", str(1 << 16)) as started:
        yield started


@pytest.fixture
def modern(server: Server) -> Iterator[HttpClient]:
    with client(server, "modern", opened=False) as connected:
        yield connected


@pytest.mark.requirement("MCP-42")
@each_row(("name", "value"), [
    ("MCP-Protocol-Version", VERSIONS["modern"]), ("MCP-Protocol-Version", VERSIONS["legacy"]),
    ("Mcp-Method", "resources/read"), ("Mcp-Method", "skills/list"), ("Mcp-Name", URI),
    ("mcp-name", "skill://x"),
])  # fmt: skip
def test_repeated_header_is_refused(modern: HttpClient, name: str, value: str) -> None:
    message = modern.message("resources/read", {"uri": URI})
    headers = list(modern.headers(message).items())
    body = json.dumps(message).encode()
    for repeated in ([(name, value), *headers], [*headers, (name, value)]):
        reply = modern.server.send(body=body, headers=repeated)
        assert reply.error == (400, -32020, message["id"])


def test_body_over_limit_is_too_large(http_client: HttpClient) -> None:
    message = http_client.message("skills/list", {"cursor": "x" * (1 << 16)})
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
