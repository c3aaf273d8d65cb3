"""Connections that one process gives to another: the socket itself, and what was read from it.

The other process then serves the client as if it had accepted the connection: what it sends, how slowly it is read and
when its client leaves is between these two. Nothing is forwarded, and no header has to be believed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

logger = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct("!Q")
_PIECE: Final = 64 << 10
_TAKEN: Final = b"t"
_CLOSED_ON_EXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


async def give(path: str, connection: int, raw: bytes) -> bool:
    """Give a connection to the process that receives at this path.

    Args:
        path: of its unix socket.
        connection: the descriptor. Nothing may be read from it meanwhile; it stays open here.
        raw: what the client sent that nobody has answered.

    Returns:
        Whether it was taken. If not, nothing has become of it.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.setblocking(False)
        try:
            peer.connect(path)
            message = memoryview(_LENGTH.pack(len(raw)) + raw)
            sent = socket.send_fds(peer, [message[:_PIECE]], [connection])
            if sent < len(message):
                await loop.sock_sendall(peer, message[sent:])
            return await loop.sock_recv(peer, 1) == _TAKEN
        except OSError as error:  # it is gone, or has more to take than it can
            logger.debug("a connection was not given away (%s)", error)
            return False


class Receiving:
    """Takes the connections that others give. To be made in an event loop.

    Args:
        path: where; a folder that only this user can enter. What is there is replaced.
        protocol: makes the protocol of a connection from what was read of it.
    """

    def __init__(self, path: str, protocol: Callable[[bytes], asyncio.Protocol]) -> None:
        self._path = path
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        with suppress(FileNotFoundError):  # of the process that was here before
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Take no more."""
        if self._listener.fileno() != -1:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            with suppress(OSError):
                os.unlink(self._path)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: the connections are those of the server."""

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:
            logger.debug("a given connection was not accepted (%s)", error)
            return
        peer.setblocking(False)
        task = self._loop.create_task(self._take(peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, peer: socket.socket) -> None:
        with peer:
            try:
                first, connection = await self._first(peer)
            except OSError as error:
                logger.debug("a connection was not given whole (%s)", error)
                return
            try:
                whole = bytearray(first)
                while len(whole) < _LENGTH.size or len(whole) < _LENGTH.size + _LENGTH.unpack_from(whole)[0]:
                    piece = await self._loop.sock_recv(peer, _PIECE)
                    if not piece:
                        raise ConnectionError("its end is missing")
                    whole += piece
                peer.send(_TAKEN)
            except OSError as error:
                logger.debug("a connection was not given whole (%s)", error)
                connection.close()
                return
            raw = bytes(whole[_LENGTH.size :])
            del whole
            try:
                await self._loop.connect_accepted_socket(lambda: self._protocol(raw), connection)
            except OSError as error:
                logger.debug("a connection was lost before it began (%s)", error)

    async def _first(self, peer: socket.socket) -> tuple[bytes, socket.socket]:
        """The first piece and the socket that comes with it.

        Raises:
            OSError: no socket came.
        """
        while True:
            try:
                piece, given, _, _ = socket.recv_fds(peer, _PIECE, 1, _CLOSED_ON_EXEC)
                break
            except BlockingIOError:
                readable = asyncio.Event()
                self._loop.add_reader(peer.fileno(), readable.set)
                try:
                    await readable.wait()
                finally:
                    self._loop.remove_reader(peer.fileno())
        if not given:
            raise ConnectionError("no connection came with it")
        found = socket.socket(fileno=given[0])
        # With the number of TCP, as of those that we accept: asyncio sets TCP_NODELAY only on what has it.
        out = socket.socket(found.family, found.type, socket.IPPROTO_TCP, fileno=found.detach())
        out.set_inheritable(False)
        out.setblocking(False)
        return piece, out
