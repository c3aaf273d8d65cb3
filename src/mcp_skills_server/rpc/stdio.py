"""The Skills Protocol over stdin and stdout: one message a line, one answer a line.

Answers come when they are ready, so a long run holds up nobody; they are told apart by their ids. When stdin ends,
what was asked before is answered first, unless nobody is left to read the answers: then what runs is ended at once. A
line that is too long is answered as such and skipped.
"""

from __future__ import annotations

import signal
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
    pipes = Pipes(rpc.max_message)
    async with anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
                    return

        async def end_with_the_client() -> None:
            while True:
                await anyio.sleep(_LOOK_S)
                if pipes.unread():
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(end_on_signal)
        tasks.start_soon(end_with_the_client)
        await _serve(rpc, pipes)
        tasks.cancel_scope.cancel()


async def _serve(rpc: Rpc, pipes: Pipes) -> None:
    places = anyio.Semaphore(_AT_ONCE)
    writing = anyio.Lock()

    async with anyio.create_task_group() as tasks:

        async def work(line: bytes | None) -> None:
            try:
                told = rpc.too_long() if line is None else await rpc.answer(line)
                if told is not None:
                    async with writing:
                        await pipes.send(told + b"\n")
            except BrokenPipeError:
                tasks.cancel_scope.cancel()
            finally:
                places.release()

        async for line in pipes.lines():
            await places.acquire()
            tasks.start_soon(work, line)
