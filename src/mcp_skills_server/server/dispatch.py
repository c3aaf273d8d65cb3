"""Dispatch of MCP requests: the session of one client, the same on every transport.

A transport decodes a message, has its session answer it, and sends the answer. Only this module
knows what a request means; a transport knows lines or headers, tasks, and how its client leaves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import LOCAL_REQUESTER, Requester
from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, Message, RequestId
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.server import eras
from mcp_skills_server.server.attachment import Attachment, server_features
from mcp_skills_server.server.eras import INITIALIZE, PING, Era, FaultError, McpClient, Params
from mcp_skills_server.server.notify import Send, Stream
from mcp_skills_server.server.requests import Caller, Page
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import trace_of

_INITIALIZED: Final = "notifications/initialized"
_CANCELLED: Final = "notifications/cancelled"
_BEFORE_HANDSHAKE: Final = frozenset({INITIALIZE, PING})


class Answer(NamedTuple):
    """The response to a request, encoded; `code` is that of its error, None for a result."""

    raw: bytes
    code: int | None = None


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request without a response so far; its params are unvalidated.

    Attributes:
        client: of the session; of a handshake or modern request its own, once that is validated.
        send: sends a notification that belongs to this request.
        is_pipe: whether `send` also carries other messages, so that the end of a stream needs one.
        is_done: whether it was answered or cancelled, after which nothing is sent for it.
        cancel: cancels the work.
    """

    id: RequestId
    method: str
    params: Params | None
    era: Era
    client: McpClient
    requester: Requester
    send: Send
    is_pipe: bool
    is_done: bool = False
    cancel: Callable[[], object] = lambda: None


_Method: TypeAlias = "Callable[[Any, PendingRequest], Awaitable[dict[str, Any]]]"


