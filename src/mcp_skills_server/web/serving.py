"""Run the application in uvicorn: listening socket, file descriptors, graceful shutdown.

File descriptors are reserved for files before connections get theirs. asyncio would accept
connections up to the limit of the process: no file could be opened then, and no other client
served.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import uvicorn
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.quota import Streams
from mcp_skills_server.catalog import threads
from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.web import probes
from mcp_skills_server.web.app import HttpApp
from mcp_skills_server.web.connections import ConnectionLimits, LimitedProtocol, Slots, Unread
from mcp_skills_server.web.front import OPEN_PATHS
from mcp_skills_server.web.refusals import RefusalError

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_DRAIN_TAIL_S: Final = 0.2
"""Seconds at the end of a drain for new connections to send their request."""
_SHUTDOWN_GRACE_S: Final = 1
"""Seconds that open responses have after the signal; the whole shutdown takes less than two."""
_BACKLOG: Final = 2048
_SEND_BUFFER: Final = 256 << 10
"""Bytes of a response that the kernel buffers (SO_SNDBUF).

Its default is megabytes, refilled when a third is read: until then a slow reader looks like one
that does not read.
"""
_DEAD_PEER_MS: Final = 60_000
"""Milliseconds without an acknowledgement after which a connection ends.

A client that changed its network is noticed by the comments in its stream. By default it would keep
its stream, and its share of all streams, for a quarter of an hour.
"""
_FILES: Final = 136
"""File descriptors for all but connections with a slot: skill files, script pipes, watches,
downloads, and the connections that asyncio accepts per tick."""
_MIN_FILES: Final = 7
_MAX_SPARE: Final = 8
_MAX_PROBES: Final = 16
"""Connections at `--probe-address`."""
_PROBE_TIMEOUT_S: Final = 2.0
"""Seconds that `--probe-address` waits for a request."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ProbeAddress(NamedTuple):
    """The address of the listener for probes, the hosts it admits, and its metrics, if any."""

    host: str
    port: int
    admits: Callable[[str], bool]
    metrics: Metrics | None


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The listening sockets, and the limits of their connections."""

    host: str
    port: int  # 0 for any that is free
    start_path: str  # in the log line at startup
    max_connections: int = 1000  # at once, if there are enough file descriptors
    request_timeout: float = 30  # seconds for the head of a request, and again for its body
    keep_alive: int = 5  # seconds that an idle connection stays open
    probes: ProbeAddress | None = None


# File descriptors


def divide_descriptors(wanted: int, limit: int, used: int) -> Slots:
    """Divide the `limit` of file descriptors, of which `used` are open, into slots and files.

    Raises:
        UsageError: none is left for a connection.
    """
    free = limit - used
    files = min(_FILES, max(_MIN_FILES, free // 2))
    spare = min(_MAX_SPARE, max(1, free // 32))
    slots = min(wanted, free - files - spare)
    if slots < 1:
        least = limit + 1 - slots
        raise UsageError(
            f"{limit} open files leave none for connections; allow at least {least} (ulimit -n)"
        )
    return Slots(slots, spare)


def connection_slots(wanted: int) -> Slots:
    """Return the slots of this process, raising its limit of open files if needed.

    Raises:
        UsageError: no file descriptor is left for a connection.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return Slots(wanted, _MAX_SPARE)
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open_files()
    needed = used + wanted + _MAX_SPARE + _FILES
    if resource.RLIM_INFINITY != limit < needed and most != limit:
        raised = needed if most == resource.RLIM_INFINITY else min(needed, most)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
            limit = raised
        except (OSError, ValueError) as error:
            logger.debug("the limit of open files stays at %d (%s)", limit, error)
    if limit == resource.RLIM_INFINITY or limit > needed:
        limit = needed
    out = divide_descriptors(wanted, limit, used)
    if out.limit < wanted:
        logger.warning(
            "%d connections at once, not %d (--max-connections): this process may open %d files "
            "(ulimit -n)",
            out.limit,
            wanted,
            limit,
        )
    return out


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd")) - 1  # minus the descriptor of this listing
    except OSError:
        return 3


# The server


