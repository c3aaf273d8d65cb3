"""MCP over stdin and stdout, without the SDK, whose import takes most of a start's time.

Each line is a message. Each request is handled by a task, which writes one line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from mcp_skills_server.access.quota import LOCAL_REQUESTER
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, Message
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session_tickets import TicketSessions
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import (
    McpSession,
    PendingRequest,
    notification,
    refusal,
)
from mcp_skills_server.server.eras import CALL, INITIALIZE, LISTEN, FaultError
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.transport import Pipes

logger = logging.getLogger(__name__)

_LONG: Final = frozenset((CALL, LISTEN))
"""Methods exempt from `_MAX_SHORT`: they may run long, and wait for more than a disk."""
_MAX_SHORT: Final = 32
"""The most other concurrent requests; each may hold a whole file until its response is sent."""
_CLOSED: Final = FaultError(-32000, "Connection closed")
_LAST_ANSWERS_S: Final = 1.5
"""The grace period in seconds for pending requests after stdin ends."""


class Connection:
    """The connection to one client over a pipe."""

    def __init__(self, lines: Pipes, attachment: Attachment) -> None:
        self._lines = lines
        self._attachment = attachment
        self._session = McpSession(attachment, send=self._send)
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = asyncio.Semaphore(_MAX_SHORT)
        self._reading: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Serve requests until stdin ends, then until they are done or the grace period ends.

        Raises:
            BrokenPipeError: the client closed its end.
        """
        self._reading = asyncio.current_task()
        try:
            with self._attachment.events.serving():  # inherited by each task
                async for line in self._lines.lines():
                    await self._receive(line)
            await self.drain(_LAST_ANSWERS_S)
            self._is_closing = True
        except asyncio.CancelledError:
            # `_ended` cancelled the reading for `_error`: go on below, unless others cancelled too.
            if self._error is None or self._reading is None or self._reading.uncancel():
                raise
        finally:
            self._reading = None
            self._session.cancel_all()
            while self._tasks:
                await asyncio.wait(self._tasks)
        if self._error is not None:
            raise self._error

    async def drain(self, seconds: float = 0.5) -> None:
        """End all streams, and wait at most `seconds` for the responses to all requests."""
        self._attachment.notifier.close()
        with suppress(BrokenPipeError, TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await self._lines.flush()

    async def _send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification, or raise BrokenPipeError if the client closed its end."""
        await self._lines.send(notification(method, params) + b"\n")

    async def _receive(self, line: bytes | None) -> None:
        if line is None:
            received = jsonrpc.too_long(self._lines.max_line)
        else:
            received = jsonrpc.decode_message(line)
        if isinstance(received, Message) and received.kind == "request":
            started = self._session.start(received, LOCAL_REQUESTER, self._send, is_pipe=True)
            if isinstance(started, PendingRequest):
                await self._start(started)
                return
            received = started
        if isinstance(received, InvalidMessage):
            logger.warning("refused a message: %s", received.message, extra=REPEATS)
            await self._lines.send(received.response + b"\n")
        elif received.kind == "notification":
            fields = received.fields
            self._session.receive_notification(fields["method"], fields.get("params") or {})

    async def _start(self, request: PendingRequest) -> None:
        """Start a task for a request."""
        if request.method not in _LONG:
            await self._short.acquire()
        work: Coroutine[Any, Any, None] = self._answer(request)
        if request.method == CALL and self._attachment.sessions.runtime.scripts is not None:
            from anyio import CancelScope  # lazy: only scripts need a cancel scope

            scope = CancelScope()
            request.cancel = scope.cancel
            task = asyncio.create_task(_in_scope(scope, work))
        else:
            task = asyncio.create_task(work)
            request.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, request))
        if request.method == INITIALIZE:
            await asyncio.wait([task])  # the next message may depend on it

    async def _answer(self, request: PendingRequest) -> None:
        answer = await self._session.answer(request)
        if request.is_done:  # cancelled
            return
        self._session.finish(request)
        self._lines.send_now(answer.raw + b"\n")

    def _ended(self, request: PendingRequest, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if request.method not in _LONG:
            self._short.release()
        error = None
        if not task.cancelled():
            error = task.exception()
        if not request.is_done:
            self._session.finish(request)
            if self._is_closing and error is None:
                with suppress(BrokenPipeError):
                    self._lines.send_now(refusal(request.id, _CLOSED) + b"\n")
        if error is not None and self._error is None:  # the client closed its end
            self._error = error
            if self._reading is not None:
                self._reading.cancel()


async def _in_scope(scope: Any, work: Coroutine[Any, Any, None]) -> None:
    with scope:
        await work


async def serve_stdio(
    runtime: Runtime, settings: Settings, watcher: Watcher | None, views: Views | None = None
) -> None:
    """Serve one client over stdin and stdout until stdin closes or SIGTERM or SIGINT arrives."""
    attachment = Attachment(
        runtime.registry, settings, watcher, runtime, sessions=TicketSessions, views=views
    )
    pipes = Pipes()
    connection = Connection(pipes, attachment)

    async def work() -> None:
        async with attachment.running():
            await connection.run()

    await pipes.serve(work, connection.drain)
