"""HTTP application: MCP over the SDK's streamable HTTP, further endpoints, and middleware.

`/mcp` serves both protocol eras; only legacy clients have sessions. Whatever an unauthenticated
client can make grow is bounded: number and age of sessions, body size, connections, and each
client's share of them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attach import attach, make_standalone_server
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Events, request_id
from mcp_skills_server.web import probes
from mcp_skills_server.web.forwarded import RootPath, redirect_relatively
from mcp_skills_server.web.guards import Guard
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.probes import Drain
from mcp_skills_server.web.rates import RequestLimits, Turns
from mcp_skills_server.web.sessions import HttpSessions, Messages
from mcp_skills_server.web.settings import HttpSettings

_REQUEST_ID: Final = b"x-request-id"
_EXPOSED: Final = "Mcp-Session-Id, ETag, Content-Range, X-Request-Id, WWW-Authenticate, Retry-After"
"""Response headers that pages of allowed origins may read (CORS)."""


def make_app(
    runtime: Runtime, http: HttpSettings, views: Views, parts: Sequence[Part], drain: Drain
) -> Starlette:
    """Return the ASGI application. `parts` must already have configured `http`."""
    routes = [route for part in parts for route in part.routes(http)]

    middleware = [Middleware(_RequestIds, events=runtime.events)]
    if http.root_path:
        middleware.append(Middleware(RootPath, prefix=http.root_path))
    if http.proxies:
        trust: Any = ProxyHeadersMiddleware  # uvicorn has ASGI types of its own
        middleware.append(Middleware(trust, trusted_hosts=[*http.proxies]))
    middleware.append(Middleware(Turns))
    if http.policy.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=sorted(http.policy.origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[_EXPOSED],
        )
        middleware.append(cors)
    middleware.append(Middleware(Guard, policy=http.policy, rates=http.rates))
    middleware.append(Middleware(RequestLimits, rates=http.rates, shared=http.take_shared))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(part.running())
            yield

    def may_read_places(who: Principal | None) -> bool:
        # Probes carry no token or cookie, even where other requests need one.
        is_known = who is not None or (http.policy.is_open and not http.is_private)
        return is_known and views.is_admin(who)

    routes += probes.routes(runtime.registry, http, drain, may_read_places)
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan)
    redirect_relatively(app.router)
    return app


class McpEndpoint(Part):
    """The catalogue, loaded and kept current, and its MCP endpoint, `/mcp`, if there is one."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        http: HttpSettings,
        watcher: Watcher | None,
        views: Views,
    ) -> None:
        server = make_standalone_server()
        self._attachment = attach(
            server,
            runtime.registry,
            settings,
            watch=watcher or False,
            runtime=runtime,
            sessions=http.make_tool_sessions,
            views=views,
        )
        self._attachment.recent = http.recent
        self._sessions = HttpSessions(server, http, self._attachment.notifier.rebind)

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:
        """Return the route of the endpoint."""
        if not http.answers_mcp:
            return ()
        return [Route("/mcp", RequestBodyLimitMiddleware(Messages(self._sessions), http.max_body))]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the session managers, and start the first scan."""
        async with self._sessions.running():
            self._attachment.begin()
            yield

    def end_streams(self) -> None:
        """End all open streams of clients.

        Listen streams end with their result, as the protocol requires; GET streams with their body.
        """
        self._attachment.notifier.close()
        self._sessions.end_streams()


class _RequestIds:
    """ASGI middleware that gives each request an id, for its response and its log lines.

    It wraps the guard, so that refusals have an id too. An id sent by the client is ignored.
    """

    def __init__(self, app: ASGIApp, events: Events) -> None:
        self._app = app
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request under a new random id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = secrets.token_hex(8)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (_REQUEST_ID, given.encode())]
            await send(message)

        carrier = events.carrier_from_headers(scope["headers"])
        reset, around = request_id.set(given), events.http_carrier.set(carrier)
        try:
            with self._events.serving():
                await self._app(scope, receive, sending)
        finally:
            events.http_carrier.reset(around)
            request_id.reset(reset)
