"""MCP over stdin and stdout, without the SDK, whose import takes most of a start's time.

Each line is a message. Each request is validated once and handled by a task, which writes one line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import View, Views
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, Message, RequestId
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session_tickets import TicketSessions
from mcp_skills_server.server import eras
from mcp_skills_server.server.attachment import Attachment, server_features
from mcp_skills_server.server.eras import INITIALIZE, PING, Era, FaultError, McpClient, Params
from mcp_skills_server.server.notify import Stream
from mcp_skills_server.server.requests import Caller, Page, Settings
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import trace_of
from mcp_skills_server.transport import Pipes

logger = logging.getLogger(__name__)

_INITIALIZED: Final = "notifications/initialized"
_CANCELLED: Final = "notifications/cancelled"
_CALL: Final = "tools/call"
_LONG: Final = frozenset((_CALL, "subscriptions/listen"))
"""Methods exempt from `_MOST_SHORT`: they may run long, and wait for more than a disk."""
_MOST_SHORT: Final = 32
"""The most other concurrent requests; each may hold a whole file until its response is sent."""
_CLOSED: Final = FaultError(-32000, "Connection closed")
_LAST_ANSWERS_S: Final = 1.5
"""The grace period in seconds for pending requests after stdin ends."""
_Method: TypeAlias = "Callable[[PendingRequest], Awaitable[dict[str, Any]]]"

_BEFORE_THE_HANDSHAKE = frozenset({INITIALIZE, PING})


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request without a response so far; its params are unvalidated.

    Attributes:
        client: of the connection; in the modern era, of the request once its envelope is validated.
        is_done: whether it was answered or cancelled, after which nothing is sent for it.
        cancel: cancels the work.
    """

    id: RequestId
    method: str
    params: Params | None
    era: Era
    client: McpClient = eras.UNKNOWN_CLIENT
    is_done: bool = False
    cancel: Callable[[], object] = lambda: None


async def _empty_result(_: PendingRequest) -> dict[str, Any]:
    return {}


def _answer(id_: RequestId, result: dict[str, Any]) -> bytes:
    fields: list[bytes] = []
    for key, value in result.items():
        raw = value.json if isinstance(value, Page) else jsonrpc.dump(value)
        fields.append(b'"%b":%b' % (key.encode(), raw))
    return b'{"jsonrpc":"2.0","id":%b,"result":{%b}}' % (jsonrpc.dump(id_), b",".join(fields))


def _refusal(id_: RequestId, fault: FaultError) -> bytes:
    return jsonrpc.dump(jsonrpc.error(id_, fault.code, str(fault), fault.data))


