"""The HTTP application: the front, then the routes of each part.

Whatever an unauthenticated client can make grow is bounded: number and age of sessions, body size,
connections, and each client's share of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route, Router

from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server import eras
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import McpSession
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry.load import Occupancy
from mcp_skills_server.web import probes
from mcp_skills_server.web.forwarded import redirect_relatively
from mcp_skills_server.web.front import Front
from mcp_skills_server.web.mcp import McpEndpoint
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.probes import Drain
from mcp_skills_server.web.sessions import HttpSessions
from mcp_skills_server.web.settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def make_app(
    runtime: Runtime, http: HttpSettings, views: Views, parts: Sequence[Part], drain: Drain
) -> Front:
    """Return the ASGI application. `parts` must already have configured `http`."""
    routes = [route for part in parts for route in part.routes(http)]
    routes += probes.routes(runtime.registry, http, drain, views)
    router = Router(routes)
    redirect_relatively(router)
    return Front(router, http, runtime.events, drain)


class McpPart(Part):
    """The catalogue, loaded and kept current, and its MCP endpoint, `/mcp`, if there is one."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        http: HttpSettings,
        watcher: Watcher | None,
        views: Views,
    ) -> None:
        self._attachment = Attachment(
            runtime.registry,
            settings,
            watcher,
            runtime,
            sessions=http.make_tool_sessions,
            views=views,
        )
        self._attachment.recent = http.recent
        self._sessions = HttpSessions(
            partial(McpSession, self._attachment, era=eras.LEGACY),
            http.max_sessions,
            http.session_idle,
        )
        self._has_search = http.answers_mcp and settings.tools
        attachment = self._attachment
        http.load.usage["sessions"] = lambda: self._sessions.usage
        http.load.usage["streams"] = lambda: attachment.notifier.usage
        http.load.usage["tool_sessions"] = lambda: attachment.sessions.usage
        http.load.usage["cache_bytes"] = lambda: Occupancy(views.parts.weight(), views.parts.most)

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:
        """Return the route of the endpoint."""
        if not http.answers_mcp:
            return ()
        return [Route("/mcp", McpEndpoint(self._attachment, self._sessions, http))]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Notify clients of changes; start the first scan, and then index the skills."""
        async with self._attachment.running():
            self._attachment.begin()
            if self._has_search:
                prepare = self._attachment.sessions.runtime.prepare_search
                threading.Thread(target=prepare, name="skills-search", daemon=True).start()
            yield

    def end_streams(self) -> None:
        """End all open streams of clients.

        Listen streams end with their result, as the protocol requires; GET streams with their body.
        """
        self._attachment.notifier.close()
