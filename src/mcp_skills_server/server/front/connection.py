"""One client on a pipe: its requests become calls of handlers, and their results answers.

The SDK's front does the same with models of every message; `tests/front/` shows that both answer alike.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INTERNAL_ERROR
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front import eras
from mcp_skills_server.server.front.answers import Answers
from mcp_skills_server.server.front.eras import INITIALIZE, LEGACY, MODERN, PING
from mcp_skills_server.server.front.request import FaultError, Params, Request
from mcp_skills_server.server.messages import Id, Message, Refusal, UnderWay, judge, too_long
from mcp_skills_server.server.methods import Fault, fault_of
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
_MOST_BEFORE: Final = 8
"""Messages before the first request that are kept until it has decided the era."""
_CLOSED: Final = Fault(-32000, "Connection closed")
_INITIALIZED_PARAMS: Final = LEGACY.fits[PING]


class Lines(Protocol):
    """Where messages come from and go to; `transport.pipes.Pipes` is one."""

    max_line: int

    def lines(self) -> AsyncIterator[bytes | None]:
        """The lines until the client has no more to say; None for one that is too long."""
        ...

    async def send(self, raw: bytes) -> None:
        """Write these bytes, after those of earlier calls."""
        ...


class Connection:
    """One client at the other end of a pipe.

    Args:
        lines: where its messages come from and go to.
        attachment: the skills that it is served.
    """

    def __init__(self, lines: Lines, attachment: Attachment) -> None:
        self.connection: object = self
        self._lines = lines
        self._attachment = attachment
        self._answers = Answers(attachment, self).table()
        self._under_way = UnderWay()
        self._requests: dict[Id, Request] = {}
        self._before: list[Message] | None = []
        self._era = LEGACY
        self._client = eras.NOBODY
        self._is_open = False
        self._ends: list[Callable[[], object]] = []
        self._sending = 0
        self._changed = anyio.Event()
        self._closing = False
        self._is_gone = False

    async def run(self) -> None:
        """Answer what comes until the client has no more to say and has its answers, or does not wait for them.

        Raises:
            BrokenPipeError: nobody reads the answers.
        """
        try:
            async with anyio.create_task_group() as tasks:
                async for line in self._lines.lines():
                    found = too_long(self._lines.max_line) if line is None else judge(line)
                    if isinstance(found, Message) and found.kind == "request":
                        found = self._under_way.begin(found.id) or found
                    if isinstance(found, Refusal):
                        logger.warning("refused a message: %s", found.message, extra=REPEATS)
                        await self._write(found.answer + b"\n")
                    else:
                        await self._take(found, tasks)
                await self.last_answers(1.5)
                self._closing = True
                for request in list(self._requests.values()):
                    request.scope.cancel()
        finally:
            for work in reversed(self._ends):
                work()

    async def last_answers(self, seconds: float = 0.5) -> None:
        """End every stream, and wait until every request has its answer, for so long at the most."""
        self._attachment.notifier.close()
        with anyio.move_on_after(seconds):
            while self._under_way or self._sending:
                self._changed = anyio.Event()
                await self._changed.wait()

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` called when the connection ends."""
        self._ends.append(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        body = b"" if params is None else b',"params":' + jsonrpc.dump(params)
        await self._write(b'{"jsonrpc":"2.0","method":' + jsonrpc.dump(method) + body + b"}\n")

    # What comes in

    async def _take(self, message: Message, tasks: TaskGroup) -> None:
        """A message in its turn; what comes before the first request waits for it to decide the era."""
        if self._before is not None:
            if message.kind != "request":
                if len(self._before) < _MOST_BEFORE:
                    self._before.append(message)
                return
            fields, waiting, self._before = message.fields, self._before, None
            if eras.opens_modern(fields["method"], fields.get("params")):
                self._era = MODERN
            for each in waiting:
                self._hear(each)
        if message.kind != "request":
            self._hear(message)
            return
        fields, era = message.fields, self._era
        admitted = era.modern or self._is_open
        request = Request(message.id, fields["method"], fields.get("params"), era, self._client, admitted=admitted)
        self._requests[_alike(request.id)] = request
        if request.method == INITIALIZE:
            await self._answer(request)  # before the next message is looked at, which may count on it
        else:
            tasks.start_soon(self._answer, request)

    def _hear(self, message: Message) -> None:
        """A notification; an answer is to nothing that was asked, and is passed over."""
        if message.kind != "notification":
            return
        method: str = message.fields["method"]
        params: Params | None = message.fields.get("params")
        if method == CANCELLED:
            id_: object = (params or {}).get("requestId")
            request = self._requests.get(_alike(id_)) if isinstance(id_, str | int) else None
            if request is not None and not isinstance(id_, bool):
                request.taken_back = True
                request.scope.cancel()
        elif method == INITIALIZED:
            if self._era is LEGACY:
                self._is_open = self._is_open or _INITIALIZED_PARAMS(params)
                self._attachment.notifier.add_legacy_client(self)
            self._attachment.begin()

    # What goes out

    async def _answer(self, request: Request) -> None:
        """Answer a request, unless the client takes it back meanwhile."""
        id_, body = request.id, None
        with request.scope:
            try:
                body = await self._result(request)
            except FaultError as error:
                body = _error(error.fault)
            finally:
                request.done = True
                if self._requests.get(_alike(id_)) is request:
                    del self._requests[_alike(id_)]
        if request.taken_back:
            self._under_way.end(id_)
            self._changed.set()
            return
        if body is None:
            if not self._closing:
                return
            body = _error(_CLOSED)
        # Its id is free from here on: the client may use it again as soon as it has read the answer.
        self._under_way.end(id_)
        await self._write(b'{"jsonrpc":"2.0","id":' + jsonrpc.dump(id_) + body + b"}\n")

    async def _result(self, request: Request) -> bytes:
        """What the answer has beside its id.

        Raises:
            FaultError: the request is refused.
        """
        era, params = request.era, request.params
        fault = era.refusal(request.method, params)
        if fault is not None:
            raise FaultError(fault)
        if era.modern:
            request.client = eras.client_of_request(params or {})
        if not events.has_readers():
            return _written(await self._handled(request))
        with events.Request("mcp", request.method, principal=None, era=era.name, host=request.client.name) as event:
            try:
                result = await self._handled(request)
            except FaultError as error:
                event.outcome = "failed" if error.fault.code == INTERNAL_ERROR else "refused"
                raise
            if result.get("isError"):
                event.outcome = "refused"
            return _written(result)

    async def _handled(self, request: Request) -> dict[str, Any]:
        era, method = request.era, request.method
        answer = self._answers.get(method)
        fault = era.refused(method, request.params) or (eras.unknown(method) if answer is None else None)
        if fault is None and not request.admitted and method not in {INITIALIZE, PING}:
            fault = eras.UNFIT
        if fault is not None or answer is None:
            raise FaultError(fault or eras.unknown(method))
        try:
            result = era.written(method, await answer(request))
        except Exception as error:
            if self._is_gone:  # what failed is a notification for this request
                raise
            raise FaultError(fault_of(error, method, modern=era.modern)) from None
        if method == INITIALIZE and request.params:
            self._client = eras.client_of(request.params["clientInfo"], request.params["capabilities"])
            self._is_open = True
        return result

    async def _write(self, raw: bytes) -> None:
        self._sending += 1
        try:
            await self._lines.send(raw)
        except BrokenPipeError:
            self._is_gone = True
            raise
        finally:
            self._sending -= 1
            self._changed.set()


def _alike(id_: Id) -> Id:
    """An id as it is compared: a client may take back request 7 as "7"."""
    if isinstance(id_, str):
        try:
            return int(id_)
        except ValueError:
            return id_
    return id_


def _written(result: dict[str, Any]) -> bytes:
    return b',"result":' + jsonrpc.dump(result)


def _error(fault: Fault) -> bytes:
    fields: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        fields["data"] = fault.data
    return b',"error":' + jsonrpc.dump(fields)
