"""stdin and stdout as lines of bytes, so that the process can end when it is told to.

The SDK reads stdin in a worker thread, which nothing can interrupt: after SIGTERM the process would wait for the
client. Here both ends are served by the event loop. On the way it saves two thread switches a message, and bounds the
length of a line.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

import anyio
from anyio import to_thread

LONGEST_LINE: Final = 8 << 20
_CHUNK: Final = 1 << 16
_ALWAYS_FITS: Final = 4096
"""A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX promises at least 512)."""


class Pipes:
    """The process's stdin and stdout, claimed: print() and children no longer reach the protocol.

    Args:
        longest: bytes of a line.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.longest = longest
        self._in = os.dup(0)
        self._out = os.dup(1)
        quiet = os.open(os.devnull, os.O_RDONLY)
        os.dup2(quiet, 0)
        os.close(quiet)
        os.dup2(2, 1)
        sys.stdout.flush()

    async def lines(self) -> AsyncIterator[bytes | None]:
        """The lines that say anything, the last one with or without a line break; None for one that is too long."""
        rest = bytearray()
        dropping = False
        while chunk := await self._read():
            rest += chunk
            *whole, last = rest.split(b"\n") if b"\n" in chunk else (rest,)
            for line in whole:
                if not dropping and line.strip():
                    yield None if len(line) > self.longest else bytes(line)
                dropping = False
            rest = last
            if len(rest) > self.longest:
                if not dropping:
                    yield None
                dropping = True
                rest = bytearray()
        if rest.strip() and not dropping:
            yield bytes(rest)

    async def send(self, raw: bytes) -> None:
        """Write these bytes.

        Raises:
            BrokenPipeError: nobody reads them.
        """
        if len(raw) <= _ALWAYS_FITS:
            await _ready(anyio.wait_writable, self._out)
            os.write(self._out, raw)
        else:
            # It may not fit, and a client that does not read must not stop the event loop.
            await to_thread.run_sync(partial(_write_all, self._out, raw), abandon_on_cancel=True)

    def unread(self) -> bool:
        """Whether nobody can read stdout any more; False where the system does not tell before something is written."""
        if sys.platform == "win32":
            return False
        poller = select.poll()
        poller.register(self._out, 0)  # asked for nothing, it still tells of a reader that has gone
        return any(told & (select.POLLERR | select.POLLHUP) for _, told in poller.poll(0))

    async def _read(self) -> bytes:
        await _ready(anyio.wait_readable, self._in)
        return os.read(self._in, _CHUNK)


async def _ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    try:
        await wait(descriptor)
    except PermissionError:
        await anyio.lowlevel.checkpoint()  # a regular file: always ready, and the selector refuses it


def _write_all(descriptor: int, raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        view = view[os.write(descriptor, view) :]
