"""One client on a pipe: its requests become calls of handlers, and their results answers.

The SDK's front does the same with models of every message; `tests/front/` shows that both answer alike.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup

from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INTERNAL_ERROR
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.runtime.quota import owner_of
from mcp_skills_server.server import methods
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front import eras
from mcp_skills_server.server.front.eras import DISCOVER, INITIALIZE, LEGACY, MODERN, Client, Era
from mcp_skills_server.server.front.parameters import LEGACY as LEGACY_FITS
from mcp_skills_server.server.front.shapes import is_set
from mcp_skills_server.server.messages import Id, Message, Refusal, UnderWay, judge, too_long
from mcp_skills_server.server.methods import Fault, fault_of
from mcp_skills_server.server.notify import Stream
from mcp_skills_server.server.requests import Caller, Handler
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
_PING: Final = "ping"
_MOST_BEFORE: Final = 8
"""Messages before the first request that are kept until it has decided the era."""
_CLOSED: Final = Fault(-32000, "Connection closed")
_INITIALIZED_PARAMS: Final = LEGACY_FITS[_PING]

Params: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Callable[["Request"], Awaitable[dict[str, Any]]]


class Lines(Protocol):
    """Where messages come from and go to; `transport.pipes.Pipes` is one."""

    max_line: int

    def lines(self) -> Any:
        """The lines until the client has no more to say; None for one that is too long."""
        ...

    async def send(self, raw: bytes) -> None:
        """Write these bytes, after those of earlier calls."""
        ...


class FaultError(Exception):
    """A request is refused."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Request:
    """A request that has no answer yet.

    Attributes:
        id: as the client gave it.
        method: what is asked for.
        params: as they came; None where there are none.
        era: of the connection.
        client: who asks, as it is known when the request comes.
        admitted: whether the handshake was over by then.
        scope: what ends the work.
        taken_back: whether the client wants no answer any more.
        done: whether the handler has returned, after which it tells nothing.
    """

    __slots__ = ("admitted", "client", "done", "era", "id", "method", "params", "scope", "taken_back")

    def __init__(
        self, id_: Id, method: str, params: Params | None, era: Era, client: Client, *, admitted: bool
    ) -> None:
        self.id = id_
        self.method = method
        self.params = params
        self.era = era
        self.client = client
        self.admitted = admitted
        self.scope = anyio.CancelScope()
        self.taken_back = False
        self.done = False


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
        self._answers = self._table()
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
                body = b',"result":' + jsonrpc.dump(await self._result(request))
            except FaultError as error:
                body = _error(error.fault)
            except Exception as error:
                body = _error(fault_of(error, request.method, modern=request.era.modern))
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

    async def _result(self, request: Request) -> dict[str, Any]:
        era, params = request.era, request.params
        fault = era.refusal(request.method, params)
        if fault is not None:
            raise FaultError(fault)
        if era.modern:
            request.client = eras.client_of_request(params or {})
        if not events.has_readers():
            return await self._handled(request)
        with events.Request("mcp", request.method, principal=None, era=era.name, host=request.client.name) as event:
            try:
                result = await self._handled(request)
            except FaultError as error:
                event.outcome = "failed" if error.fault.code == INTERNAL_ERROR else "refused"
                raise
            if result.get("isError"):
                event.outcome = "refused"
            return result

    async def _handled(self, request: Request) -> dict[str, Any]:
        era, method = request.era, request.method
        answer = self._answers.get(method)
        fault = era.refused(method, request.params) or (eras.unknown(method) if answer is None else None)
        if fault is None and not request.admitted and method not in {INITIALIZE, _PING}:
            fault = eras.UNFIT
        if fault is not None or answer is None:
            raise FaultError(fault or eras.unknown(method))
        try:
            return era.written(method, await answer(request))
        except Exception as error:
            raise FaultError(fault_of(error, method, modern=era.modern)) from None

    async def _write(self, raw: bytes) -> None:
        self._sending += 1
        try:
            await self._lines.send(raw)
        finally:
            self._sending -= 1
            self._changed.set()

    # The methods

    def _table(self) -> dict[str, Answer]:
        attachment = self._attachment
        settings, tools = attachment.settings, attachment.tools
        ours = {**methods.SKILLS, **methods.RESOURCES, **(methods.PROMPTS if settings.prompts else {})}
        table: dict[str, Answer] = {
            INITIALIZE: self._initialize,
            DISCOVER: self._discover,
            _PING: _nothing,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
            **{method: partial(self._call, handler, attachment.ready) for method, handler in ours.items()},
        }
        if settings.tools:
            table["tools/list"] = partial(self._call, tools.list_tools, attachment.glimpse_and_begin)
            table["tools/call"] = partial(self._call, tools.call_tool, attachment.ready)
        return table

    async def _call(self, handler: Handler, ready: Callable[[], Awaitable[None]], request: Request) -> dict[str, Any]:
        attachment = self._attachment
        await ready()
        connection = None if request.era.modern else self
        caller = Caller(
            request.client.extensions,
            served=self._served,
            counted=_COUNTED,
            connection=connection,
            progress=partial(self._report, request),
            audience=connection or attachment,
            client=request.client.name,
        )
        params = request.params or {}
        return await retry_when_stale(
            attachment.registry, lambda view: handler(view, attachment.settings, caller, params)
        )

    async def _served(self, view: View) -> Served:
        return methods.served(self._attachment, view)

    async def _report(self, request: Request, seconds: float) -> None:
        meta: Params = (request.params or {}).get("_meta") or {}
        token = meta.get("progressToken")
        if isinstance(token, str | int) and not isinstance(token, bool) and not request.done:
            said = {"progressToken": token, "progress": seconds, "message": f"running for {seconds:.0f} s"}
            await self.send("notifications/progress", said)

    async def _initialize(self, request: Request) -> dict[str, Any]:
        params = request.params or {}
        result = await self._attachment.declared(eras.handshake(params, self._capabilities(changes=False)))
        self._client = eras.client_of(params["clientInfo"], params["capabilities"])
        self._is_open = True
        return result

    async def _discover(self, _: Request) -> dict[str, Any]:
        return await self._attachment.declared(eras.discovery(self._capabilities(changes=True)))

    def _capabilities(self, *, changes: bool) -> dict[str, Any]:
        """What the protocol itself calls for; the skills add theirs."""
        settings = self._attachment.settings
        lists = {"prompts": settings.prompts, "resources": True, "tools": settings.tools}
        shown: dict[str, Any] = {key: {"listChanged": changes} for key, offered in lists.items() if offered}
        return {"completions": {}, **shown}

    async def _subscribe(self, request: Request) -> dict[str, Any]:
        await methods.subscribe(self._attachment, self, (request.params or {})["uri"], _COUNTED)
        return {}

    async def _unsubscribe(self, request: Request) -> dict[str, Any]:
        methods.unsubscribe(self._attachment, self, (request.params or {})["uri"])
        return {}

    async def _listen(self, request: Request) -> dict[str, Any]:
        # Acknowledged after the first scan, so that a notification follows whatever changes after it.
        await self._attachment.ready()
        wanted = {
            key: is_set(value) if key in _FLAGS else value
            for key, value in (request.params or {})["notifications"].items()
        }
        return await self._attachment.notifier.listen(Stream(request.id, self.send, shared=True), wanted, _COUNTED)


_COUNTED: Final = owner_of(None, None)
_FLAGS: Final = frozenset({"toolsListChanged", "promptsListChanged", "resourcesListChanged"})


async def _nothing(_: Request) -> dict[str, Any]:
    return {}


def _alike(id_: Id) -> Id:
    """An id as it is compared: a client may take back request 7 as "7"."""
    if isinstance(id_, str):
        try:
            return int(id_)
        except ValueError:
            return id_
    return id_


def _error(fault: Fault) -> bytes:
    fields: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        fields["data"] = fault.data
    return b',"error":' + jsonrpc.dump(fields)
