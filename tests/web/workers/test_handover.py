"""A connection that is given to another process is the same connection there, or it was never given."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from mcp_skills_server.web.workers.handover import Receiving, give

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name == "nt", reason="Windows cannot pass a socket on"),
]


class Echo(asyncio.Protocol):
    """Says what it was made with, then what it is sent; and who is there."""

    made: list[Echo]

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.peer: object = None
        self.made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.peer = transport.get_extra_info("peername")
        self.transport = transport
        transport.write(self.raw)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@asynccontextmanager
async def receiving(path: Path) -> AsyncGenerator[list[Echo]]:
    Echo.made = []
    taker = Receiving(str(path), Echo)
    try:
        yield Echo.made
    finally:
        taker.close()
        for each in Echo.made:
            each.transport.abort()


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            client.setblocking(False)
            server.setblocking(False)
            yield client, server


async def read(client: socket.socket, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        out += await asyncio.get_running_loop().sock_recv(client, size - len(out)) or pytest.fail("it was closed")
    return bytes(out)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("size", [1, 70_000, 3 << 20])
async def test_what_was_read_goes_along_and_the_giver_may_close(tmp_path: Path, size: int) -> None:
    raw = os.urandom(size)
    async with receiving(tmp_path / "0") as made, connected() as (client, server):
        reading = asyncio.create_task(read(client, size))
        assert await give(str(tmp_path / "0"), server.fileno(), raw)
        server.close()
        assert await reading == raw
        await asyncio.get_running_loop().sock_sendall(client, b"more")
        assert await read(client, 4) == b"more"
        assert made[0].peer == client.getsockname()


async def test_nobody_there_takes_nothing(tmp_path: Path) -> None:
    async with connected() as (client, server):
        assert not await give(str(tmp_path / "0"), server.fileno(), b"x")
        (tmp_path / "1").touch()
        assert not await give(str(tmp_path / "1"), server.fileno(), b"x")
        with socket.socket(socket.AF_UNIX) as deaf:  # whose process dies before it has taken it
            deaf.bind(str(tmp_path / "2"))
            deaf.listen()
            giving = asyncio.create_task(give(str(tmp_path / "2"), server.fileno(), b"x"))
            deaf.setblocking(False)
            peer, _ = await asyncio.get_running_loop().sock_accept(deaf)
            peer.close()
            assert not await giving
        await asyncio.get_running_loop().sock_sendall(server, b"here")
        assert await read(client, 4) == b"here"


async def test_what_is_not_whole_is_dropped_and_the_next_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "0")
    head = struct.pack("!Q", 100)
    async with receiving(tmp_path / "0") as made, connected() as (client, server):
        for sent, descriptors in (
            (head, []),
            (head, [server.fileno()]),
            (head[:3], [server.fileno()]),
            (b"x" * 10, []),
        ):
            with socket.socket(socket.AF_UNIX) as broken:
                broken.connect(path)
                socket.send_fds(broken, [sent], descriptors)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(path)
            assert await give(path, server.fileno(), b"whole")
            assert await read(client, 5) == b"whole"
        assert [each.raw for each in made] == [b"whole"]


async def test_a_successor_takes_the_place(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old, suppress(OSError):
        old.bind(str(tmp_path / "0"))
    async with receiving(tmp_path / "0"), connected() as (client, server):
        assert await give(str(tmp_path / "0"), server.fileno(), b"new")
        assert await read(client, 3) == b"new"
    assert not (tmp_path / "0").exists()
