"""Our own server over the SDK, and how it runs on stdin and stdout."""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

import mcp_skills_server
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.session import Runtime
from mcp_skills_server.server.attach import attach
from mcp_skills_server.server.requests import Settings

_NAME: Final = "mcp-skills-server"
_ENDING_S: Final = 0.5
_LAST_ANSWERS_S: Final = 1.5


def make_server() -> Server[Any]:
    """Our own server, with nothing attached yet."""
    return Server(
        _NAME,
        version=mcp_skills_server.__version__,
        title="Agent Skills",
    )


async def serve_stdio(runtime: Runtime, settings: Settings, watcher: Watcher | None) -> None:
    """Serve one client over stdin and stdout until stdin closes or SIGTERM or SIGINT arrives."""
    server = make_server()
    attachment = attach(server, runtime.registry, settings, watch=watcher or False, runtime=runtime)
    options = server.create_initialization_options()
    if sys.platform == "win32":
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, options)
        return

    from mcp_skills_server.server.exchange import Exchange
    from mcp_skills_server.server.stdio import Pipes

    exchange = Exchange(Pipes())
    inward, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outward = anyio.create_memory_object_stream[SessionMessage](0)

    async with anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    attachment.notifier.close()
                    await exchange.settle(_ENDING_S)
                    tasks.cancel_scope.cancel()
                    return

        async def read() -> None:
            with suppress(anyio.BrokenResourceError):  # the server has ended
                async with inward:
                    await ending_without_reader(exchange.read(inward))
                    attachment.notifier.close()
                    await exchange.settle(_LAST_ANSWERS_S)

        async def write() -> None:
            async with outward:
                await ending_without_reader(exchange.write(outward))

        async def ending_without_reader(work: Coroutine[Any, Any, None]) -> None:
            try:
                await work
            except BrokenPipeError:
                tasks.cancel_scope.cancel()

        tasks.start_soon(end_on_signal)
        async with anyio.create_task_group() as pumps:  # left when the last answer is written
            pumps.start_soon(read)
            pumps.start_soon(write)
            await server.run(read_stream, write_stream, options)
        tasks.cancel_scope.cancel()
