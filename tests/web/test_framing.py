"""A request ends in one place: raw sockets that say two things of it."""

from __future__ import annotations

from tables import each_row
from web.http_wire import Server

HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def answers(server: Server, said: bytes) -> bytes:
    """All that comes back, until the server closes the connection."""
    with server.connect() as bare:
        bare.sendall(said)
        out = b""
        while piece := bare.recv(1000):
            out += piece
        return out


@each_row("version", [b"1.0", b"1.1"])
@each_row(
    "names",
    [
        (b"content-length", b"transfer-encoding"), (b"transfer-encoding", b"content-length"),
        (b"CONTENT-LENGTH", b"TRANSFER-ENCODING"), (b"TRANSFER-ENCODING", b"CONTENT-LENGTH"),
    ],
)  # fmt: skip
def test_both_headers_are_one_400_and_the_end(server: Server, version: bytes, names: tuple[bytes, bytes]) -> None:
    body = b"0\r\n\r\n" + HIDDEN
    values = {b"content-length": b"%d" % len(body), b"transfer-encoding": b"chunked"}
    lines = [name + b": " + values[name.lower()] for name in names]
    head = b"\r\n".join([b"POST /mcp HTTP/" + version, b"Host: localhost", *lines])
    seen = answers(server, head + b"\r\n\r\n" + body)
    assert seen.startswith(b"HTTP/1.1 400 ") and seen.count(b"HTTP/1.1 ") == 1 and b"alive" not in seen
    assert b"connection: close" in seen.lower()


def test_an_encoding_in_http_1_0_is_refused(server: Server) -> None:
    seen = answers(server, b"POST /mcp HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert seen.startswith(b"HTTP/1.1 400 ") and seen.count(b"HTTP/1.1 ") == 1


def test_the_second_request_of_a_connection_is_looked_at_too(server: Server) -> None:
    bad = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    seen = answers(server, HIDDEN + bad + HIDDEN)
    assert seen.startswith(b"HTTP/1.1 200 ") and seen.count(b"alive") == 1 and seen.count(b"HTTP/1.1 400 ") == 1


def test_each_of_them_alone_is_read_whole(server: Server) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"list_skills"}'
    head = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    plain = answers(server, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    chunked = answers(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert plain.startswith(b"HTTP/1.1 200 ") and chunked.startswith(b"HTTP/1.1 200 ")
    assert plain.partition(b"\r\n\r\n")[2] == chunked.partition(b"\r\n\r\n")[2]
