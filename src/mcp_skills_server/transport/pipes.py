"""Lines over stdin and stdout in an asyncio event loop, with backpressure and an orderly end.

The event loop itself waits for both pipes. A thread that reads stdin cannot be interrupted: after SIGTERM the process
would wait for its client.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from mcp_skills_server.transport import descriptors
from mcp_skills_server.transport.framing import MAX_LINE, LineBuffer

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MOST_UNREAD: Final = 2
"""Chunks of stdin that are read ahead."""
_MOST_UNSENT: Final = 32 << 20
"""Bytes of unsent answers beyond which no more lines are taken, until the peer has read some."""
_STUCK_S: Final = 0.4
"""How long a peer that has closed stdin may read nothing while more than that is unsent."""


class Pipes:
    """The process's stdin and stdout. Make only one; it claims both.

    Args:
        max_line: bytes of a line that is read.

    Attributes:
        max_line: the same.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self._stdin, self._stdout = descriptors.claim()
        self._write = descriptors.writer(self._stdout)
        self._buffer = LineBuffer(max_line)
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_watched = False
        self._unsent: deque[memoryview | asyncio.Future[None]] = deque()
        self._unsent_bytes = 0
        self._less: asyncio.Future[None] | None = None
        self._broken: OSError | None = None

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines until stdin ends, as `LineBuffer.lines`; the last one need not end with a line feed.

        While the peer reads nothing of what is sent, no further line is taken. If it has closed stdin as well, the
        lines end.
        """
        try:
            while chunk := await self._next_chunk():
                for line in self._buffer.lines(chunk):
                    yield line
                    if self._unsent_bytes > _MOST_UNSENT and not await self._is_read():
                        return
        finally:
            self._unwatch()
        if last := self._buffer.last_line():
            yield last

    def send_now(self, raw: bytes) -> bool:
        """Write these bytes, after those of earlier calls. Returns whether they are out; `flush` waits for the rest.

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
                descriptors.write(self._stdout, rest)
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

        Args:
            work: what reads and sends; the last two cancel it. It may raise BrokenPipeError, alone or in a group.
            before_signalled: awaited after a signal, before `work` is cancelled.
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
            if descriptors.wait_for_hang_up(self._stdout):
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
            if self._unsent_bytes == unsent and descriptors.wait_for_hang_up(self._stdin, timeout_ms=0):
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
        chunk = descriptors.read(self._stdin)
        self._chunks.put_nowait(chunk)
        if not chunk or self._chunks.qsize() >= _MOST_UNREAD:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            asyncio.get_running_loop().remove_reader(self._stdin)

    async def _read_in_thread(self, loop: asyncio.AbstractEventLoop) -> bytes:
        """Read a chunk of what the event loop cannot wait for, in a daemon thread, which is not joined at the end."""

        def read() -> None:
            chunk = descriptors.read(self._stdin)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)

        threading.Thread(target=read, name="stdin", daemon=True).start()
        return await self._chunks.get()

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
