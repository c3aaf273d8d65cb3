"""The HTTP shell: a Starlette app over the SDK's streamable HTTP and over discovery, run by uvicorn.

One endpoint of MCP answers both protocol eras; sessions exist for legacy clients alone. Everything that a stranger can
make grow has a limit: sessions in number and age, bodies in size, connections in number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import mcp_types as types
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX
from mcp_skills_server.errors import UsageError
from mcp_skills_server.publish.publication import GRACE_S, Keeping, Publication
from mcp_skills_server.rpc.methods import ExecutionSettings, Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.runtime.session import Runtime
from mcp_skills_server.server.app import make_server
from mcp_skills_server.server.attach import attach
from mcp_skills_server.server.handlers import Settings
from mcp_skills_server.web import rpc
from mcp_skills_server.web.discovery import MAX_AGE_S, PREFIXES, Discovery
from mcp_skills_server.web.guards import Guard, Policy
from mcp_skills_server.web.messages import Judged
from mcp_skills_server.web.patience import patient

logger = logging.getLogger(__name__)

_BACKLOG: Final = 2048
_ENDING_S: Final = 1
"""How long open responses may go on after the signal; the whole end takes less than two seconds."""
_ENVELOPE: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `params._meta` that makes a request one of the modern era."""


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
        request_timeout: seconds that a client may take for the head of a request, and again for its body.
        publish: answer discovery below `/.well-known`, to whom the policy lets in.
        publish_only: answer discovery and no MCP.
        publish_grace: seconds for which an artifact stays that the index no longer names.
        rpc: what the Skills Protocol may run, beside the scripts that MCP may; None answers none of it.
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

    @property
    def entrance(self) -> str:
        """The path that is told to the operator."""
        return DIRECTORY + INDEX if self.publish_only else "/mcp"


_Part = tuple[list[Route], Callable[[], AbstractAsyncContextManager[None]], Callable[[], None]]
"""Routes, what runs while the server does, and what ends its open streams."""


def make_app(
    runtime: Runtime, settings: Settings, http: HttpSettings, watcher: Watcher | None
) -> tuple[Starlette, Callable[[], None]]:
    """The ASGI application, `/mcp`, `/rpc`, `/.well-known/...` and the probes; and what ends its open streams."""
    routes, running, end = (
        _only_following(runtime, watcher) if http.publish_only else _mcp(runtime, settings, http, watcher)
    )
    if http.rpc is not None and not http.publish_only:
        routes = [*routes, rpc.route(Rpc(Methods(runtime, http.rpc), http.max_body))]
    if http.publish or http.publish_only:
        routes = [*routes, *_discovery(runtime, http)]

    async def alive(_: Request) -> PlainTextResponse:
        return PlainTextResponse("alive\n")

    async def ready(_: Request) -> PlainTextResponse:
        if runtime.registry.loaded.is_set():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("the first scan is not done\n", status_code=503)

    middleware = [Middleware(Guard, policy=http.policy)]
    if http.policy.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=sorted(http.policy.origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id", "ETag", "Content-Range"],
        )
        middleware.insert(0, cors)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with running():
            yield

    app = Starlette(
        routes=[*routes, Route("/healthz", alive), Route("/readyz", ready)], middleware=middleware, lifespan=lifespan
    )
    return app, end


def _mcp(runtime: Runtime, settings: Settings, http: HttpSettings, watcher: Watcher | None) -> _Part:
    server = make_server()
    attachment = attach(server, runtime.registry, settings, watch=watcher or False, runtime=runtime)
    manager = StreamableHTTPSessionManager(
        app=server,
        # Our guard has checked Host and Origin for every route by then, and answers 403 as the protocol says.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=http.session_idle,
        max_request_body_size=http.max_body,
        max_sessions=http.max_sessions,
    )
    manager.asgi_app.app = _Endpoint(Judged(manager.asgi_app.app))  # inside of the limit, which hands on whole bodies

    @contextlib.asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        async with manager.run():
            attachment.begin()
            yield

    def end() -> None:
        # Listen streams end with their result, as the protocol says, and GET streams with the end of their body.
        attachment.notifier.close()
        for transport in list(manager._server_instances.values()):  # pyright: ignore[reportPrivateUsage]
            transport.close_standalone_sse_stream()

    return [Route("/mcp", StreamableHTTPASGIApp(manager))], running, end


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


