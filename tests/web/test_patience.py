"""Clients that trickle, or do not read: real sockets that send a part of a request, or take a part of an answer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from mcp_skills_server.web import connections
from tables import each_row
from web.http_wire import Server, client, http_serving, token_file, until
from wire import DEADLINE, FIXTURES, write_skill

HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
LINE = "bob=bobs-made-up-token-0123456789"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def rest(server: Server, said: bytes, answers: int = 0) -> bytes:
    """What comes back, until the server closes the connection."""
    with server.connect() as bare:
        for _ in range(answers):
            bare.sendall(WHOLE)
            answer = b""
            while not answer.endswith(b"alive\n"):
                answer += bare.recv(1000)
        bare.sendall(said)
        out = b""
        while piece := bare.recv(1000):
            out += piece
        return out


@each_row(
    ("said", "answers"),
    [*((said, 0) for said in (b"", b"POST /mc", HEAD[:-2], HEAD, HEAD + b'{"jsonrpc"')), (WHOLE[:10], 2)],
)
def test_a_connection_without_a_whole_request_is_closed(said: bytes, answers: int) -> None:
    with http_serving(FIXTURES, "--request-timeout", "0.2", "--log-level", "info") as server:
        assert rest(server, said, answers) == b""
        server.said("closed a connection that sent no whole request in 0.2 s")


@pytest.mark.parametrize("refusals", [0, 61])
def test_who_goes_on_with_a_body_that_nobody_wants_is_cut_off(tmp_path: Path, refusals: int) -> None:
    begin = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    quota = tmp_path / "c.toml"
    quota.write_text("[quota]\nfailed-authentications-per-minute = 1\n", encoding="ascii")
    options = ("--token-file", token_file(tmp_path, LINE), "--config", quota, "--log-level", "info")
    with http_serving(FIXTURES, *options) as server:
        for _ in range(refusals):
            server.send("GET", "/mcp")
        with server.connect() as bare:
            bare.sendall(begin)
            bare.settimeout(DEADLINE)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                bare.sendall(chunk * 1_000)
        server.said("went on and on with a request that had its answer")
        assert server.send("GET", "/healthz").status == 200


def test_a_body_that_nobody_wants_may_come_to_its_end(tmp_path: Path) -> None:
    body = bytes(connections.MOST_UNHEEDED >> 1)
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with http_serving(FIXTURES, "--token-file", token_file(tmp_path, LINE)) as server, server.connect() as bare:
        for _ in range(3):  # on one connection
            bare.sendall(head + body)
            answer = b""
            while not answer.endswith(b"}"):
                answer += bare.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 401 ")


def test_streams_outlast_it(tmp_path: Path) -> None:
    with http_serving(tmp_path, "--request-timeout", "0.2") as server, client(server, "modern") as asked:
        stream = asked.listen(skillsListChanged=True)
        for _ in range(3):  # the waits of these are the clock of the test
            rest(server, WHOLE[:10])
        write_skill(tmp_path / "a")
        assert stream.until("notifications/skills/list_changed")


def big(folder: Path) -> Path:
    write_skill(
        folder / "big", body="x" * 900_000, **{f"references__part{number}_md": "y" * 900_000 for number in range(9)}
    )
    return folder


def sockets(server: Server) -> int:
    """Count the sockets of a server: the watch and the index open their own files whenever they start."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += os.readlink(link).startswith("socket:")
    return count


def published(server: Server) -> dict[str, str]:
    """The entry of the one skill that the server publishes."""
    (entry,) = json.loads(server.send("GET", "/.well-known/agent-skills/index.json").body)["skills"]
    return entry


def unread(server: Server, said: bytes, window: int = 4096) -> socket.socket:
    """A connection that asks for more than it reads."""
    bare = server.connect(receive_buffer=window)
    bare.sendall(said)
    return bare


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_who_does_not_read_an_answer_is_cut_off(tmp_path: Path) -> None:
    with http_serving(big(tmp_path), "--request-timeout", "0.2", "--max-connections", "4") as server:
        path = published(server)["url"]
        call = {"jsonrpc": "2.0", "method": "read_skill_file"}
        files = [{"name": "big", "path": f"references/part{number}.md"} for number in range(9)]
        batch = json.dumps([{**call, "id": number, "params": each} for number, each in enumerate(files)]).encode()
        head = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        asked = [
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            head + b"Content-Length: %d\r\n\r\n" % len(batch) + batch,
            head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(batch) + batch,
        ]
        opened = sockets(server)
        with ExitStack() as stack:
            for said in asked:
                stack.enter_context(unread(server, said))
            server.said("cut off a client that did not read its answer")
            until(lambda: sockets(server) <= opened)
            assert server.send("GET", "/healthz").status == 200


def test_the_end_of_the_server_cuts_off_who_does_not_read_without_a_traceback(tmp_path: Path) -> None:
    with http_serving(big(tmp_path)) as server:
        with unread(server, f"GET {published(server)['url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()) as bare:
            assert bare.recv(12) == b"HTTP/1.1 200"
            code, _ = server.signal(signal.SIGTERM)
        assert code == 0 and "Traceback" not in server.stderr


def test_who_reads_slowly_gets_it_all(tmp_path: Path) -> None:
    with http_serving(big(tmp_path), "--request-timeout", "0.2") as server:
        entry = published(server)
        said = f"GET {entry['url']} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        raw = b""
        with unread(server, said, window=1 << 17) as bare:
            for _ in range(8):
                raw += bare.recv(1 << 17)
                rest(server, WHOLE[:10])  # another connection that is given up is the clock
            while piece := bare.recv(1 << 20):
                raw += piece
        body = raw.partition(b"\r\n\r\n")[2]
        assert "sha256:" + hashlib.sha256(body).hexdigest() == entry["digest"]
        assert "cut off" not in server.stderr
