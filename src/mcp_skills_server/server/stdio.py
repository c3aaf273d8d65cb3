"""stdin and stdout as the SDK's transport, so that the process can end when it is told to.

The SDK reads stdin in a worker thread, which nothing can interrupt: after SIGTERM the process would wait for the
client. Here both ends are served by the event loop. On the way it saves two thread switches a message, bounds the
length of a line, and lets requests that are under way finish when the client closes stdin behind them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

import anyio
from anyio import to_thread

logger = logging.getLogger(__name__)

LONGEST_LINE: Final = 8 << 20
_CHUNK: Final = 1 << 16
_ALWAYS_FITS: Final = 4096
"""A pipe that is ready takes this much without blocking (PIPE_BUF on Linux; POSIX promises at least 512)."""
_LAST_ANSWERS_S: Final = 1.5
_REQUEST: Final = re.compile(rb'"id"\s*:\s*("[^"]*"|-?[0-9]+)')
_CANCELLED: Final = re.compile(rb'"requestId"\s*:\s*("[^"]*"|-?[0-9]+)')
_ANSWER: Final = re.compile(rb'\{"jsonrpc":"2.0","id":("[^"]*"|-?[0-9]+),"(?:result|error)"')


class Pipes:
    """The process's stdin and stdout, claimed: print() and children no longer reach the protocol.

    Args:
        at_end: called when stdin has ended, before the last answers are waited for.
        at_loss: called when nobody reads stdout any more.
    """

    def __init__(self, at_end: Callable[[], None], at_loss: Callable[[], None]) -> None:
        self._in = os.dup(0)
        self._out = os.dup(1)
        quiet = os.open(os.devnull, os.O_RDONLY)
        os.dup2(quiet, 0)
        os.close(quiet)
        os.dup2(2, 1)
        sys.stdout.flush()
        self._at_end = at_end
        self._at_loss = at_loss
        self._owed: set[bytes] = set()
        self._paid = anyio.Event()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._lines()

    async def _lines(self) -> AsyncIterator[str]:
        rest = bytearray()
        dropping = False
        while chunk := await self._read():
            rest += chunk
            *whole, last = rest.split(b"\n") if b"\n" in chunk else (rest,)
            for line in whole:
                if dropping or len(line) > LONGEST_LINE:
                    logger.warning("a message of more than %d bytes was ignored", LONGEST_LINE)
                    dropping = False
                    continue
                self._count(line)
                yield line.decode("utf-8", "replace")
            rest = last
            if len(rest) > LONGEST_LINE:
                dropping = True
                rest = bytearray()
        if rest and not dropping:
            self._count(rest)
            yield rest.decode("utf-8", "replace")
        self._at_end()
        await self.settle(_LAST_ANSWERS_S)

    async def settle(self, seconds: float) -> None:
        """Wait until every request has its answer, for so long at the most."""
        with anyio.move_on_after(seconds):
            while self._owed:
                self._paid = anyio.Event()
                await self._paid.wait()

    async def write(self, text: str) -> None:
        """Write one message."""
        raw = text.encode("utf-8")
        try:
            await self._send(raw)
        except BrokenPipeError:
            self._at_loss()
            raise anyio.ClosedResourceError from None
        if answer := _ANSWER.match(raw):
            self._pay(answer[1])

    async def _send(self, raw: bytes) -> None:
        if len(raw) <= _ALWAYS_FITS:
            await _ready(anyio.wait_writable, self._out)
            os.write(self._out, raw)
        else:
            # It may not fit, and a client that does not read must not stop the event loop.
            await to_thread.run_sync(partial(_write_all, self._out, raw), abandon_on_cancel=True)

    async def flush(self) -> None:
        """Nothing is held back."""

    async def _read(self) -> bytes:
        await _ready(anyio.wait_readable, self._in)
        return os.read(self._in, _CHUNK)

    def _count(self, line: bytearray) -> None:
        # An estimate, so that nothing is parsed twice; where it is wrong, the end comes a little later or earlier.
        if b'"method"' not in line:
            return
        if b'"notifications/cancelled"' in line:
            if cancelled := _CANCELLED.search(line):
                self._pay(cancelled[1])
        elif request := _REQUEST.search(line):
            self._owed.add(bytes(request[1]))

    def _pay(self, identifier: bytes | bytearray) -> None:
        self._owed.discard(bytes(identifier))
        self._paid.set()


async def _ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    try:
        await wait(descriptor)
    except PermissionError:
        await anyio.lowlevel.checkpoint()  # a regular file: always ready, and the selector refuses it


def _write_all(descriptor: int, raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        view = view[os.write(descriptor, view) :]
