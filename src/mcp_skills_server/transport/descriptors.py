"""The descriptors of stdin and stdout: taken for the protocol, read, written, and watched for the end of the peer.

Nothing here needs an event loop. Only one part of a process may take them, and only once.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
_ALWAYS_FITS: Final = 4096
"""A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX promises at least 512)."""


class Claimed(NamedTuple):
    """Descriptors that only the protocol uses."""

    stdin: int
    stdout: int


def claim() -> Claimed:
    """Take stdin and stdout for the protocol.

    From then on print() and child processes write to stderr, and who reads stdin finds it empty. Both descriptors are
    blocking, whatever the parent made of them, and binary.
    """
    claimed = Claimed(os.dup(0), os.dup(1))
    for descriptor in claimed:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.setmode(descriptor, os.O_BINARY)
        else:
            os.set_blocking(descriptor, True)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    if sys.stdout is not None:
        sys.stdout.flush()  # what was printed before goes to stderr, too
    return claimed


def read(descriptor: int) -> bytes:
    """The next bytes; none at the end, or where nothing can be read any more."""
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""


def write(descriptor: int, raw: bytes | memoryview) -> None:
    """Write all of these bytes.

    Raises:
        BrokenPipeError: nobody reads them, or they cannot be written, which a line of the log says.
    """
    view = memoryview(raw)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # whoever shares the pipe may have made it so at any time
            select.select([], [descriptor], [])
        except OSError as error:
            raise _end_of_answers(error) from None


def writer(descriptor: int) -> Callable[[bytes | memoryview], int]:
    """What writes to a pipe or socket as much as it takes now, never waits, and returns how many bytes that was.

    It raises BrokenPipeError where nothing can be written any more. A regular file takes everything.
    """
    send = _unwaiting(descriptor)

    def write_now(raw: bytes | memoryview) -> int:
        try:
            return send(raw)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _end_of_answers(error) from None

    return write_now


def _end_of_answers(error: OSError) -> BrokenPipeError:
    """Nobody reads what cannot be written; that it is not the reader's doing is said once, since the server ends."""
    if isinstance(error, BrokenPipeError):
        return error
    if isinstance(error, ConnectionError):  # stdout is a socket
        return BrokenPipeError(error.errno, error.strerror)
    logger.error("the server ends: stdout cannot be written (%s)", error.strerror)
    return BrokenPipeError(error.errno, error.strerror)


def _unwaiting(descriptor: int) -> Callable[[bytes | memoryview], int]:
    """The same with a BlockingIOError where nothing can be taken now.

    The descriptor itself stays blocking: whoever shares it, a parent or its terminal, may rely on that.
    """
    if sys.platform == "win32":
        return partial(os.write, descriptor)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return partial(os.write, descriptor)
    if stat.S_ISSOCK(kind):
        line = socket.socket(fileno=os.dup(descriptor))
        return lambda raw: line.send(raw, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind):
        # Opened anew it is a description of its own, with its own mode. Not every system has this path.
        with suppress(OSError):
            return partial(os.write, os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return lambda raw: os.write(descriptor, raw[:_ALWAYS_FITS]) if poller.poll(0) else 0


def has_hung_up(descriptor: int) -> bool:
    """Whether nobody has the other end of a pipe or socket open any more, also where there is more to be read."""
    if sys.platform == "win32":
        return False
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def wait_for_hang_up(descriptor: int, wake: int | None = None) -> bool:
    """Wait until nobody has the other end of a pipe or socket open any more, even if nothing is read or written.

    Args:
        descriptor: our end.
        wake: a descriptor that ends the wait as soon as it can be read.

    Returns:
        False if it was woken, or where the system does not report it.
    """
    if sys.platform == "win32":
        return False
    poller = select.poll()
    poller.register(descriptor, 0)  # no event is asked for, and a hang-up is reported all the same
    if wake is not None:
        poller.register(wake, select.POLLIN)
    found = dict(poller.poll())
    return wake not in found and bool(found.get(descriptor, 0) & (select.POLLERR | select.POLLHUP))
