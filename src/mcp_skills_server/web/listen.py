"""The listening socket: no more connections are accepted than there are file descriptors for.

asyncio would accept whatever comes, up to the limit of the process, and then tell of each that it cannot: nobody else
is answered meanwhile, no file opens, and the log fills the disk. Here descriptors are set aside for files first.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.counted import Counted
from mcp_skills_server.web.last_arrivals import drops_who_is_new, fill

logger = logging.getLogger(__name__)

_BACKLOG: Final = 2048
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
        arriving: on their way to a place.
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
    """The budget of this process, whose limit is raised as far as it needs and may.

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
    """A socket that listens, and does not block.

    Raises:
        UsageError: the address cannot be listened on.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the number of TCP: asyncio sets TCP_NODELAY only on what has it, and an answer would take 40 ms without.
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that no host name can have
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port} ({reason}); choose another --host or --port") from None
    return listener


def shown_address(listener: socket.socket) -> str:
    """Where it listens, as it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Accepting:
    """Accepts connections, a few at a time, so that those on their way need no more descriptors than were counted.

    Args:
        listener: listens, and does not block.
        protocol: makes the protocol of a connection.
        at_once: connections accepted before the first of them has its protocol.
        lines: says that there was no descriptor for a connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        at_once: int,
        lines: Counted,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._at_once = at_once
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[object]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._filler: socket.socket | None = None
        self._resume()

    def close(self) -> None:
        """Accept no more, and take what waits in the kernel off its queue."""
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        self._listener.close()
        if self._filler is not None:
            self._filler.close()

    def end_arrivals(self) -> None:
        """Let nobody new connect. Who is connected may have asked already, and is accepted.

        On Linux the kernel ignores who is new until `close`: their system asks again after a second and is
        refused then, and a proxy asks another replica. Elsewhere the listener is closed at once.
        """
        if drops_who_is_new(self._listener):
            return
        self._pause()
        last, self._filler = fill(self._listener)
        if self._filler is None:
            self.close()  # at once: what comes in between is lost
        for each in last:
            self._arrive(each)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: the connections are those of the server."""

    def _resume(self) -> None:
        self._retry = None
        if self._listener.fileno() != -1 and self._filler is None:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        if self._listener.fileno() != -1:
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    logger.debug("a connection was not accepted (%s)", error)
                    break
                self._lines.tell(f"a connection waits to be accepted ({error.strerror})")
                self._pause()
                if self._retry is None:
                    self._retry = self._loop.call_later(_RETRY_S, self._resume)
                return
            self._arrive(connection)
        if self._arriving:
            self._pause()

    def _arrive(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[object]) -> None:
        self._arriving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection was lost before it began (%s)", error)
        if not self._arriving and self._retry is None:
            self._resume()
