"""A protocol of lines on stdin and stdout, in an event loop: reading, writing, and when it ends.

A thread that reads stdin cannot be interrupted: after SIGTERM the process would wait for its client. Here both ends are
served by the event loop, which also saves two thread switches a message.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.transport import descriptors
from mcp_skills_server.transport.framing import MAX_LINE, LineBuffer

_ALWAYS_FITS: Final = 4096
"""A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX promises at least 512)."""


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
        self._writing = anyio.Lock(fast_acquire=True)
        self._takes_more = descriptors.writable(self._stdout)

    async def lines(self) -> AsyncIterator[bytes | None]:
        """The lines until stdin ends, as `LineBuffer.lines`; the last one need not end with a line feed."""
        buffer = LineBuffer(self.max_line)
        while chunk := await self._read():
            for line in buffer.lines(chunk):
                yield line
        if last := buffer.last_line():
            yield last

    async def send(self, raw: bytes) -> None:
        """Write these bytes, after those of earlier calls.

        Raises:
            BrokenPipeError: nobody reads them.
        """
        async with self._writing:
            rest = memoryview(raw)
            # While it takes more, nothing waits: neither an event loop's turn nor a thread costs this message anything.
            while rest and self._takes_more():
                rest = rest[os.write(self._stdout, rest[:_ALWAYS_FITS]) :]
            if len(rest) == len(raw) <= _ALWAYS_FITS:
                await _ready(anyio.wait_writable, self._stdout)
                with suppress(BlockingIOError):
                    rest = rest[os.write(self._stdout, rest) :]
            if rest:
                # It does not fit, and a client that does not read must not stop the event loop. A message that was
                # begun is ended, whatever is cancelled meanwhile.
                await to_thread.run_sync(descriptors.write, self._stdout, rest, abandon_on_cancel=True)

    async def serve(
        self, work: Callable[[], Awaitable[None]], before_signalled: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Run `work` until it is done, SIGTERM or SIGINT comes, or nobody reads stdout any more.

        Args:
            work: what reads and sends. It may raise BrokenPipeError, alone or in a group.
            before_signalled: awaited after a signal, before `work` is cancelled.
        """
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        if before_signalled is not None:
                            await before_signalled()
                        tasks.cancel_scope.cancel()
                        return

            loop = asyncio.get_running_loop()

            def watch_reader() -> None:
                if descriptors.wait_for_hang_up(self._stdout):
                    with suppress(RuntimeError):  # the loop is closed: it has ended already
                        loop.call_soon_threadsafe(tasks.cancel_scope.cancel)

            # Not one of the event loop's threads: it waits as long as the process lives, and nobody may wait for it.
            threading.Thread(target=watch_reader, name="stdout-reader", daemon=True).start()
            tasks.start_soon(end_on_signal)
            try:
                await work()
            except* BrokenPipeError:
                pass
            tasks.cancel_scope.cancel()

    async def _read(self) -> bytes:
        await _ready(anyio.wait_readable, self._stdin)
        return descriptors.read(self._stdin)


async def _ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    try:
        await wait(descriptor)
    except PermissionError:
        await anyio.lowlevel.checkpoint()  # a regular file: always ready, and the selector refuses it
