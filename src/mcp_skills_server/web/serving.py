"""The application of `web/app.py` run by uvicorn, with a listener and an end of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import anyio
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE

from mcp_skills_server.catalog import threads
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.app import make_app
from mcp_skills_server.web.connections import SLOT, Slot, Slots, protocol_with_timeouts
from mcp_skills_server.web.listen import Acceptor, allowance, open_listener, shown_address
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.probes import Drain
from mcp_skills_server.web.settings import HttpSettings

logger = logging.getLogger(__name__)

_LAST_S: Final = 0.2
"""How long, at the end of a drain, the connections that came last may take to send their request."""
_ENDING_S: Final = 1
"""How long open responses may go on after the signal; the whole end takes less than two seconds."""


async def serve_http(
    runtime: Runtime,
    settings: Settings,
    http: HttpSettings,
    watcher: Watcher | None,
    views: Views | None = None,
    *,
    parts: Sequence[Part] = (),
    listening: Callable[[str], object] = str,
) -> None:
    """Serve over streamable HTTP until SIGTERM or SIGINT.

    Args:
        runtime: of all skills.
        settings: what clients of MCP are shown.
        http: what the operator chose.
        watcher: follows changes; None where none are to be followed.
        views: which skills each principal has; None where everybody has all.
        parts: what the application has beside MCP.
        listening: called once with the address, such as `127.0.0.1:8000`, when it can be reached.

    Raises:
        UsageError: the address cannot be listened on.
    """
    threads.pool()  # now: later there may be no file descriptor left to import it
    drain = Drain(http.drain)
    for part in parts:
        http = part.configure(http)
    app, end = make_app(runtime, settings, http, watcher, views, parts=parts, drain=drain)
    listener = open_listener(http.host, http.port)
    allowed = allowance(http.max_connections)

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        slot: Slot | None = scope.get("state", {}).get(SLOT)
        try:
            closes = drain.begun or (slot is not None and slot.is_spare)
            await app(scope, receive, _closing(drain, slot, send) if closes else send)
        except anyio.get_cancelled_exc_class():
            # At the end uvicorn cancels the rest, and would log a traceback for each.
            if not server.should_exit:
                raise

    config = uvicorn.Config(
        quiet,
        http=protocol_with_timeouts(
            http.request_timeout, Slots(allowed.places, allowed.spare), http.quotas.unread_bytes
        ),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        proxy_headers=False,  # uvicorn's own reader believes whatever is on this machine
        timeout_keep_alive=http.keep_alive,
        timeout_graceful_shutdown=_ENDING_S,
    )
    server = _Server(config, allowed.arriving, drain)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                await drain.until_end(signals)
                end()  # streams first, then the doors
                server.should_exit = True

            tasks.start_soon(end_on_signal)
            # Only now, so that a reader of the line can connect, and end the server.
            logger.info("listening on http://%s%s", shown_address(listener), http.entrance)
            listening(shown_address(listener))
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


def _closing(drain: Drain, slot: Slot | None, send: Send) -> Send:
    """Return a `send` after whose answer the connection ends, unless it has a slot by then and the server stays."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start" and (drain.begun or (slot is not None and slot.is_spare)):
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return last


class _Server(uvicorn.Server):
    """uvicorn with our acceptor. Signals are left to us, since it would raise them again at the end."""

    def __init__(self, config: uvicorn.Config, arriving: int, drain: Drain) -> None:
        super().__init__(config)
        self._arriving = arriving
        self._drain = drain

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

        self.servers: list[Any] = [Acceptor(each, protocol, self._arriving) for each in sockets or []]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self.servers:
            each.close()
            await each.wait_closed()
        if self._drain.begun:
            # A client that has just connected to a server that drains is about to ask.
            await anyio.sleep(_LAST_S)
        await super().shutdown(sockets)
