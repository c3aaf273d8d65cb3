"""A client that trickles: real sockets that send a part of a request and nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from web.http_wire import Server, client, http_serving
from wire import FIXTURES, write_skill

HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
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


@pytest.mark.parametrize("said", [b"", b"POST /mc", HEAD[:-2], HEAD, HEAD + b'{"jsonrpc"'])
def test_a_connection_without_a_whole_request_is_closed(said: bytes) -> None:
    with http_serving(FIXTURES, "--request-timeout", "0.2", "--log-level", "info") as server:
        assert rest(server, said) == b""
        server.said("closed a connection that sent no whole request in 0.2 s")


def test_the_second_request_of_a_connection_has_no_longer_than_the_first() -> None:
    with http_serving(FIXTURES, "--request-timeout", "0.2") as server:
        assert rest(server, WHOLE[:10], answers=2) == b""
        server.said("closed a connection")


def test_streams_outlast_it(tmp_path: Path) -> None:
    with http_serving(tmp_path, "--request-timeout", "0.2") as server, client(server, "modern") as asked:
        stream = asked.listen(skillsListChanged=True)
        for count in range(1, 4):  # the waits of these are the clock of the test
            rest(server, WHOLE[:10])
            server.said("closed a connection", count)
        write_skill(tmp_path / "a")
        assert stream.until("notifications/skills/list_changed")