class McpSession:
    """The session of one client: its era, what it is, and its requests in progress.

    Args:
        era: None if the first request decides it.
        is_open: whether requests need no handshake.
        is_lasting: whether the session outlives a request, so that the runtime tools may keep state
            for it.
        send: sends a notification outside any request; None for a client that takes its
            notifications from the queue that the notifier keeps for it.

    Attributes:
        requester: the sender of the latest request.
    """

    def __init__(
        self,
        attachment: Attachment,
        requester: Requester = LOCAL_REQUESTER,
        *,
        era: Era | None = None,
        is_open: bool = False,
        is_lasting: bool = True,
        send: Send | None = None,
    ) -> None:
        self.requester = requester
        self.era = era
        self._attachment = attachment
        self._client = eras.UNKNOWN_CLIENT
        self._is_open = is_open
        self._is_lasting = is_lasting
        self._send = send
        self._requests: dict[tuple[type, object], PendingRequest] = {}
        self._exit_callbacks: list[Callable[[], object]] = []

    # The interface of `notify.Peer`

    @property
    def connection(self) -> object:
        """The object whose lifetime is that of the session."""
        return self

    @property
    def principal(self) -> Principal | None:
        """The principal of the latest request."""
        return self.requester.principal

    def add_exit_callback(self, work: Callable[[], object]) -> None:
        """Call `work` when the session is closed."""
        self._exit_callbacks.append(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification outside any request, if the session has a way to do so."""
        if self._send is not None:
            await self._send(method, params)

    # Messages

    def start(
        self, message: Message, requester: Requester, send: Send, *, is_pipe: bool
    ) -> PendingRequest | InvalidMessage:
        """Register a request, or return the refusal of one that reuses an id in progress."""
        if _key(message.id) in self._requests:
            return jsonrpc.duplicate(message.id)
        method, params = message.fields["method"], message.fields.get("params")
        if self.era is None:
            self.era = eras.era_of(method, params)
        self.requester = requester
        request = PendingRequest(
            message.id, method, params, self.era, self._client, requester, send, is_pipe
        )
        self._requests[_key(request.id)] = request
        return request

    def finish(self, request: PendingRequest) -> None:
        """Mark a request as done, so that the client may reuse its id."""
        request.is_done = True
        if self._requests.get(_key(request.id)) is request:
            del self._requests[_key(request.id)]

    def cancel_all(self) -> None:
        """Cancel all requests in progress."""
        for request in [*self._requests.values()]:
            request.cancel()

    def receive_notification(self, method: str, params: Params) -> None:
        """Handle a notification of the client."""
        if method == _CANCELLED:
            request = self._requests.get(_key(params.get("requestId")))
            if request is not None:
                request.cancel()
                self.finish(request)  # before its task ends some event loop turns later
        elif method == _INITIALIZED:
            if self.era is not eras.MODERN:
                self._is_open = True
                if self._send is None:
                    self._attachment.notifier.register(self)
                else:
                    self._attachment.notifier.add_legacy_client(self)
            self._attachment.begin()

    def close(self) -> None:
        """End the session: cancel its requests, and forget what it subscribed to."""
        self.cancel_all()
        while self._exit_callbacks:
            self._exit_callbacks.pop()()

    async def answer(self, request: PendingRequest) -> Answer:
        """Return the response to a request, which `start` has registered.

        Raises:
            BrokenPipeError: the client is gone.
        """
        era, method, params = request.era, request.method, request.params or {}
        invalid: FaultError | None = None
        try:
            era.check_envelope(method, params)
            if era.modern:
                request.client = eras.client_of_envelope(params)
            era.check_params(method, params)
            if method == INITIALIZE:
                request.client = eras.client_of_handshake(params)
        except FaultError as error:
            invalid = error
        with events.Request(
            "mcp",
            method,
            principal=request.requester.principal,
            address=request.requester.address,
            era=era.name,
            host=request.client.name,
            trace=trace_of(method, params, request.id, version=request.client.version),
        ) as event:
            try:
                if invalid is not None:
                    raise invalid
                result = era.in_era(method, await self._result(request))
                answer = Answer(_encoded(request.id, result))
            except BrokenPipeError:
                raise
            except Exception as error:
                # Its traceback would keep the request in memory until the next garbage collection.
                fault = era.fault_of(error, method).with_traceback(None)
                event.code, event.outcome = fault.code, eras.outcome_of_error(fault.code)
                return Answer(refusal(request.id, fault), fault.code)
            event.outcome = eras.outcome_of_result(result)
            return answer

    # Methods

    async def _result(self, request: PendingRequest) -> dict[str, Any]:
        method = self._METHODS.get(request.method)
        if method is None:
            if request.method not in self._attachment.handlers:  # disabled by the operator
                raise eras.unknown(request.method)
            method = McpSession._call
        is_open = self._is_open or request.era.modern
        if not is_open and request.method not in _BEFORE_HANDSHAKE:
            raise FaultError(
                jsonrpc.INVALID_PARAMS, "the session is not open; send `initialize` first"
            )
        return await method(self, request)

    async def _call(self, request: PendingRequest) -> dict[str, Any]:
        connection = self if self._is_lasting else None
        caller = Caller(
            request.client.extensions,
            served=self._served,
            principal=request.requester.principal,
            quota_owner=request.requester.owner,
            connection=None if request.era.modern else connection,
            progress=partial(_report_progress, request),
            list_connection=connection,
            client=request.client.name,
        )
        return await self._attachment.call(request.method, caller, request.params or {})

    async def _served(self, view: View) -> Served:
        return server_features(self._attachment, view)

    async def _initialize(self, request: PendingRequest) -> dict[str, Any]:
        result = await self._advertise(eras.handshake(request.params or {}), request)
        self._client, self._is_open = request.client, True
        return result

    async def _discover(self, request: PendingRequest) -> dict[str, Any]:
        return await self._advertise(eras.discovery(), request)

    async def _advertise(self, result: dict[str, Any], request: PendingRequest) -> dict[str, Any]:
        client, principal = request.client, request.requester.principal
        return await self._attachment.advertise(result, principal, client.name, client.extensions)

    async def _subscribe(self, request: PendingRequest) -> dict[str, Any]:
        uri = (request.params or {})["uri"]
        await self._attachment.subscribe(self, uri, request.requester.owner)
        return {}

    async def _unsubscribe(self, request: PendingRequest) -> dict[str, Any]:
        self._attachment.unsubscribe(self, (request.params or {})["uri"])
        return {}

    async def _listen(self, request: PendingRequest) -> dict[str, Any]:
        # Acknowledge after the first scan, so that no later change lacks a notification.
        await self._attachment.ready()
        # free memory: a stream may last for days
        wanted, request.params = (request.params or {})["notifications"], None
        stream = Stream(request.id, request.send, request.is_pipe, request.requester.principal)
        listening = self._attachment.notifier.listen(stream, wanted, request.requester.owner)
        del wanted
        return await listening

    async def _empty_result(self, _: PendingRequest) -> dict[str, Any]:
        return {}

    _METHODS: ClassVar[Mapping[str, _Method]] = {
        INITIALIZE: _initialize,
        PING: _empty_result,
        eras.DISCOVER: _discover,
        "resources/subscribe": _subscribe,
        "resources/unsubscribe": _unsubscribe,
        eras.LISTEN: _listen,
    }
    """The methods that are no handlers of the attachment."""


async def _report_progress(request: PendingRequest, seconds: float) -> None:
    meta: Params = (request.params or {}).get("_meta") or {}
    token = meta.get("progressToken")
    if token is not None and not request.is_done:
        text = f"running for {seconds:.0f} s"
        progress = {"progressToken": token, "progress": seconds, "message": text}
        await request.send("notifications/progress", progress)


def notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    """Return an encoded notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return jsonrpc.dump(message)


def refusal(id_: RequestId | None, fault: FaultError) -> bytes:
    """Return an encoded error response."""
    return jsonrpc.dump(jsonrpc.error(id_, fault.code, str(fault), fault.data))


def _encoded(id_: RequestId, result: Mapping[str, Any]) -> bytes:
    fields: list[bytes] = []
    for key, value in result.items():
        raw = value.json if isinstance(value, Page) else jsonrpc.dump(value)
        fields.append(b'"%b":%b' % (key.encode(), raw))
    return b'{"jsonrpc":"2.0","id":%b,"result":{%b}}' % (jsonrpc.dump(id_), b",".join(fields))


def _key(id_: object) -> tuple[type, object]:
    """Return a key of an id that distinguishes "1" from 1, and True from both."""
    return type(id_), id_ if isinstance(id_, str | int) else None
