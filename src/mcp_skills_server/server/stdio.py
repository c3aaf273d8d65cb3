"""MCP over stdin and stdout, without the SDK: to import it takes longer than everything else at the start.

A line becomes a message (`messages.py`), a request a task, and its answer (`dispatch.py`) a line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import Dispatcher, PendingRequest, notification, refused
from mcp_skills_server.server.eras import INITIALIZE, MODERN, NOBODY, Era, McpClient, era_of
from mcp_skills_server.server.messages import InvalidMessage, Message, duplicate, judge, too_long
from mcp_skills_server.server.methods import Fault
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.transport.pipes import Pipes

logger = logging.getLogger(__name__)

INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
_CALL: Final = "tools/call"
_LONG: Final = frozenset((_CALL, "subscriptions/listen"))
"""Methods whose requests may take long, and wait for more than a disk."""
_MOST_SHORT: Final = 32
"""Other requests at once. Each may hold a whole file until its answer is written."""
_CLOSED: Final = Fault(-32000, "Connection closed")
_LAST_ANSWERS_S: Final = 1.5
"""How long requests may still take when stdin has ended."""


class Lines(Protocol):
    """The transport of messages; `transport.pipes.Pipes` is one."""

    max_line: int

    def lines(self) -> AsyncIterator[bytes | None]:
        """Yield the lines until the client has no more to say, None for one that is too long."""
        ...

    def send_now(self, raw: bytes) -> bool:
        """Write these bytes, after those of earlier calls; return whether they are out."""
        ...

    async def flush(self) -> None:
        """Wait until everything is out that was to be written by now."""
        ...


class Connection:
    """One client at the other end of a pipe.

    Args:
        lines: where its messages come from and go to.
        attachment: the skills that it is served.
    """

    def __init__(self, lines: Lines, attachment: Attachment) -> None:
        self.connection: object = self
        self.principal: Principal | None = None
        self._lines = lines
        self._attachment = attachment
        self._dispatcher = Dispatcher(attachment, self)
        self._era: Era | None = None
        self._client: McpClient = NOBODY
        self._is_open = False
        self._is_closing = False
        self._requests: dict[tuple[type, object], PendingRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = asyncio.Semaphore(_MOST_SHORT)
        self._ends: list[Callable[[], object]] = []
        self._reading: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Answer requests until stdin ends and they have their answers, or have had their time.

        Raises:
            BrokenPipeError: nobody reads the answers.
        """
        self._reading = asyncio.current_task()
        try:
            async for line in self._lines.lines():
                await self._receive(line)
            await self.last_answers(_LAST_ANSWERS_S)
            self._is_closing = True
        except asyncio.CancelledError:
            if self._error is None or self._reading is None or self._reading.uncancel():
                raise
        finally:
            self._reading = None
            for request in [*self._requests.values()]:
                request.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)
            for work in reversed(self._ends):
                work()
        if self._error is not None:
            raise self._error

    async def last_answers(self, seconds: float = 0.5) -> None:
        """End every stream, and wait until every request has its answer, for so long at the most."""
        self._attachment.notifier.close()
        with suppress(BrokenPipeError, TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await self._lines.flush()

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` called when the connection ends."""
        self._ends.append(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        await self._send(notification(method, params))

    async def _send(self, message: bytes) -> None:
        if not self._lines.send_now(message + b"\n"):
            await self._lines.flush()

    async def _receive(self, line: bytes | None) -> None:
        found = too_long(self._lines.max_line) if line is None else judge(line)
        if isinstance(found, Message) and found.kind == "request" and _key(found.id) in self._requests:
            found = duplicate(found.id)
        if isinstance(found, InvalidMessage):
            logger.warning("refused a message: %s", found.message, extra=REPEATS)
            await self._send(found.answer)
        elif found.kind == "request":
            await self._start(found)
        elif found.kind == "notification":
            self._hear(found.fields["method"], found.fields.get("params") or {})

    async def _start(self, message: Message) -> None:
        """Begin the work on a request."""
        method, params = message.fields["method"], message.fields.get("params")
        if self._era is None:
            self._era = era_of(method, params)
        is_open = self._is_open or self._era.modern
        request = PendingRequest(message.id, method, params, self._era, self._client, is_open=is_open)
        self._requests[_key(request.id)] = request
        if method not in _LONG:
            await self._short.acquire()
        work: Coroutine[Any, Any, None] = self._answer(request)
        if method == _CALL and self._attachment.sessions.runtime.scripts is not None:
            from anyio import CancelScope  # late: scripts alone need a shield from being cancelled

            scope = CancelScope()
            request.cancel = scope.cancel
            task = asyncio.create_task(_within(scope, work))
        else:
            task = asyncio.create_task(work)
            request.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, request))
        if method == INITIALIZE:
            await asyncio.wait([task])  # the next message may count on it

    async def _answer(self, request: PendingRequest) -> None:
        answer = await self._dispatcher.answer(request)
        if request.is_cancelled:
            return
        if request.method == INITIALIZE and request.client is not self._client:  # it has succeeded
            self._client, self._is_open = request.client, True
        self._finish(request)
        self._lines.send_now(answer + b"\n")

    def _finish(self, request: PendingRequest) -> None:
        """Note that a request has its answer, or will get none: the client may use its id again."""
        request.is_done = True
        if self._requests.get(_key(request.id)) is request:
            del self._requests[_key(request.id)]

    def _ended(self, request: PendingRequest, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if request.method not in _LONG:
            self._short.release()
        error = None if task.cancelled() else task.exception()
        if not request.is_done:
            self._finish(request)
            if self._is_closing and error is None and not request.is_cancelled:
                with suppress(BrokenPipeError):
                    self._lines.send_now(refused(request.id, _CLOSED) + b"\n")
        if error is not None and self._error is None:  # nobody reads the answers
            self._error = error
            if self._reading is not None:
                self._reading.cancel()

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification."""
        if method == CANCELLED:
            request = self._requests.get(_key(params.get("requestId")))
            if request is not None:
                request.is_cancelled = True
                request.cancel()
                self._finish(request)  # the work may take some more turns of the event loop to end
        elif method == INITIALIZED:
            if self._era is not MODERN:
                self._is_open = True
                self._attachment.notifier.add_legacy_client(self)
            self._attachment.begin()


def _key(id_: object) -> tuple[type, object]:
    """Tell "1" and 1 apart, and True from both."""
    return type(id_), id_ if isinstance(id_, str | int) else None


async def _within(scope: Any, work: Coroutine[Any, Any, None]) -> None:
    with scope:
        await work


async def serve_stdio(
    runtime: Runtime, settings: Settings, watcher: Watcher | None, views: Views | None = None
) -> None:
    """Serve one client over stdin and stdout until stdin closes or SIGTERM or SIGINT arrives."""
    attachment = Attachment(runtime.registry, settings, watcher, runtime, views=views)
    pipes = Pipes()
    connection = Connection(pipes, attachment)

    async def work() -> None:
        async with attachment.running():
            await connection.run()

    await pipes.serve(work, connection.last_answers)
