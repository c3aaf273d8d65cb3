"""The HTTP shell: a Starlette app over the SDK's streamable HTTP and over discovery, run by uvicorn.

One endpoint of MCP answers both protocol eras; sessions exist for legacy clients alone. Everything that a stranger can
make grow has a limit: sessions in number and age, bodies in size, connections in number, and all of them in share.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_skills_server import __version__
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects.aicatalog import ARD, CARD, CARD_MEDIA_TYPE, CATALOG, LINKS, server_card
from mcp_skills_server.publish.artifacts import RetentionPolicy
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.rpc.blobs import Blobs
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attach import attach, make_server
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import trace_context
from mcp_skills_server.telemetry.events import Events, request_id
from mcp_skills_server.web import probes, refresh, rpc
from mcp_skills_server.web.discovery import MAX_AGE_S, PREFIXES, ByGrants, Discovery, encoded, site_of
from mcp_skills_server.web.forwarded import RootPath, redirect_relatively
from mcp_skills_server.web.guards import Guard
from mcp_skills_server.web.probes import Drain
from mcp_skills_server.web.rates import FailedAuthentications, RequestLimits
from mcp_skills_server.web.sessions import Messages, Sessions
from mcp_skills_server.web.settings import HttpSettings

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer
    from mcp_skills_server.web.ui.app import Ui

_NAME: Final = "mcp-skills-server"
_METADATA_MAX_AGE_S: Final = 300
_REQUEST_ID: Final = b"x-request-id"
_EXPOSED: Final = ("Mcp-Session-Id", "ETag", "Content-Range", "X-Request-Id", "WWW-Authenticate", "Retry-After")
"""Headers of answers that a page of an allowed origin may read."""
_Part = tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]], Callable[[], None]]
"""Routes, what runs while the server does, and what ends its open streams."""


def make_app(
    runtime: Runtime,
    settings: Settings,
    http: HttpSettings,
    watcher: Watcher | None,
    views: Views | None = None,
    *,
    drain: Drain | None = None,
) -> tuple[Starlette, Callable[[], None]]:
    """Return the ASGI application of all endpoints, and a function that ends its open streams."""
    views = views or Views(runtime.registry)
    routes, running, end = (
        _mcp(runtime, settings, http, watcher, views) if http.answers_mcp else _only_following(runtime, watcher)
    )
    if http.rpc and http.answers_mcp:
        methods = Methods(runtime, http.rpc_code, Blobs(share=http.quotas.blob_bytes), views=views)
        routes = [*routes, rpc.route(Rpc(methods, http.max_body))]
    if http.metrics is not None:
        routes = [*routes, probes.metrics_route(http.metrics, views.may_admin)]
    if http.refresh is not None:
        routes = [*routes, refresh.route(*http.refresh, FailedAuthentications(http.rates))]
    if http.publish or http.publish_only:
        routes = [*routes, *_discovery(views, http)]

    policy = http.policy
    if http.publish and http.answers_mcp:
        routes = [Route(CARD, _card, methods=["GET"]), *routes]
        policy = replace(policy, open_at=policy.open_at | {CARD})
    if policy.oauth is not None:
        metadata = _resource_metadata(policy.oauth)
        routes = [*metadata, *routes]
        policy = replace(policy, open_at=policy.open_at | {route.path for route in metadata})
    page: Ui | None = None
    pages: list[BaseRoute] = []
    if http.ui is not None:
        from mcp_skills_server.web.ui.app import BASE, Ui  # with its templates, where it is wanted

        policy = replace(
            policy,
            open_below=(*policy.open_below, BASE),  # it asks who looks by itself
            open_at=policy.open_at | {"/"},  # which only leads there
            page=f"{BASE}/",
        )
        page = Ui(runtime, settings, replace(http, policy=policy), http.ui, views)
        pages = page.routes()

    middleware = [Middleware(_RequestIds, events=runtime.events)]
    if http.root_path:
        middleware.append(Middleware(RootPath, prefix=http.root_path))
    if http.proxies:
        trust: Any = ProxyHeadersMiddleware  # typed by uvicorn's own words for ASGI
        middleware.append(Middleware(trust, trusted_hosts=[*http.proxies]))
    middleware.append(Middleware(Guard, policy=policy, rates=http.rates))
    middleware.append(Middleware(RequestLimits, rates=http.rates, shared=http.take_shared))
    if http.policy.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=sorted(http.policy.origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
        middleware.insert(0, cors)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        with contextlib.ExitStack() as stack:
            if page is not None:
                stack.callback(page.start())
            async with running():
                yield

    def end_streams() -> None:
        if page is not None:
            page.close()
        end()

    def may_read_places(who: Principal | None) -> bool:
        # Probes come without a token or a cookie where others must have one.
        is_private = http.ui is not None and http.ui.once is not None
        return (who is not None or (http.policy.is_open and not is_private)) and views.may_admin(who)

    drain = drain or Drain()
    routes = [
        *routes,
        *probes.routes(runtime.registry, http.sites, drain, http.states, may_read_places, allow_empty=http.allow_empty),
    ]
    app = Starlette(routes=[*routes, *pages], middleware=middleware, lifespan=lifespan)
    redirect_relatively(app.router)
    return app, end_streams


def _resource_metadata(server: ResourceServer) -> list[Route]:
    """Return the routes of the metadata that clients need to sign in (RFC 9728), which take no token.

    It stands at the well-known path, at that with the path of the endpoint, and at that of the resource as clients
    know it.
    """
    from mcp_skills_server.access.oauth import WELL_KNOWN  # loads what proves signatures

    async def metadata(_: Request) -> JSONResponse:
        return JSONResponse(server.metadata, headers={"Cache-Control": f"public, max-age={_METADATA_MAX_AGE_S}"})

    paths = {WELL_KNOWN, f"{WELL_KNOWN}/mcp", urlsplit(server.metadata_url).path}
    return [Route(path, metadata, methods=["GET"]) for path in sorted(paths)]


def _mcp(runtime: Runtime, settings: Settings, http: HttpSettings, watcher: Watcher | None, views: Views) -> _Part:
    server = make_server()
    attachment = attach(
        server,
        runtime.registry,
        settings,
        watch=watcher or False,
        runtime=runtime,
        sessions=http.sessions,
        views=views,
    )
    attachment.recent = http.recent
    sessions = Sessions(
        server,
        idle_timeout=http.session_idle,
        max_body=http.max_body,
        most=http.max_sessions,
        share=http.quotas.sessions,
    )
    sessions.on_follow = attachment.notifier.follows

    @contextlib.asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with sessions.running():
            attachment.begin()
            yield

    def end() -> None:
        # Listen streams end with their result, as the protocol says, and GET streams with the end of their body.
        attachment.notifier.close()
        sessions.end_streams()

    return [Route("/mcp", RequestBodyLimitMiddleware(Messages(sessions), http.max_body))], running, end


def _only_following(runtime: Runtime, watcher: Watcher | None) -> _Part:
    """No endpoint, but a catalogue that is loaded and kept current."""

    @contextlib.asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        if watcher is None:
            threading.Thread(target=runtime.registry.load, name="skills-load", daemon=True).start()
            yield
            return
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()

    return [], running, lambda: None


def _discovery(views: Views, http: HttpSettings) -> list[Route]:
    policy = http.policy

    def make(skill_set: SkillSet, logged: set[str] | None = None) -> Discovery:
        return Discovery(
            Publication(skill_set, http.root_path, keeping=RetentionPolicy(seconds=http.publish_grace)),
            shared=policy.is_open or {*PREFIXES} <= {*policy.open_below},
            origins=policy.origins,
            max_age=min(MAX_AGE_S, int(http.publish_grace)),
            has_card=http.answers_mcp,
            logged=logged,
        )

    discovery = ByGrants(views, make) if views.are_restricted else make(views.registry)
    paths = [*(prefix.rstrip("/") + "{rest:path}" for prefix in PREFIXES), CATALOG, ARD]
    return [Route(path, discovery) for path in paths]


def _card(request: Request) -> Response:
    """Answer with the Server Card, which takes no token and any browser may read."""
    versions = [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS]
    raw = encoded(server_card(f"{site_of(request.scope)}/mcp", _NAME, __version__, versions))
    etag = f'"{hashlib.sha256(raw).hexdigest()}"'
    headers = {
        "ETag": etag,
        "Cache-Control": f"public, max-age={_METADATA_MAX_AGE_S}",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "ETag",
        "Link": LINKS,
    }
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(raw, headers=headers, media_type=CARD_MEDIA_TYPE)


class _RequestIds:
    """ASGI middleware, the outermost, that gives each request an id, for its answer and for every line of its log.

    Refusals have one too. What a client sends as one counts for nothing.
    """

    def __init__(self, app: ASGIApp, events: Events) -> None:
        self._app = app
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give it an id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = secrets.token_hex(8)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (_REQUEST_ID, given.encode())]
            await send(message)

        carrier = None
        if self._events.wants_traces:
            carrier = trace_context.of_headers(scope["headers"])
        reset, around = request_id.set(given), trace_context.of_http.set(carrier)
        try:
            with self._events.serving():
                await self._app(scope, receive, sending)
        finally:
            trace_context.of_http.reset(around)
            request_id.reset(reset)
