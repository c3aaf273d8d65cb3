"""A request becomes a call of its handler, and the result, or why there is none, bytes. It knows no transport."""

from __future__ import annotations

from typing import Any

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.fragments import dump
from mcp_skills_server.server.front import eras
from mcp_skills_server.server.front.answers import Answers
from mcp_skills_server.server.front.eras import INITIALIZE, PING, Era
from mcp_skills_server.server.front.request import FaultError, Request
from mcp_skills_server.server.messages import Id
from mcp_skills_server.server.methods import Fault, fault_of, outcome_of_error, outcome_of_result
from mcp_skills_server.server.notify import Peer
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.trace_context import trace_of

_BEFORE_THE_HANDSHAKE = frozenset({INITIALIZE, PING})


class Dispatcher:
    """Answers requests.

    Args:
        attachment: the skills that are served.
        peer: the client, where one connection carries all its requests; None where each request stands alone.

    Attributes:
        view: makes the view of a request that `at_once` answers.
    """

    def __init__(self, attachment: Attachment, peer: Peer | None = None) -> None:
        answers = Answers(attachment, peer)
        self._answers = answers.table()
        self._at_once = answers.at_once
        self.view = answers.view
        self._clients = eras.Clients()

    def answers(self, method: str, era: Era) -> bool:
        """Whether there is an answer to this method in an era, for parameters that fit."""
        return method in self._answers and method in era.fits

    def at_once(self, request: Request) -> bytes | None:
        """What `result` returns, where nothing has to be waited for; None where `result` has to be asked.

        It saves the task, which costs more than most answers. Whatever is not a plain result is left to `result`.
        """
        era, method, params = request.era, request.method, request.params
        if not request.admitted or era.refusal(method, params) or era.refused(method, params):
            return None
        if era.modern:
            request.client = self._clients.of(params or {})
        try:
            if not events.has_readers():
                found = self._at_once(request)
                return None if found is None else _written(era.written(method, found))
            with _observed(request) as event:
                event.is_kept = False
                found = self._at_once(request)
                if found is None:
                    return None
                event.outcome = outcome_of_result(found)
                body = _written(era.written(method, found))
                event.is_kept = True
                return body
        except Exception:  # which is answered, and logged where it is a bug, when it comes again
            return None

    async def result(self, request: Request) -> bytes:
        """What the answer has beside its id: `,"result":` and the result.

        Raises:
            FaultError: the request is refused.
        """
        era = request.era
        fault = era.refusal(request.method, request.params)
        if fault is not None:
            raise FaultError(fault)
        if era.modern:
            request.client = self._clients.of(request.params or {})
        if not events.has_readers():
            return _written(await self._handled(request))
        with _observed(request) as event:
            try:
                result = await self._handled(request)
            except FaultError as error:
                event.code = error.fault.code
                event.outcome = outcome_of_error(error.fault.code)
                raise
            event.outcome = outcome_of_result(result)
            return _written(result)

    async def _handled(self, request: Request) -> dict[str, Any]:
        era, method = request.era, request.method
        answer = self._answers.get(method)
        fault = era.refused(method, request.params) or (eras.unknown(method) if answer is None else None)
        if fault is None and not request.admitted and method not in _BEFORE_THE_HANDSHAKE:
            fault = eras.UNFIT
        if fault is not None or answer is None:
            raise FaultError(fault or eras.unknown(method))
        try:
            return era.written(method, await answer(request))
        except Exception as error:
            if request.channel.is_gone:  # what failed is a notification for this request
                raise
            raise FaultError(fault_of(error, method, modern=era.modern)) from None


def _observed(request: Request) -> events.Request:
    channel = request.channel
    return events.Request(
        "mcp",
        request.method,
        principal=channel.principal,
        address=channel.address,
        era=request.era.name,
        host=request.client.name,
        trace=trace_of(request.method, request.params, request.id, version=request.client.version),
    )


def _written(result: dict[str, Any]) -> bytes:
    return dump(result, b',"result":')


def answer(id_: Id, body: bytes) -> tuple[bytes, ...]:
    """The answer of a request in parts, which may be large: `body` is what it has beside its id."""
    shown = b"%d" % id_ if isinstance(id_, int) else jsonrpc.dump(id_)
    return b'{"jsonrpc":"2.0","id":', shown, body, b"}"


def notification(method: str, params: dict[str, Any] | None) -> bytes:
    """A notification."""
    body = b"" if params is None else b',"params":' + jsonrpc.dump(params)
    return b'{"jsonrpc":"2.0","method":' + jsonrpc.dump(method) + body + b"}"


def refused(fault: Fault) -> bytes:
    """What the answer to a refused request has beside its id."""
    fields: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        fields["data"] = fault.data
    return b',"error":' + jsonrpc.dump(fields)
