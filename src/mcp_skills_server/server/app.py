"""Our own server over the SDK, and how it runs on stdin and stdout."""

from __future__ import annotations

import signal
import sys
from typing import Any, Final, cast

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

import mcp_skills_server
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.session import Runtime
from mcp_skills_server.server.attach import attach
from mcp_skills_server.server.handlers import Settings

_NAME: Final = "mcp-skills-server"
_ENDING_S: Final = 0.5


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
    if sys.platform == "win32":
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())
        return

    from mcp_skills_server.server.stdio import Pipes

    async with anyio.create_task_group() as tasks:
        pipes = Pipes(at_end=attachment.notifier.close, at_loss=tasks.cancel_scope.cancel)

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    attachment.notifier.close()
                    await pipes.settle(_ENDING_S)
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(end_on_signal)
        stream = cast("anyio.AsyncFile[str]", pipes)
        async with stdio_server(stdin=stream, stdout=stream) as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())
        tasks.cancel_scope.cancel()
