"""One client on a pipe: its requests become calls of handlers, and their results answers.

The SDK's front does the same with models of every message; `tests/front/` shows that both answer alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.runtime.quota import Owner, owner_of
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front import eras
from mcp_skills_server.server.front.dispatch import Dispatcher, answer, notification, refused
from mcp_skills_server.server.front.eras import INITIALIZE, LEGACY, MODERN, PING
from mcp_skills_server.server.front.repeats import Repeats, Words, parted
from mcp_skills_server.server.front.request import FaultError, Params, Request
from mcp_skills_server.server.message_lines import Lines, MessageLines
from mcp_skills_server.server.messages import Id, Message
from mcp_skills_server.server.methods import Fault
from mcp_skills_server.transport.scope import Scope, scope

INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
_MOST_BEFORE: Final = 8
"""Messages before the first request that are kept until it has decided the era."""
_LONGEST_NUMBER: Final = 20
_CALL: Final = "tools/call"
_LONG: Final = frozenset((_CALL, "subscriptions/listen"))
"""Methods whose requests may be under way for long, and wait for more than a disk."""
_MOST_SHORT: Final = 32
"""Other requests that are answered at once; there are about as many threads."""
_CLOSED: Final = Fault(-32000, "Connection closed")
_INITIALIZED_PARAMS: Final = LEGACY.fits[PING]


class Connection:
    """One client at the other end of a pipe.

    Args:
        lines: where its messages come from and go to.
        attachment: the skills that it is served.
    """

    def __init__(self, lines: Lines, attachment: Attachment) -> None:
        self.connection: object | None = self
        self.counted: Owner = owner_of(None, None)
        self.principal: Principal | None = None
        self.address: str | None = None
        self.audience: object | None = attachment
        self.is_shared = True
        self._messages = MessageLines(lines)
        self._attachment = attachment
        self._dispatcher = Dispatcher(attachment, self)
        self._answers = Repeats(lambda: self._dispatcher.view(self.principal))
        self._words: Words | None = None
        """What the present line says, where its answer may be kept."""
        self._requests: dict[tuple[type, Id], Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._short: set[asyncio.Task[None]] = set()
        self._fewer: asyncio.Future[None] | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None
        self._before: list[Message] | None = []
        self._era = LEGACY
        self._client = eras.NOBODY
        self._is_open = False
        self._ends: list[Callable[[], object]] = []
        self._closing = False
        self.is_gone = False

    async def run(self) -> None:
        """Answer what comes until the client has no more to say and has its answers, or does not wait for them.

        Raises:
            BrokenPipeError: nobody reads the answers.
        """
        self._reading = reading = asyncio.current_task()
        try:
            try:
                await self._read()
            finally:
                self._reading = None
                await self._end_requests()
        except asyncio.CancelledError:
            if self._error is None or reading is None or reading.uncancel():
                raise
        finally:
            for work in reversed(self._ends):
                work()
        if self._error is not None:
            raise self._error

    async def _read(self) -> None:
        async for left in self._messages.received(self._take, self._repeats):
            request = self._in_turn(left) if isinstance(left, Message) else left
            if request is None:
                continue
            if request.method == INITIALIZE:
                await self._answer(request)  # before the next message is looked at, which may count on it
            else:
                self._begin(request)
                await self._is_less_under_way()
        await self.last_answers(1.5)
        self._closing = True

    async def last_answers(self, seconds: float = 0.5) -> None:
        """End every stream, and wait until every request has its answer, for so long at the most."""
        self._attachment.notifier.close()
        await self._messages.settle(seconds)

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` called when the connection ends."""
        self._ends.append(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        try:
            await self._messages.send(notification(method, params))
        except BrokenPipeError:
            self.is_gone = True
            raise

    # What comes in

    def _repeats(self, line: bytes) -> bool:
        """Whether a line is a request that could be answered as the same one before was."""
        said = parted(line)
        self._words = None if said is None else said[0]
        body = None if said is None else self._answers.find(said[0])
        if said is None or body is None or self._messages.is_under_way(said[1]):
            return False
        self._messages.send_now(*answer(said[1], body))
        return True

    def _take(self, message: Message) -> Message | Request | None:
        """What is left of a message for a task to do."""
        return message if message.kind != "request" or self._before is not None else self._asked(message)

    def _in_turn(self, message: Message) -> Request | None:
        """A message in its turn; what comes before the first request waits for it to decide the era."""
        self._words = None
        if self._before is not None:
            if message.kind != "request":
                if len(self._before) < _MOST_BEFORE:
                    self._before.append(message)
                return None
            fields, waiting, self._before = message.fields, self._before, None
            if eras.opens_modern(fields["method"], fields.get("params")):
                self._era = MODERN
            for each in waiting:
                self._hear(each)
        if message.kind == "request":
            return self._asked(message)
        self._hear(message)
        return None

    def _asked(self, message: Message) -> Request | None:
        """A request that has to be awaited; None where it could be answered at once."""
        fields, era = message.fields, self._era
        admitted = era.modern or self._is_open
        request = Request(
            message.id, fields["method"], fields.get("params"), era, self._client, channel=self, admitted=admitted
        )
        body = self._dispatcher.at_once(request)
        if body is not None:
            if self._words is not None and request.made_from is not None:
                self._answers.keep(self._words, request.made_from, body)
            self._send_answer(request.id, body)
            return None
        self._requests[type(request.id), request.id] = request
        return request

    def _hear(self, message: Message) -> None:
        """A notification; an answer is to nothing that was asked, and is passed over."""
        if message.kind != "notification":
            return
        method: str = message.fields["method"]
        params: Params | None = message.fields.get("params")
        if method == CANCELLED:
            id_: object = (params or {}).get("requestId")
            request = self._named(id_) if isinstance(id_, str | int) and not isinstance(id_, bool) else None
            if request is not None:
                request.taken_back = True
                self._scope_of(request).cancel()
                # Its id is free from here on: the work may take some more turns of the event loop to end.
                del self._requests[type(request.id), request.id]
                self._messages.end(request.id)
        elif method == INITIALIZED:
            if self._era is LEGACY:
                self._is_open = self._is_open or _INITIALIZED_PARAMS(params)
                self._attachment.notifier.add_legacy_client(self)
            self._attachment.begin()

    def _named(self, id_: Id) -> Request | None:
        """The request that a client takes back. It may take back 7 as "7", where there is no other one of that id."""
        found = self._requests.get((type(id_), id_))
        if found is not None:
            return found
        if isinstance(id_, int):
            return self._requests.get((str, str(id_)))
        is_number = id_.isascii() and id_.lstrip("-").isdigit() and len(id_) < _LONGEST_NUMBER
        return self._requests.get((int, int(id_))) if is_number and str(int(id_)) == id_ else None

    # What goes out

    def _begin(self, request: Request) -> None:
        """Have a request answered in a task of its own."""
        task = asyncio.create_task(self._answer(request))
        self._tasks.add(task)
        if request.method not in _LONG:
            self._short.add(task)
        task.add_done_callback(self._ended)

    async def _is_less_under_way(self) -> None:
        """Wait until not too many answers are made at once: each may hold a file until its turn to be sent comes."""
        while len(self._short) >= _MOST_SHORT:
            self._fewer = asyncio.get_running_loop().create_future()
            await self._fewer

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._short.discard(task)
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:  # nobody reads answers
            self._error = error
            if self._reading is not None:
                self._reading.cancel()

    def _scope_of(self, request: Request) -> Scope:
        """What ends the work on a request; made by the first task that asks, because anyio needs to be in one."""
        if request.scope is None:
            runs_scripts = request.method == _CALL and self._attachment.sessions.runtime.scripts is not None
            request.scope = scope(shields=runs_scripts)
        return request.scope

    async def _end_requests(self) -> None:
        # By their scopes, which leave to each what it has to bring to an end. No group of tasks does that.
        for request in list(self._requests.values()):
            self._scope_of(request).cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, request: Request) -> None:
        """Answer a request, unless the client takes it back meanwhile."""
        id_, body = request.id, None
        with self._scope_of(request):
            try:
                body = await self._dispatcher.result(request)
                if request.method == INITIALIZE and request.params:
                    said = request.params
                    version = eras.settled(said["protocolVersion"])
                    self._client = eras.client_of(said["clientInfo"], said["capabilities"], version)
                    self._is_open = True
                    self._answers.clear()
            except FaultError as error:
                body = refused(error.fault)
            finally:
                request.done = True
                if self._requests.get((type(id_), id_)) is request:
                    del self._requests[type(id_), id_]
        if request.taken_back:
            return
        if body is None:
            if not self._closing:
                return
            body = refused(_CLOSED)
        self._send_answer(id_, body)

    def _send_answer(self, id_: Id, body: bytes) -> None:
        self._messages.end(id_)
        self._messages.send_now(*answer(id_, body))
