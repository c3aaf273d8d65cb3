"""The listening socket: no more connections are accepted than there are file descriptors for.

asyncio would accept up to the limit of the process: no file opens then, and no one else is answered. Here descriptors
are set aside for files first.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import REPEATS, UsageError

logger = logging.getLogger(__name__)

_BACKLOG: Final = 2048
_SEND_BUFFER: Final = 256 << 10
"""Bytes that the kernel keeps of an answer. By itself it keeps megabytes, and takes more when a third of them is read:
until then a client that reads slowly shows as one that does not read."""
_FILES: Final = 128
"""Descriptors for all but connections: files of skills, pipes of scripts, watches, downloads."""
_FEWEST_FILES: Final = 6
_SPARE: Final = 8
_ARRIVING: Final = 16
_RETRY_S: Final = 0.5
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Budget:
    """How many connections there may be.

    Attributes:
        places: at once.
        spare: beyond those, for short requests.
        arriving: accepted, and not yet one of those.
    """

    places: int
    spare: int
    arriving: int


def budget(wanted: int, limit: int, used: int) -> Budget:
    """Share out file descriptors.

    Args:
        wanted: connections that the operator allows.
        limit: descriptors that the process may have.
        used: descriptors that it has.

    Raises:
        UsageError: there is none for a connection.
    """
    free = limit - used
    files = min(_FILES, max(_FEWEST_FILES, free // 2))
    spare = min(_SPARE, max(1, free // 32))
    arriving = min(_ARRIVING, max(1, free // 32))
    places = min(wanted, free - files - spare - arriving)
    if places < 1:
        least = limit + 1 - places
        raise UsageError(f"{limit} open files leave none for connections; allow at least {least} (ulimit -n)")
    return Budget(places, spare, arriving)


def allowance(wanted: int) -> Budget:
    """Return the budget of this process, whose limit is raised as far as it needs and may.

    Raises:
        UsageError: there is no descriptor for a connection.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return Budget(wanted, _SPARE, _ARRIVING)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open_files()
    needed = used + wanted + _SPARE + _ARRIVING + _FILES
    if resource.RLIM_INFINITY != limit < needed and most != limit:
        raised = needed if most == resource.RLIM_INFINITY else min(needed, most)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
            limit = raised
        except (OSError, ValueError) as error:
            logger.debug("the limit of open files stays at %d (%s)", limit, error)
    if limit == resource.RLIM_INFINITY or limit > needed:
        limit = needed
    out = budget(wanted, limit, used)
    if out.places < wanted:
        logger.warning(
            "%d connections at once, not %d (--max-connections): this process may open %d files (ulimit -n)",
            out.places,
            wanted,
            limit,
        )
    return out


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd")) - 1  # without that of the listing itself
    except OSError:
        return 3


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens, and does not block.

    Raises:
        UsageError: the address cannot be listened on.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the number of TCP: asyncio sets TCP_NODELAY only on what has it, and an answer would take 40 ms without.
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that no host name can have
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port} ({reason}); choose another --host or --port") from None
    return listener


def shown_address(listener: socket.socket) -> str:
    """Return where it listens, as it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Acceptor:
    """Accepts connections, a few at a time, so that those on their way need no more descriptors than were counted.

    Args:
        listener: listens, and does not block.
        protocol: makes the protocol of a connection.
        at_once: connections accepted before the first of them has its protocol.
    """

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], at_once: int) -> None:
        self._listener = listener
        self._protocol = protocol
        self._at_once = at_once
        self._arriving: set[asyncio.Task[object]] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept all that are connected by now, since they may have asked already, and stop the loop of accepts."""
        self._task.cancel()
        self._accept_waiting()

    async def wait_closed(self) -> None:
        """Close the listener once no `sock_accept` of it is due, and return when each connection has its protocol."""
        await asyncio.wait([self._task])
        self._accept_waiting()
        self._listener.close()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _accept_waiting(self) -> None:
        with suppress(OSError):
            while True:
                self._arrive(self._listener.accept()[0])

    def _arrive(self, connection: socket.socket) -> asyncio.Task[object]:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arrived)
        return task

    def _arrived(self, task: asyncio.Task[object]) -> None:
        self._arriving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection was lost before it began (%s)", error)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            arriving: list[asyncio.Task[object]] = []
            is_exhausted = False
            try:
                arriving.append(self._arrive((await loop.sock_accept(self._listener))[0]))
                while len(arriving) < self._at_once:
                    arriving.append(self._arrive(self._listener.accept()[0]))
            except OSError as error:  # nothing more waits, or it left before it was accepted
                is_exhausted = error.errno in _EXHAUSTED
                if is_exhausted:
                    logger.warning("a connection waits to be accepted (%s)", error.strerror, extra=REPEATS)
            if arriving:
                await asyncio.wait(arriving)
            if not arriving or is_exhausted:
                await asyncio.sleep(_RETRY_S if is_exhausted else 0)
