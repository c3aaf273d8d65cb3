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

from starlette.routing import BaseRoute, Route, Router

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
    routes = [route for part in parts for route in part.routes()]
    router = Router([*routes, *probes.routes()])
    redirect_relatively(router)
    policy = settings.policy.with_paths(part.open_paths for part in parts)
    front = Front(router, replace(settings, policy=policy), publisher, probes.drain)
    return HttpApp(front, parts, probes)


class McpPart(Part):
    """The catalogue, loaded and kept current, and its MCP endpoint, `/mcp`, if there is one."""

    def __init__(self, attachment: Attachment, endpoint: McpEndpoint | None = None) -> None:
        self._attachment = attachment
        self._endpoint = endpoint

    def routes(self) -> Sequence[BaseRoute]:
        """Return the route of the endpoint."""
        if self._endpoint is None:
            return ()
        return [Route("/mcp", self._endpoint)]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Notify clients of changes; start the first scan, and then index the skills."""
        async with self._attachment.running():
            self._attachment.begin()
            if self._endpoint is not None and self._attachment.settings.tools:
                prepare = self._attachment.sessions.runtime.prepare_search
                threading.Thread(target=prepare, name="skills-search", daemon=True).start()
            yield

    def end_streams(self) -> None:
        """End all open streams of clients.

        Listen streams end with their result, as the protocol requires; GET streams with their body.
        """
        self._attachment.notifier.close()
