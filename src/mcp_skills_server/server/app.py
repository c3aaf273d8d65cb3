"""Our own server over the SDK, and how it runs on stdin and stdout."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Final

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

import mcp_skills_server
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.runtime import Runtime
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


async def serve_stdio(
    runtime: Runtime, settings: Settings, watcher: Watcher | None, views: Views | None = None
) -> None:
    """Serve one client over stdin and stdout until stdin closes or SIGTERM or SIGINT arrives."""
    server = make_server()
    attachment = attach(server, runtime.registry, settings, watch=watcher or False, runtime=runtime, views=views)
    options = server.create_initialization_options()
    if sys.platform == "win32":
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, options)
        return

    from mcp_skills_server.server.exchange import Exchange
    from mcp_skills_server.transport.pipes import Pipes

    pipes = Pipes()
    exchange = Exchange(pipes)
    inward, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outward = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        with suppress(anyio.BrokenResourceError):  # the server has ended
            async with inward:
                await exchange.read(inward)
                await last_answers(_LAST_ANSWERS_S)

    async def last_answers(seconds: float = _ENDING_S) -> None:
        attachment.notifier.close()
        await exchange.settle(seconds)

    async def work() -> None:
        # Closed behind the group: a server whose answers are read no more is to be cancelled, not to fail.
        async with outward, anyio.create_task_group() as pumps:  # left when the last answer is written
            pumps.start_soon(read)
            pumps.start_soon(exchange.write, outward)
            await server.run(read_stream, write_stream, options)

    await pipes.serve(work, last_answers)