class Connection:
    """The connection to one client over a pipe."""

    def __init__(self, lines: Pipes, attachment: Attachment) -> None:
        self.connection: object = self
        self.principal: Principal | None = None  # a pipe has no authentication
        self._lines = lines
        self._attachment = attachment
        self._methods: dict[str, _Method] = {
            INITIALIZE: self._initialize,
            PING: _empty_result,
            eras.DISCOVER: self._discover,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
            **dict.fromkeys(attachment.handlers, self._call),
        }
        self._era: Era | None = None
        self._client: McpClient = eras.UNKNOWN_CLIENT
        self._is_open = False
        self._is_closing = False
        self._requests: dict[tuple[type, object], PendingRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = asyncio.Semaphore(_MOST_SHORT)
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
            if self._error is None or self._reading is None or self._reading.uncancel():
                raise
        finally:
            self._reading = None
            for request in [*self._requests.values()]:
                request.cancel()
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

    def add_exit_callback(self, work: Callable[[], object]) -> None:
        """Do nothing: the notifier ends with its only client."""

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification.

        Raises:
            BrokenPipeError: the client closed its end.
        """
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        await self._lines.send(jsonrpc.dump(message) + b"\n")

    async def answer(self, request: PendingRequest) -> bytes:
        """Return the response to a request.

        Raises:
            BrokenPipeError: the client closed its end.
        """
        era, method, params = request.era, request.method, request.params or {}
        invalid: FaultError | None = None
        try:
            era.check_envelope(method, params)
            if era.modern:
                request.client = eras.client_of_envelope(params)
            era.check_params(method, params)
        except FaultError as error:
            invalid = error
        client = request.client
        if method == INITIALIZE and invalid is None:  # the connection has it only afterwards
            client = eras.client_of_handshake(params)
        trace = trace_of(method, params, request.id, version=client.version)
        with events.Request("mcp", method, era=era.name, host=client.name, trace=trace) as event:
            try:
                if invalid is not None:
                    raise invalid
                result = era.in_era(method, await self._result(request))
                answer = _answer(request.id, result)
            except BrokenPipeError:
                raise
            except Exception as error:
                # Its traceback would keep the request in memory until the next garbage collection.
                fault = era.fault_of(error, method).with_traceback(None)
                event.code, event.outcome = fault.code, eras.outcome_of_error(fault.code)
                return _refusal(request.id, fault)
            event.outcome = eras.outcome_of_result(result)
            return answer

    async def _result(self, request: PendingRequest) -> dict[str, Any]:
        method = self._methods.get(request.method)
        if method is None:  # disabled by the operator
            raise eras.unknown(request.method)
        is_open = self._is_open or request.era.modern
        if not is_open and request.method not in _BEFORE_THE_HANDSHAKE:
            raise FaultError(
                jsonrpc.INVALID_PARAMS, "the session is not open; send `initialize` first"
            )
        return await method(request)

    async def _call(self, request: PendingRequest) -> dict[str, Any]:
        caller = Caller(
            request.client.extensions,
            served=self._served,
            connection=None if request.era.modern else self,
            progress=partial(self._report, request),
            list_connection=self,
            client=request.client.name,
        )
        return await self._attachment.call(request.method, caller, request.params or {})

    async def _served(self, view: View) -> Served:
        return server_features(self._attachment, view)

    async def _initialize(self, request: PendingRequest) -> dict[str, Any]:
        params = request.params or {}
        client, shown = eras.client_of_handshake(params), eras.handshake(params)
        result = await self._attachment.advertise(shown, None, client.name, client.extensions)
        request.client = client
        return result

    async def _discover(self, request: PendingRequest) -> dict[str, Any]:
        shown, client = eras.discovery(), request.client
        return await self._attachment.advertise(shown, None, client.name, client.extensions)

    async def _subscribe(self, request: PendingRequest) -> dict[str, Any]:
        await self._attachment.subscribe(self, (request.params or {})["uri"])
        return {}

    async def _unsubscribe(self, request: PendingRequest) -> dict[str, Any]:
        self._attachment.unsubscribe(self, (request.params or {})["uri"])
        return {}

    async def _listen(self, request: PendingRequest) -> dict[str, Any]:
        # Acknowledge after the first scan, so that no later change lacks a notification.
        await self._attachment.ready()
        # free memory: a stream may last for days
        wanted, request.params = (request.params or {})["notifications"], None
        stream = Stream(request.id, self.send, shared=True)
        listening = self._attachment.notifier.listen(stream, wanted)
        del wanted
        return await listening

    async def _report(self, request: PendingRequest, seconds: float) -> None:
        meta: Params = (request.params or {}).get("_meta") or {}
        token = meta.get("progressToken")
        if token is not None and not request.is_done:
            said = f"running for {seconds:.0f} s"
            progress = {"progressToken": token, "progress": seconds, "message": said}
            await self.send("notifications/progress", progress)

    async def _receive(self, line: bytes | None) -> None:
        if line is None:
            found = jsonrpc.too_long(self._lines.max_line)
        else:
            found = jsonrpc.decode_message(line)
        if isinstance(found, Message) and found.kind == "request":
            if _key(found.id) not in self._requests:
                await self._start(found)
                return
            found = jsonrpc.duplicate(found.id)
        if isinstance(found, InvalidMessage):
            logger.warning("refused a message: %s", found.message, extra=REPEATS)
            await self._lines.send(found.response + b"\n")
        elif found.kind == "notification":
            self._handle_notification(found.fields["method"], found.fields.get("params") or {})

    async def _start(self, message: Message) -> None:
        """Start a task for a request."""
        method, params = message.fields["method"], message.fields.get("params")
        if self._era is None:
            self._era = eras.era_of(method, params)
        request = PendingRequest(message.id, method, params, self._era, self._client)
        self._requests[_key(request.id)] = request
        if method not in _LONG:
            await self._short.acquire()
        work: Coroutine[Any, Any, None] = self._answer(request)
        if method == _CALL and self._attachment.sessions.runtime.scripts is not None:
            from anyio import CancelScope  # lazy: only scripts need a cancel scope

            scope = CancelScope()
            request.cancel = scope.cancel
            task = asyncio.create_task(_in_scope(scope, work))
        else:
            task = asyncio.create_task(work)
            request.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, request))
        if method == INITIALIZE:
            await asyncio.wait([task])  # the next message may depend on it

    async def _answer(self, request: PendingRequest) -> None:
        answer = await self.answer(request)
        if request.is_done:  # cancelled
            return
        if request.method == INITIALIZE and request.client is not self._client:  # succeeded
            self._client, self._is_open = request.client, True
        self._finish(request)
        self._lines.send_now(answer + b"\n")

    def _finish(self, request: PendingRequest) -> None:
        """Mark a request as done, so that the client may reuse its id."""
        request.is_done = True
        if self._requests.get(_key(request.id)) is request:
            del self._requests[_key(request.id)]

    def _ended(self, request: PendingRequest, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if request.method not in _LONG:
            self._short.release()
        error = None
        if not task.cancelled():
            error = task.exception()
        if not request.is_done:
            self._finish(request)
            if self._is_closing and error is None:
                with suppress(BrokenPipeError):
                    self._lines.send_now(_refusal(request.id, _CLOSED) + b"\n")
        if error is not None and self._error is None:  # the client closed its end
            self._error = error
            if self._reading is not None:
                self._reading.cancel()

    def _handle_notification(self, method: str, params: dict[str, Any]) -> None:
        if method == _CANCELLED:
            request = self._requests.get(_key(params.get("requestId")))
            if request is not None:
                request.cancel()
                self._finish(request)  # before the task ends some event loop turns later
        elif method == _INITIALIZED:
            if self._era is not eras.MODERN:
                self._is_open = True
                self._attachment.notifier.add_legacy_client(self)
            self._attachment.begin()


def _key(id_: object) -> tuple[type, object]:
    """Return a key of an id that distinguishes "1" from 1, and True from both."""
    return type(id_), id_ if isinstance(id_, str | int) else None


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
