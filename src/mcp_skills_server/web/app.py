"""The HTTP shell: a Starlette app over the SDK's streamable HTTP, run by uvicorn.

One endpoint answers both protocol eras; sessions exist for legacy clients alone. Everything that a stranger can make
grow has a limit: sessions in number and age, bodies in size, connections in number.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass

import anyio
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import UsageError
from mcp_skills_server.server.app import make_server
from mcp_skills_server.server.attach import Attachment, attach
from mcp_skills_server.server.handlers import Settings
from mcp_skills_server.web.guards import Guard, Policy

logger = logging.getLogger(__name__)

_ENDING_S = 1
"""How long open responses may go on after the signal; the whole end takes less than two seconds."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the operator chose for HTTP.

    Attributes:
        host: address to listen on.
        port: port to listen on, 0 for any that is free.
        policy: who may come in.
        session_idle: seconds after which an unused legacy session is closed.
        max_sessions: legacy sessions at once.
        max_body: bytes of a request.
        max_connections: connections at once.
    """

    host: str
    port: int
    policy: Policy
    session_idle: float = 1800
    max_sessions: int = 1000
    max_body: int = 1 << 20
    max_connections: int = 1000


def make_app(
    registry: Registry, settings: Settings, http: HttpSettings, watcher: Watcher | None
) -> tuple[Starlette, Attachment]:
    """The ASGI application: `/mcp`, `/healthz` and `/readyz`."""
    server = make_server()
    attachment = attach(server, registry, settings, watch=watcher or False)
    manager = StreamableHTTPSessionManager(
        app=server,
        # Our guard has checked Host and Origin for every route by then, and answers 403 as the protocol says.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=http.session_idle,
        max_request_body_size=http.max_body,
        max_sessions=http.max_sessions,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with manager.run():
            attachment.begin()
            yield

    async def alive(_: Request) -> PlainTextResponse:
        return PlainTextResponse("alive\n")

    async def ready(_: Request) -> PlainTextResponse:
        if registry.loaded.is_set():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("the first scan is not done\n", status_code=503)

    middleware = [Middleware(Guard, policy=http.policy)]
    if http.policy.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=sorted(http.policy.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[
            Route("/mcp", StreamableHTTPASGIApp(manager)),
            Route("/healthz", alive),
            Route("/readyz", ready),
        ],
        middleware=middleware,
        lifespan=lifespan,
    )
    return app, attachment


async def serve_http(registry: Registry, settings: Settings, http: HttpSettings, watcher: Watcher | None) -> None:
    """Serve over streamable HTTP until SIGTERM or SIGINT.

    Raises:
        UsageError: the address cannot be listened on.
    """
    app, attachment = make_app(registry, settings, http, watcher)
    listener = _listen(http.host, http.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info("listening on http://%s:%d/mcp", shown, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        limit_concurrency=http.max_connections,
        timeout_graceful_shutdown=_ENDING_S,
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    # Listen streams end with their result first, as the protocol says; then the doors close.
                    attachment.notifier.close()
                    server.should_exit = True
                    return

        tasks.start_soon(end_on_signal)
        await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """uvicorn, with the signals left to us: it would raise them again at the end and spoil the exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host} port {port} ({error.strerror or error}); choose another --host or --port"
        ) from None
    return listener
