"""Dispatch of MCP requests: each is checked once, handed to the handler of its method, and answered by one message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.runtime.quota import Owner, owner_of
from mcp_skills_server.server import eras, methods
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.eras import DISCOVER, INITIALIZE, NOBODY, PING, Era, McpClient, Params
from mcp_skills_server.server.messages import Id
from mcp_skills_server.server.methods import Fault, FaultError, fault_of, outcome_of_error, outcome_of_result
from mcp_skills_server.server.notify import Peer, Stream
from mcp_skills_server.server.pages import Page
from mcp_skills_server.server.requests import Caller, Handler
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.trace_context import trace_of

_Method: TypeAlias = "Callable[[PendingRequest], Awaitable[dict[str, Any]]]"

_BEFORE_THE_HANDSHAKE = frozenset({INITIALIZE, PING})
_NO_HANDSHAKE = Fault(INVALID_PARAMS, "the session is not open; send `initialize` first")


class PendingRequest:
    """A request that has no answer yet.

    Attributes:
        id: as the client gave it.
        method: the method.
        params: as they came; None where there are none.
        era: of the connection.
        client: of the connection; in the modern era, that of the request as soon as its envelope is checked.
        is_open: whether the handshake was over when it came.
        is_done: whether its work is over, after which there is no progress to report.
        is_cancelled: whether the client wants no answer any more.
        cancel: cancels the work.
    """

    __slots__ = ("cancel", "client", "era", "id", "is_cancelled", "is_done", "is_open", "method", "params")

    def __init__(
        self, id_: Id, method: str, params: Params | None, era: Era, client: McpClient = NOBODY, *, is_open: bool = True
    ) -> None:
        self.id = id_
        self.method = method
        self.params = params
        self.era = era
        self.client = client
        self.is_open = is_open
        self.is_done = False
        self.is_cancelled = False
        self.cancel: Callable[[], object] = lambda: None


class Dispatcher:
    """Answers the requests of one client.

    Args:
        attachment: the skills that are served.
        peer: the client.
    """

    def __init__(self, attachment: Attachment, peer: Peer) -> None:
        self._attachment = attachment
        self._peer = peer
        settings, tools = attachment.settings, attachment.tools
        handlers = {**methods.SKILLS, **methods.RESOURCES, **(methods.PROMPTS if settings.prompts else {})}
        self._methods: dict[str, _Method] = {
            INITIALIZE: self._initialize,
            PING: _nothing,
            DISCOVER: self._discover,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
            **{method: partial(self._call, handler, attachment.ready) for method, handler in handlers.items()},
        }
        if settings.tools:
            self._methods["tools/list"] = partial(self._call, tools.list_tools, attachment.glimpse_and_begin)
            self._methods["tools/call"] = partial(self._call, tools.call_tool, attachment.ready)

    async def answer(self, request: PendingRequest) -> bytes:
        """Return the message that answers a request.

        Raises:
            BrokenPipeError: the client reads no more.
        """
        era, method = request.era, request.method
        fault = era.envelope_fault(method, request.params)
        if fault is None:
            if era.modern:
                request.client = eras.client_of_envelope(request.params or {})
            fault = era.params_fault(method, request.params)
        with self._attachment.events.serving(), _observed(request, self._peer.principal) as event:
            try:
                result = era.written(method, await self._result(request, fault))
                answer = _answer(request.id, result)
            except BrokenPipeError:
                raise
            except Exception as error:
                fault = fault_of(error, method, modern=era.modern)
                if event is not None:
                    event.code, event.outcome = fault.code, outcome_of_error(fault.code)
                return refused(request.id, fault)
            if event is not None:
                event.outcome = outcome_of_result(result)
            return answer

    async def _result(self, request: PendingRequest, fault: Fault | None) -> dict[str, Any]:
        if fault is not None:
            raise FaultError(fault)
        method = self._methods.get(request.method)
        if method is None:  # the operator does not offer it
            raise FaultError(eras.unknown(request.method))
        if not request.is_open and request.method not in _BEFORE_THE_HANDSHAKE:
            raise FaultError(_NO_HANDSHAKE)
        return await method(request)

    async def _call(
        self, handler: Handler, ready: Callable[[], Awaitable[None]], request: PendingRequest
    ) -> dict[str, Any]:
        attachment, peer = self._attachment, self._peer
        await ready()
        caller = Caller(
            request.client.extensions,
            served=self._served,
            principal=peer.principal,
            counted=self._owner(),
            connection=None if request.era.modern else peer.connection,
            progress=partial(self._report, request),
            audience=peer.connection,
            client=request.client.name,
        )
        params = request.params or {}
        return await retry_when_stale(
            attachment.views.of(caller.principal), lambda view: handler(view, attachment.settings, caller, params)
        )

    def _owner(self) -> Owner:
        principal = self._peer.principal
        return owner_of(None if principal is None else principal.key, None)

    async def _served(self, view: View) -> Served:
        return methods.served(self._attachment, view)

    async def _initialize(self, request: PendingRequest) -> dict[str, Any]:
        params = request.params or {}
        client = eras.client_of_handshake(params)
        shown = eras.handshake(params, {"completions": {}})
        result = await self._attachment.declared(shown, self._peer.principal, client.name, client.extensions)
        request.client = client
        return result

    async def _discover(self, request: PendingRequest) -> dict[str, Any]:
        shown, client = eras.discovery({"completions": {}}), request.client
        return await self._attachment.declared(shown, self._peer.principal, client.name, client.extensions)

    async def _subscribe(self, request: PendingRequest) -> dict[str, Any]:
        await methods.subscribe(self._attachment, self._peer, (request.params or {})["uri"], self._owner())
        return {}

    async def _unsubscribe(self, request: PendingRequest) -> dict[str, Any]:
        methods.unsubscribe(self._attachment, self._peer, (request.params or {})["uri"])
        return {}

    async def _listen(self, request: PendingRequest) -> dict[str, Any]:
        # Acknowledged after the first scan, so that a notification follows whatever changes after it.
        await self._attachment.ready()
        wanted, request.params = (request.params or {})["notifications"], None  # a stream may last for days
        stream = Stream(request.id, self._peer.send, True, self._peer.principal)
        listening = self._attachment.notifier.listen(stream, wanted, self._owner())
        del wanted
        return await listening

    async def _report(self, request: PendingRequest, seconds: float) -> None:
        meta: Params = (request.params or {}).get("_meta") or {}
        token = meta.get("progressToken")
        if token is not None and not request.is_done:
            said = {"progressToken": token, "progress": seconds, "message": f"running for {seconds:.0f} s"}
            await self._peer.send("notifications/progress", said)


async def _nothing(_: PendingRequest) -> dict[str, Any]:
    return {}


def _observed(request: PendingRequest, principal: Principal | None) -> AbstractContextManager[events.Request | None]:
    """Return the event of a request, to be entered around its work; nothing while nobody reads events."""
    if not events.has_readers():
        return nullcontext()
    return events.Request(
        "mcp",
        request.method,
        principal=principal,
        era=request.era.name,
        host=request.client.name,
        trace=lambda: trace_of(request.method, request.params, request.id, version=request.client.version),
    )


def _answer(id_: Id, result: dict[str, Any]) -> bytes:
    fields = [
        b"%b:%b" % (jsonrpc.dump(key), value.json if isinstance(value, Page) else jsonrpc.dump(value))
        for key, value in result.items()
    ]
    return b'{"jsonrpc":"2.0","id":%b,"result":{%b}}' % (jsonrpc.dump(id_), b",".join(fields))


def notification(method: str, params: Params | None) -> bytes:
    """Return the message of a notification."""
    fields = {"jsonrpc": "2.0", "method": method}
    return jsonrpc.dump(fields if params is None else {**fields, "params": params})


def refused(id_: Id, fault: Fault) -> bytes:
    """Return the message that refuses a request."""
    return jsonrpc.dump(jsonrpc.error(id_, fault.code, fault.message, fault.data))