def _discovery(runtime: Runtime, http: HttpSettings) -> list[Route]:
    policy = http.policy
    discovery = Discovery(
        Publication(runtime.registry, keeping=Keeping(seconds=http.publish_grace)),
        shared=not policy.tokens or bool(policy.open_below),
        origins=policy.origins,
        max_age=min(MAX_AGE_S, int(http.publish_grace)),
    )
    return [Route(prefix.rstrip("/") + "{rest:path}", discovery) for prefix in PREFIXES]


class _Endpoint:
    """The SDK's endpoint, and what it leaves out: it goes by the headers alone, and trips over half a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what is whole and agrees with itself."""
        if scope["type"] != "http" or scope["method"] != "POST":
            # No events are kept. The SDK would answer this header with nothing at all; without it a stream opens.
            headers = [header for header in scope.get("headers", ()) if header[0] != b"last-event-id"]
            await self._app({**scope, "headers": headers}, receive, send)
            return
        first: Message | None = await receive()  # the whole body, since it comes through the limit
        if first["type"] != "http.request" or first.get("more_body"):
            return  # the client left in the middle of it: nobody reads an answer
        version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), b"")
        body: bytes = first.get("body", b"")
        if version.decode("latin-1") in ("", *HANDSHAKE_PROTOCOL_VERSIONS) and (found := _modern_request(body)):
            error = {"code": types.HEADER_MISMATCH, "message": _MISMATCH}
            answer = JSONResponse({"jsonrpc": "2.0", "id": found["id"], "error": error}, status_code=400)
            await answer(scope, receive, send)
            return

        async def replay() -> Message:
            nonlocal first
            message, first = first, None
            return await receive() if message is None else message

        await self._app(scope, replay, send)


_MISMATCH: Final = "mcp-protocol-version header does not match the request envelope's protocol version"


def _modern_request(body: bytes) -> dict[str, Any] | None:
    """The request of the modern era that this is, if it is one, whatever its headers say (MCP-42)."""
    if b"protocolVersion" not in body:
        return None
    try:
        request = json.loads(body)
        version = request["params"]["_meta"][_ENVELOPE]
        is_request = type(request["id"]) in (str, int) and request["method"] != "initialize"
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return request if is_request and version not in HANDSHAKE_PROTOCOL_VERSIONS else None


async def serve_http(runtime: Runtime, settings: Settings, http: HttpSettings, watcher: Watcher | None) -> None:
    """Serve over streamable HTTP until SIGTERM or SIGINT.

    Raises:
        UsageError: the address cannot be listened on.
    """
    app, end = make_app(runtime, settings, http, watcher)
    listener = _listen(http.host, http.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except anyio.get_cancelled_exc_class():
            # At the end uvicorn cuts off who does not read, and would tell of each with a traceback.
            if not server.should_exit:
                raise

    config = uvicorn.Config(
        quiet,
        http=patient(http.request_timeout),
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        limit_concurrency=http.max_connections,
        timeout_graceful_shutdown=_ENDING_S,
    )
    server = _Server(config)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                async for _ in signals:
                    end()  # streams first, then the doors
                    server.should_exit = True
                    return

            tasks.start_soon(end_on_signal)
            # Only now, so that whoever has read it can connect, and can end it.
            logger.info("listening on http://%s:%d%s", shown, port, http.entrance)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """uvicorn, with the signals left to us: it would raise them again at the end and spoil the exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the number of TCP: asyncio sets TCP_NODELAY only on what has it, and an answer would take 40 ms without.
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that no host name can have
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port} ({reason}); choose another --host or --port") from None
    return listener
