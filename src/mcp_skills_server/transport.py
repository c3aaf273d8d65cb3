"""Lines over stdin and stdout in an asyncio event loop, with backpressure and an orderly end.

The event loop itself waits for both pipes. A thread that reads stdin cannot be interrupted: after
SIGTERM the process would wait for its client. `LineBuffer` and the functions on descriptors need no
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

logger = logging.getLogger(__name__)

MAX_LINE: Final = 8 << 20
"""Bytes of a line by default."""
_CHUNK: Final = 1 << 16
_ALWAYS_FITS: Final = 4096
"""A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX promises at least
512)."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MOST_UNREAD: Final = 2
"""Chunks of stdin that are read ahead."""
_MOST_UNSENT: Final = 32 << 20
"""Bytes of unsent answers beyond which no more lines are taken, until the peer has read some."""
_STUCK_S: Final = 0.4
"""How long a peer that has closed stdin may read nothing while more than that is unsent."""


class LineBuffer:
    """Split chunks of bytes into lines of bounded length, wherever the chunks are cut.

    `lines` is for a server, which answers lines; `blocks` for a proxy, which passes every byte on.

    A line ends with a line feed; a carriage return is part of it. Use either `lines` or `blocks`,
    not both.

    Args:
        max_line: bytes of a line without its line feed. A longer one is never kept as a whole.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._rest = bytearray()
        self._overflowing = False

    def lines(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the lines that this chunk completes, without blank ones; None for one as soon as it
        is too long."""
        reported = self._overflowing
        for line, whole in self.blocks(chunk):
            if whole and line.strip():
                yield line[:-1]
            elif not whole and not reported:
                yield None
            reported = False  # only the first piece can go on with a line of the chunk before

    def blocks(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield every byte in order: (a whole line, True), or (a piece of a line that is too long,
        False)."""
        *ended, tail = chunk.split(b"\n")
        for line in ended:
            whole = not self._overflowing and len(self._rest) + len(line) <= self._max_line
            self._overflowing = False
            yield self.rest() + line + b"\n", whole
        if not tail:
            return
        self._rest += tail
        self._overflowing = self._overflowing or len(self._rest) > self._max_line
        if self._overflowing:
            yield self.rest(), False

    def rest(self) -> bytes:
        """Return what is left when no more chunks come: the begin of a line that was not ended, or
        nothing."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def claim() -> tuple[int, int]:
    """Claim stdin and stdout for the protocol, and return the descriptors that only it uses.

    From then on print() and child processes write to stderr and read an empty stdin. Both
    descriptors are blocking, whatever the parent made of them, and binary.
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
        BrokenPipeError: the reader is gone, or they cannot be written, which a line of the log
            says.
    """
    view = memoryview(raw)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking
            select.select([], [descriptor], [])
        except OSError as error:
            raise _end_of_answers(error) from None


def _end_of_answers(error: OSError) -> BrokenPipeError:
    """Return the error as a broken pipe, which ends the server; log one that is not the reader's
    doing."""
    if isinstance(error, BrokenPipeError):
        return error
    if isinstance(error, ConnectionError):  # stdout is a socket
        return BrokenPipeError(error.errno, error.strerror)
    logger.error("the server ends: stdout cannot be written (%s)", error.strerror)
    return BrokenPipeError(error.errno, error.strerror)


def _non_blocking(descriptor: int) -> Callable[[bytes | memoryview], int]:
    """Return a function that writes what a pipe or socket takes now, or raises BlockingIOError; a
    file takes all.

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
        # Opened anew it is a description of its own, with its own mode. Not every system has this
        # path.
        with suppress(OSError):
            return partial(
                os.write,
                os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC),
            )
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return lambda raw: os.write(descriptor, raw[:_ALWAYS_FITS]) if poller.poll(0) else 0


def wait_for_hang_up(
    descriptor: int, wake: int | None = None, timeout_ms: int | None = None
) -> bool:
    """Wait until the other end of a pipe or socket is closed, even if nothing is read or written.

    Return False when the descriptor `wake` can be read first, after the timeout (None for no end),
    or where the system does not report a hang-up.
    """
    if sys.platform == "win32":
        return False
    poller = select.poll()
    poller.register(descriptor, 0)  # no event is asked for, and a hang-up is reported all the same
    if wake is not None:
        poller.register(wake, select.POLLIN)
    found = dict(poller.poll(timeout_ms))
    return wake not in found and bool(found.get(descriptor, 0) & (select.POLLERR | select.POLLHUP))


class Pipes:
    """The process's stdin and stdout. Make only one; it claims both. Lines of at most `max_line`
    bytes are read."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self._stdin, self._stdout = claim()
        self._write_now = _non_blocking(self._stdout)
        self._buffer = LineBuffer(max_line)
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_watched = False
        self._unsent: deque[memoryview | asyncio.Future[None]] = deque()
        self._unsent_bytes = 0
        self._less: asyncio.Future[None] | None = None
        self._broken: OSError | None = None

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines until stdin ends, as `LineBuffer.lines`; the last one need not end with a
        line feed.

        While the peer reads nothing of what is sent, no further line is taken. If it has closed
        stdin as well, the lines end.
        """
        try:
            while chunk := await self._next_chunk():
                for line in self._buffer.lines(chunk):
                    yield line
                    if self._unsent_bytes > _MOST_UNSENT and not await self._is_read():
                        return
        finally:
            self._unwatch()
        last = self._buffer.rest()
        if last.strip():
            yield last

    def send_now(self, raw: bytes) -> bool:
        """Write these bytes, after those of earlier calls. Returns whether they are out; `flush`
        waits for the rest.

        Raises:
            BrokenPipeError: the reader is gone.
        """
        rest = memoryview(raw)
        if not self._unsent:
            while rest and (taken := self._write(rest)):
                rest = rest[taken:]
            if not rest:
                return True
            try:
                asyncio.get_running_loop().add_writer(self._stdout, self._send_rest)
            except (PermissionError, NotImplementedError):  # the event loop cannot wait for it
                write(self._stdout, rest)
                return True
        elif self._broken is not None:
            raise self._broken
        self._unsent.append(rest)
        self._unsent_bytes += len(rest)
        return False

    async def flush(self) -> None:
        """Wait until everything is out that was to be written by now.

        Raises:
            BrokenPipeError: the reader is gone.
        """
        if self._unsent:
            out = asyncio.get_running_loop().create_future()
            self._unsent.append(out)
            await out

    async def send(self, raw: bytes) -> None:
        """Write these bytes, after those of earlier calls, and wait until they are out.

        Raises:
            BrokenPipeError: the reader is gone.
        """
        if not self.send_now(raw):
            await self.flush()

    async def serve(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        before_signalled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run `work` until it is done, SIGTERM or SIGINT comes, or the reader of stdout is gone.

        The last two cancel it; after a signal, `before_signalled` is awaited first. It may raise
        BrokenPipeError, alone or in a group.
        """
        loop = asyncio.get_running_loop()
        working = loop.create_task(work())
        ending: asyncio.Task[None] | None = None
        is_over = False

        def cancel() -> None:
            nonlocal is_over
            is_over = True
            working.cancel()

        async def end() -> None:
            if before_signalled is not None:
                await before_signalled()
            cancel()

        def end_on_signal() -> None:
            nonlocal ending
            ending = ending or loop.create_task(end())

        def watch_reader() -> None:
            if wait_for_hang_up(self._stdout):
                with suppress(RuntimeError):  # the loop is closed: it has ended already
                    loop.call_soon_threadsafe(cancel)

        # A daemon, not a thread of the event loop's pool: it waits as long as the process lives.
        threading.Thread(target=watch_reader, name="stdout-reader", daemon=True).start()
        with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt instead
            for number in _SIGNALS:
                loop.add_signal_handler(number, end_on_signal)
        try:
            try:
                await working
            except* BrokenPipeError:
                pass
        except asyncio.CancelledError:
            if not is_over:
                raise
        finally:
            with suppress(NotImplementedError):
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
            if ending is not None:
                ending.cancel()

    async def _is_read(self) -> bool:
        """Wait until the peer has read enough for the next line; False if it never will."""
        while (unsent := self._unsent_bytes) > _MOST_UNSENT and self._broken is None:
            self._less = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._less], timeout=_STUCK_S)
            if self._unsent_bytes == unsent and wait_for_hang_up(self._stdin, timeout_ms=0):
                return False
        return True

    async def _next_chunk(self) -> bytes:
        """Return the next bytes of stdin, none at its end."""
        if self._chunks.empty() and not self._is_watched:
            loop = asyncio.get_running_loop()
            try:
                loop.add_reader(self._stdin, self._read)
            except (PermissionError, NotImplementedError):  # a regular file, or Windows
                return await self._read_in_thread(loop)
            self._is_watched = True
        return await self._chunks.get()

    def _read(self) -> None:
        """Read a chunk, as the event loop found that there is one."""
        chunk = read(self._stdin)
        self._chunks.put_nowait(chunk)
        if not chunk or self._chunks.qsize() >= _MOST_UNREAD:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            asyncio.get_running_loop().remove_reader(self._stdin)

    async def _read_in_thread(self, loop: asyncio.AbstractEventLoop) -> bytes:
        """Read a chunk of what the event loop cannot wait for, in a daemon thread, which is not
        joined at the end."""

        def read_chunk() -> None:
            chunk = read(self._stdin)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)

        threading.Thread(target=read_chunk, name="stdin", daemon=True).start()
        return await self._chunks.get()

    def _write(self, raw: memoryview) -> int:
        """Write what stdout takes without blocking; return how many bytes that was."""
        try:
            return self._write_now(raw)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _end_of_answers(error) from None

    def _send_rest(self) -> None:
        """Write what stdout takes now, as the event loop found that it takes something."""
        try:
            while self._unsent:
                first = self._unsent[0]
                if isinstance(first, memoryview):
                    taken = self._write(first)
                    self._unsent_bytes -= taken
                    if taken < len(first):
                        self._unsent[0] = first[taken:]
                        return
                elif not first.done():
                    first.set_result(None)
                self._unsent.popleft()
        except OSError as error:
            self._broken = error
            for each in self._unsent:
                if isinstance(each, asyncio.Future) and not each.done():
                    each.set_exception(error)
        finally:
            less = self._broken is not None or self._unsent_bytes <= _MOST_UNSENT
            if less and self._less is not None and not self._less.done():
                self._less.set_result(None)
        asyncio.get_running_loop().remove_writer(self._stdout)
