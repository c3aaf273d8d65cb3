"""The Skills Protocol over stdin and stdout: one message a line, one answer a line.

Answers come when they are ready, so a long run holds up nobody; they are told apart by their ids. When stdin ends,
what was asked before is answered first, unless nobody is left to read the answers: then what runs is ended at once. A
line that is too long is answered as such and skipped.
"""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import AsyncIterator
from typing import Final

import anyio

from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.server.stdio import Pipes

_AT_ONCE: Final = 32
"""Messages that are being answered; a line behind them waits to be read."""

_LOOK_S: Final = 0.5
"""Between two looks whether stdout still has a reader."""


async def serve(rpc: Rpc) -> None:
    """Answer lines until stdin ends, nobody reads stdout any more, or SIGTERM or SIGINT comes."""
    lines = _Lines(rpc.max_message)
    async with anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
                    return

        async def end_with_the_client() -> None:
            while True:
                await anyio.sleep(_LOOK_S)
                if lines.unread():
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(end_on_signal)
        tasks.start_soon(end_with_the_client)
        await _serve(rpc, lines)
        tasks.cancel_scope.cancel()


async def _serve(rpc: Rpc, lines: _Lines) -> None:
    places = anyio.Semaphore(_AT_ONCE)
    writing = anyio.Lock()

    async with anyio.create_task_group() as tasks:

        async def work(line: bytes | None) -> None:
            try:
                told = rpc.too_long() if line is None else await rpc.answer(line)
                if told is not None:
                    async with writing:
                        await lines.send(told + b"\n")
            except BrokenPipeError:
                tasks.cancel_scope.cancel()
            finally:
                places.release()

        async for line in lines.read():
            await places.acquire()
            tasks.start_soon(work, line)


class _Lines(Pipes):
    """stdin and stdout as lines of bytes.

    Args:
        longest: bytes of a line.
    """

    def __init__(self, longest: int) -> None:
        super().__init__(_nothing, _nothing)
        self._longest = longest

    async def read(self) -> AsyncIterator[bytes | None]:
        """The lines that say anything; None for one that is too long."""
        rest = bytearray()
        dropping = False
        while chunk := await self._read():
            rest += chunk
            *whole, last = rest.split(b"\n") if b"\n" in chunk else (rest,)
            for line in whole:
                if not dropping and line.strip():
                    yield None if len(line) > self._longest else bytes(line)
                dropping = False
            rest = last
            if len(rest) > self._longest:
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
        await self._send(raw)

    def unread(self) -> bool:
        """Whether nobody can read stdout any more; False where the system does not tell before something is written."""
        if sys.platform == "win32":
            return False
        poller = select.poll()
        poller.register(self._out, 0)  # asked for nothing, it still tells of a reader that has gone
        return any(told & (select.POLLERR | select.POLLHUP) for _, told in poller.poll(0))


def _nothing() -> None:
    return
