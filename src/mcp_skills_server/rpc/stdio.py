"""The Skills Protocol over stdin and stdout: one message a line, one answer a line.

Answers come when they are ready, so a long run holds up nobody; their ids say which is which. When stdin ends,
what was asked before is answered first, unless nobody is left to read the answers: then what runs is ended at once. A
line that is too long is answered as such and skipped.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio

from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.transport.pipes import Pipes

_AT_ONCE: Final = 32
"""Messages that are being answered; a line behind them waits to be read."""


async def serve(rpc: Rpc) -> None:
    """Answer lines until stdin ends, nobody reads stdout any more, or SIGTERM or SIGINT comes."""
    pipes = Pipes(rpc.max_message)
    await pipes.serve(partial(_answer_lines, rpc, pipes))


async def _answer_lines(rpc: Rpc, pipes: Pipes) -> None:
    places = anyio.Semaphore(_AT_ONCE)
    async with anyio.create_task_group() as tasks:

        async def work(line: bytes | None) -> None:
            try:
                answer = rpc.too_long() if line is None else await rpc.answer(line)
                if answer is not None:
                    await pipes.send(answer + b"\n")
            finally:
                places.release()

        async for line in pipes.lines():
            await places.acquire()
            tasks.start_soon(work, line)
