"""Line transport over stdin and stdout for asyncio, with backpressure and graceful shutdown.

The event loop itself polls both pipes: a thread blocked on stdin cannot be interrupted, and would
delay the exit after SIGTERM. `LineBuffer` and the functions on descriptors need no event loop.
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
"""The default maximum length of a line, in bytes."""
_CHUNK: Final = 1 << 16
_ALWAYS_FITS: Final = 4096
"""Bytes that a writable pipe accepts without blocking (Linux PIPE_BUF; POSIX: at least 512)."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MAX_UNREAD: Final = 2
"""The most chunks of stdin to read ahead."""
_MAX_UNSENT: Final = 32 << 20
"""The unsent bytes above which reading pauses (backpressure)."""
_STUCK_S: Final = 0.4
"""Seconds after which a peer that closed stdin counts as stuck if it reads nothing."""


class LineBuffer:
    """A splitter of byte chunks into lines of bounded length.

    Use either `lines`, for a server, or `blocks`, for a proxy that relays every byte. A line ends
    with a line feed; a carriage return is part of the line. Longer lines than `max_line` bytes,
    without the line feed, are not buffered.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._rest = bytearray()
        self._overflowing = False

    def lines(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield non-blank lines completed by this chunk, and None once for each too long line."""
        reported = self._overflowing
        for line, is_whole in self.blocks(chunk):
            if is_whole and line.strip():
                yield line[:-1]
            elif not is_whole and not reported:
                yield None
            reported = False  # only the first piece can continue an earlier chunk's line

    def blocks(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield all bytes in order: (line, True), or (piece of a too long line, False)."""
        *ended, tail = chunk.split(b"\n")
        for line in ended:
            is_whole = not self._overflowing and len(self._rest) + len(line) <= self._max_line
            self._overflowing = False
            yield self.rest() + line + b"\n", is_whole
        if not tail:
            return
        self._rest += tail
        self._overflowing = self._overflowing or len(self._rest) > self._max_line
        if self._overflowing:
            yield self.rest(), False

    def rest(self) -> bytes:
        """Return and clear the buffered start of an unfinished line, at the end of input."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def claim_stdio() -> tuple[int, int]:
    """Claim stdin and stdout for the protocol, and return private descriptors of them.

    From then on print() and child processes write to stderr and read an empty stdin. Both
    descriptors are binary and blocking, even if the parent made them non-blocking.
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
        sys.stdout.flush()  # flushes earlier output to stderr
    return claimed


def read(descriptor: int) -> bytes:
    """Return the next bytes, or none at the end or after an error."""
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""


def write(descriptor: int, raw: bytes | memoryview) -> None:
    """Write all bytes.

    Raises:
        BrokenPipeError: the reader is gone, or the write failed, which is logged.
    """
    view = memoryview(raw)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking
            select.select([], [descriptor], [])
        except OSError as error:
            raise _as_broken_pipe(error) from None


def _as_broken_pipe(error: OSError) -> BrokenPipeError:
    """Convert a write error to BrokenPipeError; log it unless the reader caused it."""
    if not isinstance(error, ConnectionError):  # as of a pipe or a socket without a reader
        logger.error("the server ends: stdout cannot be written (%s)", error.strerror)
    return BrokenPipeError(error.errno, error.strerror)


def _non_blocking(descriptor: int) -> Callable[[bytes | memoryview], int]:
    """Return a non-blocking write function for a pipe or socket; files are written normally.

    It returns the bytes written, and may raise BlockingIOError. The descriptor stays blocking,
    because a parent or terminal may share it.
    """
    if sys.platform == "win32":
        return partial(os.write, descriptor)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return partial(os.write, descriptor)
    if stat.S_ISSOCK(kind):
        peer = socket.socket(fileno=os.dup(descriptor))
        return lambda raw: peer.send(raw, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind):
        # Reopening gives an open file description with its own mode, on systems with this path.
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return partial(os.write, os.open(f"/proc/self/fd/{descriptor}", flags))
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return lambda raw: os.write(descriptor, raw[:_ALWAYS_FITS]) if poller.poll(0) else 0


def wait_for_hang_up(
    descriptor: int, wake: int | None = None, timeout_ms: int | None = None
) -> bool:
    """Wait for a hang-up of a pipe or socket's other end, without reading or writing.

    Return False if the descriptor `wake` is readable first, after the timeout (None for none), or
    if the system cannot report a hang-up.
    """
    if sys.platform == "win32":
        return False
    poller = select.poll()
    poller.register(descriptor, 0)  # poll reports hang-ups even for no events
    if wake is not None:
        poller.register(wake, select.POLLIN)
    events = dict(poller.poll(timeout_ms))
    return wake not in events and bool(
        events.get(descriptor, 0) & (select.POLLERR | select.POLLHUP)
    )


class Pipes:
    """The claimed stdin and stdout; make only one. Lines have at most `max_line` bytes."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self._stdin, self._stdout = claim_stdio()
        self._write_now = _non_blocking(self._stdout)
        self._buffer = LineBuffer(max_line)
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_watched = False
        # bytes to send, and the futures of those who wait until all before them are sent
        self._unsent: deque[memoryview | asyncio.Future[None]] = deque()
        self._unsent_bytes = 0
        self._room: asyncio.Future[None] | None = None  # done once reading may go on
        self._broken: OSError | None = None

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines until stdin ends, as `LineBuffer.lines`; the last line feed is optional.

        Reading pauses while too much output is unsent. If the peer reads none of it and has closed
        stdin, the lines end.
        """
        try:
            while chunk := await self._next_chunk():
                for line in self._buffer.lines(chunk):
                    yield line
                    if self._unsent_bytes > _MAX_UNSENT and not await self._wait_until_read():
                        return
        finally:
            self._unwatch()
        last = self._buffer.rest()
        if last.strip():
            yield last

    def send_now(self, raw: bytes) -> bool:
        """Write bytes in call order without waiting; return True if all are out, else use `flush`.

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
            except (PermissionError, NotImplementedError):  # unsupported by the event loop
                write(self._stdout, rest)
                return True
        elif self._broken is not None:
            raise self._broken
        self._unsent.append(rest)
        self._unsent_bytes += len(rest)
        return False

    async def flush(self) -> None:
        """Wait until all bytes of earlier calls are written.

        Raises:
            BrokenPipeError: the reader is gone.
        """
        if self._unsent:
            sent = asyncio.get_running_loop().create_future()
            self._unsent.append(sent)
            await sent

    async def send(self, raw: bytes) -> None:
        """Write bytes in call order, and wait until they are written.

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
        """Run `work` until it ends, on SIGTERM or SIGINT, or until stdout's reader is gone.

        A signal or a lost reader cancels `work`; after a signal, `before_signalled` is awaited
        first. `work` may raise BrokenPipeError, alone or in a group.
        """
        loop = asyncio.get_running_loop()
        working, is_over = loop.create_task(work()), asyncio.Event()
        ending: asyncio.Task[None] | None = None

        def cancel() -> None:
            is_over.set()
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
                with suppress(RuntimeError):  # closed loop: the work has ended
                    loop.call_soon_threadsafe(cancel)

        # A daemon thread, because it waits until the process ends; pool threads delay the exit.
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
            if not is_over.is_set():
                raise
        finally:
            with suppress(NotImplementedError):
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
            if ending is not None:
                ending.cancel()

    async def _wait_until_read(self) -> bool:
        """Wait until unsent output is below the limit; return False if the peer is stuck."""
        while (unsent := self._unsent_bytes) > _MAX_UNSENT and self._broken is None:
            self._room = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._room], timeout=_STUCK_S)
            if self._unsent_bytes == unsent and wait_for_hang_up(self._stdin, timeout_ms=0):
                return False
        return True

    async def _next_chunk(self) -> bytes:
        """Return the next bytes of stdin, or none at its end."""
        if self._chunks.empty() and not self._is_watched:
            loop = asyncio.get_running_loop()
            try:
                loop.add_reader(self._stdin, self._read)
            except (PermissionError, NotImplementedError):  # a regular file, or Windows
                return await self._read_in_thread(loop)
            self._is_watched = True
        return await self._chunks.get()

    def _read(self) -> None:
        """Read a chunk, as the event loop's callback for readable stdin."""
        chunk = read(self._stdin)
        self._chunks.put_nowait(chunk)
        if not chunk or self._chunks.qsize() >= _MAX_UNREAD:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            asyncio.get_running_loop().remove_reader(self._stdin)

    async def _read_in_thread(self, loop: asyncio.AbstractEventLoop) -> bytes:
        """Read a chunk in a daemon thread, for descriptors that the event loop cannot poll."""

        def read_chunk() -> None:
            chunk = read(self._stdin)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)

        threading.Thread(target=read_chunk, name="stdin", daemon=True).start()
        return await self._chunks.get()

    def _write(self, raw: memoryview) -> int:
        """Write without blocking; return the number of bytes written."""
        try:
            return self._write_now(raw)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _as_broken_pipe(error) from None

    def _send_rest(self) -> None:
        """Write queued bytes, as the event loop's callback for writable stdout."""
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
            for waiting in self._unsent:
                if isinstance(waiting, asyncio.Future) and not waiting.done():
                    waiting.set_exception(error)
        finally:
            has_room = self._broken is not None or self._unsent_bytes <= _MAX_UNSENT
            if has_room and self._room is not None and not self._room.done():
                self._room.set_result(None)
        asyncio.get_running_loop().remove_writer(self._stdout)
