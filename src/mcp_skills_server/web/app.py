"""The HTTP application: the front, then the routes of each part.

Whatever an unauthenticated client can make grow is bounded: number and age of sessions, body size,
connections, and each client's share of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.routing import Route, Router

from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.telemetry.events import Events
from mcp_skills_server.web.forwarded import redirect_relatively
from mcp_skills_server.web.front import Front, FrontSettings
from mcp_skills_server.web.mcp import McpEndpoint
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.probes import Probes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass(frozen=True, slots=True)
class HttpApp:
    """The application: the front passes requests to the parts and the probes."""

    front: Front
    parts: Sequence[Part]
    probes: Probes

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run all parts in this context; enter it in the event loop that handles requests."""
        self.front.start()
        self.probes.load.start()
        async with AsyncExitStack() as stack:
            for part in self.parts:
                await stack.enter_async_context(part.running())
            yield

    def end_streams(self) -> None:
        """End all open streams of clients."""
        for part in self.parts:
            part.end_streams()


def make_app(
    parts: Sequence[Part], probes: Probes, settings: FrontSettings, publisher: Events
) -> HttpApp:
    """Return the application; `publisher` has the events of the server."""
    router = Router([*(route for part in parts for route in part.routes), *probes.routes()])
    redirect_relatively(router)
    policy = replace(
        settings.policy,
        open_at=frozenset().union(*(part.open_at for part in parts)),
        open_below=tuple(prefix for part in parts for prefix in part.open_below),
        page=next((part.page for part in parts if part.page is not None), None),
    )
    front = Front(router, replace(settings, policy=policy), publisher, probes.drain)
    return HttpApp(front, parts, probes)


def mcp_part(attachment: Attachment, endpoint: McpEndpoint | None = None) -> Part:
    """Return the catalogue, loaded and kept current, and its endpoint, `/mcp`, if there is one."""

    @asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with attachment.running():
            attachment.begin()
            if endpoint is not None and attachment.settings.tools:
                prepare = attachment.sessions.runtime.prepare_search
                threading.Thread(target=prepare, name="skills-search", daemon=True).start()
            yield

    routes = [] if endpoint is None else [Route("/mcp", endpoint)]
    # Listen streams end with their result, as the protocol requires; GET streams with their body.
    return Part(routes, running=running, end_streams=attachment.notifier.close)