def _open_listener(
    host: str, port: int, remedy: str = "choose another --host or --port"
) -> socket.socket:
    """Return a bound socket.

    Raises:
        UsageError: the address cannot be listened on.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, number, _, address = infos[0]
        # Pass TCP's protocol number: asyncio sets TCP_NODELAY only on such sockets, and without it
        # a response takes 40 ms.
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that no host name can have
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port} ({reason}); {remedy}") from None
    return listener


def _shown_address(listener: socket.socket) -> str:
    """Return the address of a socket as host:port for a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve_http(
    app: HttpApp,
    settings: ListenSettings,
    streams: Streams,
    *,
    listening: Callable[[str], object] | None = None,
) -> None:
    """Serve an application until SIGTERM or SIGINT.

    Args:
        streams: the open streams, whose number is limited by that of connections.
        listening: called once with the address when the server accepts connections.

    Raises:
        UsageError: the address cannot be listened on.
    """
    threads.pool()  # now: later no file descriptor may be left for its import
    drain, load = app.probes.drain, app.probes.load
    listener = _open_listener(settings.host, settings.port)
    if settings.probes is not None:
        _serve_probes(settings.probes, app.probes.routes())
    slots = connection_slots(settings.max_connections)
    streams.fit(slots.limit)
    load.usage["connections"] = lambda: slots.usage
    limits = ConnectionLimits(slots, Unread(), settings.request_timeout)
    server = _UvicornServer(
        app,
        limits,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
        # asyncio accepts so many per tick, even over the limit; the kernel queues `_BACKLOG`.
        backlog=max(1, min(64, slots.limit // 16)),
    )
    asyncio.get_running_loop().set_exception_handler(_report)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with app.running(), anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                await drain.until_end(signals)
                app.end_streams()  # before the listener closes
                server.should_exit = True

            tasks.start_soon(end_on_signal)
            # Log only now: a supervisor that reads the line may connect or stop the server.
            address = _shown_address(listener)
            logger.info("listening on http://%s%s", address, settings.start_path)
            if listening is not None:
                listening(address)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


def _config(app: Any, limits: ConnectionLimits, **options: Any) -> uvicorn.Config:
    protocol: Any = partial(LimitedProtocol, limits=limits)  # uvicorn's type asks for a class
    return uvicorn.Config(
        app,
        interface="asgi3",  # uvicorn takes a method for the older interface
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # uvicorn's own middleware trusts every local client
        **options,
    )


def _serve_probes(address: ProbeAddress, routes: list[Route]) -> None:
    """Serve probes and metrics in an event loop of their own, until the process ends.

    Raises:
        UsageError: the address cannot be listened on.
    """
    listener = _open_listener(address.host, address.port, "choose another --probe-address")
    if address.metrics is not None:
        routes = [*routes, probes.metrics_route(address.metrics, lambda _: True)]
    router = Router(routes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        is_open = scope["path"] in OPEN_PATHS and not scope["query_string"]
        if is_open or address.admits(host):
            await router(scope, receive, send)
            return
        logger.warning(
            "refused Host %.100r at --probe-address; --allowed-host admits it", host, extra=REPEATS
        )
        await RefusalError(403, "This Host is not served here", "host").response()(
            scope, receive, send
        )

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        limits = ConnectionLimits(
            Slots(_MAX_PROBES, 1, "--probe-address"), Unread(), _PROBE_TIMEOUT_S
        )
        await uvicorn.Server(_config(app, limits, backlog=_MAX_PROBES)).serve(sockets=[listener])

    threading.Thread(target=asyncio.run, args=(serve(),), name="skills-probes", daemon=True).start()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; a connection that cannot be accepted takes one line."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        logger.warning("a connection waits to be accepted (%s)", error.strerror, extra=REPEATS)
    else:
        loop.default_exception_handler(context)


class _UvicornServer(uvicorn.Server):
    """uvicorn server without its signal handlers, which raise signals again at the end."""

    def __init__(self, app: HttpApp, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(_config(self._answer, limits, **options))
        self._app = app

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app.front(scope, receive, send)
        except anyio.get_cancelled_exc_class():
            # On shutdown uvicorn cancels open requests, and would log a traceback for each.
            if not self.should_exit:
                raise

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio has replaced the backlog

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        if self._app.probes.drain.begun:
            # A client that has just connected is about to send its request.
            await anyio.sleep(_DRAIN_TAIL_S)
        # Open requests are cut off. uvicorn would log each as an error.
        logging.getLogger("uvicorn.error").addFilter(lambda record: record.exc_info is not None)
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_DRAIN_TAIL_S)
