"""Our server on stdin and stdout without the SDK, which takes longer to import than everything else to start."""

from __future__ import annotations

from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front.connection import Connection
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.transport.pipes import Pipes
from mcp_skills_server.transport.scope import TaskScope


async def serve_stdio(
    runtime: Runtime, settings: Settings, watcher: Watcher | None, views: Views | None = None
) -> None:
    """Serve one client over stdin and stdout until stdin closes or SIGTERM or SIGINT arrives."""
    attachment = Attachment(runtime.registry, settings, watcher, runtime, views=views)
    pipes = Pipes()
    connection = Connection(pipes, attachment)

    async def work() -> None:
        async with attachment.running():
            await connection.run()

    await pipes.serve(work, connection.last_answers, within=TaskScope())
