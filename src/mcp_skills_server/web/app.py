"""The HTTP shell: a Starlette app over the SDK's streamable HTTP and over discovery, run by uvicorn.

One endpoint of MCP answers both protocol eras; sessions exist for legacy clients alone. Everything that a stranger can
make grow has a limit: sessions in number and age, bodies in size, connections in number, and all of them in share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import anyio
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE

from mcp_skills_server.access.quotas import QuotaSettings
from mcp_skills_server.access.rates import Rate
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX
from mcp_skills_server.publish.artifacts import GRACE_S, RetentionPolicy
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.rpc.methods import ExecutionSettings, Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions as ToolSessions
from mcp_skills_server.server.app import make_server
from mcp_skills_server.server.attach import attach
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web import metrics, probes, refresh, rpc
from mcp_skills_server.web.counted import Counted
from mcp_skills_server.web.discovery import MAX_AGE_S, PREFIXES, ByGrants, Discovery
from mcp_skills_server.web.draining import Drain
from mcp_skills_server.web.endpoint import Endpoint, Sessions
from mcp_skills_server.web.forwarded import Forwarding, Proxies
from mcp_skills_server.web.guards import Guard, Policy
from mcp_skills_server.web.legacy import Legacy
from mcp_skills_server.web.listen import Accepting, Budget, allowance, open_listener
from mcp_skills_server.web.messages import Judged
from mcp_skills_server.web.modern import Modern
from mcp_skills_server.web.patience import protocol_with_timeouts
from mcp_skills_server.web.places import PLACE, Place, Places
from mcp_skills_server.web.rates import RequestRate
from mcp_skills_server.web.redirect import redirect_relatively
from mcp_skills_server.web.request_ids import RequestIds
from mcp_skills_server.web.unread import give_large_blocks_back

if TYPE_CHECKING:
    from mcp_skills_server.sources.follower import SourceState
    from mcp_skills_server.telemetry.metrics import Metrics
    from mcp_skills_server.web.ui.app import Ui, UiSettings

logger = logging.getLogger(__name__)

_LAST_S: Final = 0.2
"""How long, at the end of a drain, the connections that came last may take to send their request."""
_ENDING_S: Final = 1
"""How long open responses may go on after the signal; the whole end takes less than two seconds."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the operator chose for HTTP.

    Attributes:
        host: address to listen on.
        port: port to listen on, 0 for any that is free.
        policy: who may come in.
        session_idle: seconds after which an unused legacy session is closed.
        max_sessions: legacy sessions at once; then the owner with most loses the one it left alone longest.
        max_body: bytes of a request.
        max_connections: connections at once, if there are file descriptors for so many.
        request_timeout: seconds that a client may take for the head of a request, and again for its body.
        publish: answer discovery below `/.well-known`, to whom the policy lets in.
        publish_only: answer discovery and no MCP.
        publish_grace: seconds for which an artifact stays that the index no longer names.
        rpc: what the Skills Protocol may run, beside the scripts that MCP may; None answers none of it.
        sites: tells the state of the roots that are sites.
        lean: answer by our own front what it takes, most of the requests; otherwise the SDK answers all.
        metrics: what `/metrics` shows; None for no such path.
        quotas: what one principal or address may take of what all share.
        refresh: the secret of webhooks, and what has all sources looked at now; None for no webhook.
        ui: what the operator chose for the page to look at; None for no page.
        root_path: what stands before all paths that clients see, such as `/skills`; "" for nothing.
        proxies: those that are believed when they say for whom they ask.
        keep_alive: seconds for which a connection stays without a request.
        drain: seconds from SIGTERM to the end, in which requests are answered and `/readyz` says that it ends.
        sessions: makes what keeps the sessions of the tools.
        shared: tells the state of what is shared with other replicas, a line for each thing.
    """

    host: str
    port: int
    policy: Policy
    session_idle: float = 1800
    max_sessions: int = 1000
    max_body: int = 1 << 20
    max_connections: int = 1000
    request_timeout: float = 30
    publish: bool = True
    publish_only: bool = False
    publish_grace: float = GRACE_S
    rpc: ExecutionSettings | None = None
    sites: Callable[[], Sequence[SourceState]] = list
    lean: bool = True
    metrics: Metrics | None = None
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    refresh: tuple[bytes, Callable[[], int]] | None = None
    ui: UiSettings | None = None
    root_path: str = ""
    proxies: Proxies = field(default_factory=Proxies)
    keep_alive: int = 5
    drain: float = 0
    sessions: Callable[[Runtime], ToolSessions] = ToolSessions
    shared: Callable[[], Sequence[str]] = tuple

    @property
    def entrance(self) -> str:
        """The path that the operator sees in the log."""
        if self.ui is not None and self.ui.only:
            return "/ui/"
        return DIRECTORY + INDEX if self.publish_only else "/mcp"

    @property
    def answers_mcp(self) -> bool:
        """Whether there is an endpoint of MCP."""
        return not self.publish_only and not (self.ui is not None and self.ui.only)


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
    """The ASGI application, `/mcp`, `/rpc`, `/.well-known/...` and the probes; and what ends its open streams."""
    views = views or Views(runtime.registry)
    routes, running, end = (
        _mcp(runtime, settings, http, watcher, views) if http.answers_mcp else _only_following(runtime, watcher)
    )
    if http.rpc is not None and http.answers_mcp:
        routes = [*routes, rpc.route(Rpc(Methods(runtime, http.rpc, views=views), http.max_body))]
    if http.metrics is not None:
        routes = [*routes, metrics.route(http.metrics, views.may_admin)]
    if http.refresh is not None:
        routes = [*routes, refresh.route(*http.refresh)]
    if http.publish or http.publish_only:
        routes = [*routes, *_discovery(views, http)]
    policy = http.policy
    if policy.oauth is not None:
        from mcp_skills_server.web import resource_metadata

        routes = [*resource_metadata.routes(policy.oauth), *routes]
        policy = replace(policy, open_at=resource_metadata.paths(policy.oauth))
    pages: list[BaseRoute] = []
    if http.ui is not None:
        from mcp_skills_server.web.ui.app import BASE, Ui  # with its templates, where somebody wants it

        policy = replace(policy, open_below=(*policy.open_below, BASE))  # it asks who looks by itself
        page = Ui(runtime, settings, http.ui, policy, sources=http.sites, views=views, streams=http.quotas.streams)
        pages = page.routes()
        running, end = _with_page(page, running, end)

    middleware = [Middleware(RequestIds)]
    if http.root_path or http.proxies:
        middleware.append(Middleware(Forwarding, root_path=http.root_path, trusted=http.proxies))
    middleware.append(Middleware(Guard, policy=policy))
    if http.quotas.requests_per_minute is not None:
        middleware.append(Middleware(RequestRate, rate=Rate(http.quotas.requests_per_minute)))
    if http.policy.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=sorted(http.policy.origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id", "ETag", "Content-Range", "X-Request-Id", "WWW-Authenticate"],
        )
        middleware.insert(0, cors)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with running():
            yield

    routes = [*routes, *probes.routes(runtime.registry, http.sites, drain or Drain(), http.shared)]
    app = Starlette(routes=[*routes, *pages], middleware=middleware, lifespan=lifespan)
    redirect_relatively(app.router)
    return app, end


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
    manager = Sessions(
        app=server,
        # Our guard has checked Host and Origin for every route by then, and answers 403 as the protocol says.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=http.session_idle,
        max_request_body_size=http.max_body,
        max_sessions=http.max_sessions,
    )
    # Inside of the limit, which hands on whole bodies.
    modern = legacy = None
    if http.lean:
        modern, legacy = Modern(attachment), Legacy(attachment, manager)
        server.middleware.append(manager.middleware)
    manager.asgi_app.app = Endpoint(Judged(manager.asgi_app.app, modern, legacy))

    @contextlib.asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with manager.run():
            attachment.begin()
            yield

    def end() -> None:
        # Listen streams end with their result, as the protocol says, and GET streams with the end of their body.
        attachment.notifier.close()
        for transport in manager.transports:
            transport.close_standalone_sse_stream()

    return [Route("/mcp", StreamableHTTPASGIApp(manager))], running, end


def _with_page(
    page: Ui, running: Callable[[], AbstractAsyncContextManager[None]], end: Callable[[], None]
) -> tuple[Callable[[], AbstractAsyncContextManager[None]], Callable[[], None]]:
    """What runs while the server does and what ends its streams, with those of the page."""

    @contextlib.asynccontextmanager
    async def running_with_page() -> AsyncGenerator[None]:
        stop = page.start()
        try:
            async with running():
                yield
        finally:
            stop()

    def end_all() -> None:
        page.close()
        end()

    return running_with_page, end_all


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
            logged=logged,
        )

    discovery = ByGrants(views, make) if views.are_restricted else make(views.registry)
    return [Route(prefix.rstrip("/") + "{rest:path}", discovery) for prefix in PREFIXES]


async def serve_http(
    runtime: Runtime,
    settings: Settings,
    http: HttpSettings,
    watcher: Watcher | None,
    views: Views | None = None,
    *,
    listening: Callable[[str], object] = str,
) -> None:
    """Serve over streamable HTTP until SIGTERM or SIGINT.

    Args:
        runtime: of all skills.
        settings: what clients of MCP are shown.
        http: what the operator chose.
        watcher: follows changes; None where none are to be followed.
        views: who may read which of them; None where everybody reads all.
        listening: called once with the origin, such as `http://127.0.0.1:8000`, when it can be reached.

    Raises:
        UsageError: the address cannot be listened on.
    """
    give_large_blocks_back()
    drain = Drain(http.drain)
    app, end = make_app(runtime, settings, http, watcher, views, drain=drain)
    listener = open_listener(http.host, http.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    allowed = allowance(http.max_connections)
    lines = Counted(logger.warning)
    places = Places(allowed.places, allowed.spare, lines)

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        place: Place | None = scope.get("state", {}).get(PLACE)
        try:
            closes = drain.begun or (place is not None and place.spare)
            await app(scope, receive, _closing(drain, place, send) if closes else send)
        except anyio.get_cancelled_exc_class():
            # At the end uvicorn cuts off who does not read, and would tell of each with a traceback.
            if not server.should_exit:
                raise

    config = uvicorn.Config(
        quiet,
        http=protocol_with_timeouts(http.request_timeout, places),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        proxy_headers=False,  # uvicorn's own reader believes whatever is on this machine
        timeout_keep_alive=http.keep_alive,
        timeout_graceful_shutdown=_ENDING_S,
    )
    server = _Server(config, allowed, lines, drain)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                await drain.until_end(signals)
                end()  # streams first, then the doors
                server.should_exit = True

            tasks.start_soon(end_on_signal)
            # Only now, so that whoever has read it can connect, and can end it.
            logger.info("listening on http://%s:%d%s", shown, port, http.entrance)
            listening(f"http://{shown}:{port}")
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


def _closing(drain: Drain, place: Place | None, send: Send) -> Send:
    """What sends an answer after which the connection ends, unless it has got a place by then and the server stays."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start" and (drain.begun or (place is not None and place.spare)):
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return last


class _Server(uvicorn.Server):
    """uvicorn, with a listener of ours, and with the signals left to us: it would raise them again at the end."""

    def __init__(self, config: uvicorn.Config, allowed: Budget, lines: Counted, drain: Drain) -> None:
        super().__init__(config)
        self._allowed = allowed
        self._lines = lines
        self._drain = drain
        self._accepting: Sequence[Accepting] = ()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)

        def protocol() -> asyncio.Protocol:
            make: Any = self.config.http_protocol_class
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        accepting: Any = [Accepting(each, protocol, self._allowed.arriving, self._lines) for each in sockets or []]
        self._accepting = self.servers = accepting
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._drain.begun:
            for each in self._accepting:
                each.close_after_the_last()
            # Who has just connected has asked already, and a proxy cannot ask another replica any more.
            await anyio.sleep(_LAST_S)
        await super().shutdown(sockets)
