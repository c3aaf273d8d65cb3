"""File descriptors of stdin and stdout: claim them for a protocol, read, write, and detect that the peer hung up.

Nothing here needs an event loop. A process claims them once.
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
from typing import Final

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
_ALWAYS_FITS: Final = 4096
"""A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX promises at least 512)."""


def claim() -> tuple[int, int]:
    """Claim stdin and stdout for the protocol, and return the descriptors that only it uses.

    From then on print() and child processes write to stderr and read an empty stdin. Both descriptors are blocking,
    whatever the parent made of them, and binary.
    """
    claimed = os.dup(0), os.dup(1)
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
    """Return the next bytes, none at the end or after an error."""
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""


def write(descriptor: int, raw: bytes | memoryview) -> None:
    """Write all of these bytes.

    Raises:
        BrokenPipeError: the reader is gone, or they cannot be written, which a line of the log says.
    """
    view = memoryview(raw)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking
            select.select([], [descriptor], [])
        except OSError as error:
            raise _end_of_answers(error) from None


def writer(descriptor: int) -> Callable[[bytes | memoryview], int]:
    """Return a function that writes what a pipe or socket takes without blocking, and returns how many bytes that was.

    It raises BrokenPipeError when nothing can be written any more. A regular file takes everything.
    """
    send = _non_blocking(descriptor)

    def write_now(raw: bytes | memoryview) -> int:
        try:
            return send(raw)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _end_of_answers(error) from None

    return write_now


def _end_of_answers(error: OSError) -> BrokenPipeError:
    """Return the error as a broken pipe, which ends the server; log one that is not the reader's doing."""
    if isinstance(error, BrokenPipeError):
        return error
    if isinstance(error, ConnectionError):  # stdout is a socket
        return BrokenPipeError(error.errno, error.strerror)
    logger.error("the server ends: stdout cannot be written (%s)", error.strerror)
    return BrokenPipeError(error.errno, error.strerror)


def _non_blocking(descriptor: int) -> Callable[[bytes | memoryview], int]:
    """Return the same function, with a BlockingIOError when nothing can be taken now.

    The descriptor itself stays blocking: a parent or a terminal that shares it may rely on that.
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


def wait_for_hang_up(descriptor: int, wake: int | None = None, timeout_ms: int | None = None) -> bool:
    """Wait until the other end of a pipe or socket is closed, even if nothing is read or written.

    Args:
        descriptor: our end.
        wake: a descriptor that ends the wait as soon as it can be read.
        timeout_ms: ends the wait after so many milliseconds; None for no end.

    Returns:
        False if it was woken, after the timeout, or where the system does not report it.
    """
    if sys.platform == "win32":
        return False
    poller = select.poll()
    poller.register(descriptor, 0)  # no event is asked for, and a hang-up is reported all the same
    if wake is not None:
        poller.register(wake, select.POLLIN)
    found = dict(poller.poll(timeout_ms))
    return wake not in found and bool(found.get(descriptor, 0) & (select.POLLERR | select.POLLHUP))
