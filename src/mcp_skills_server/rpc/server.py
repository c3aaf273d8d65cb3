"""JSON-RPC 2.0 server of the Skills Protocol, with batches, independent of the transport.

Each call gets one response, a notification none. Batches are bounded by number of calls and bytes
of responses. A bug is -32603 for the client and a traceback in the log.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.lowlevel

from mcp_skills_server.access.quota import LOCAL_REQUESTER, Requester
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.rpc import messages
from mcp_skills_server.rpc.messages import MAX_BATCH, CallError
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.telemetry import events
from mcp_skills_server.transport import Pipes

logger = logging.getLogger(__name__)

MAX_MESSAGE: Final = 8 << 20
"""The maximum size of a message, in bytes."""
MAX_ANSWERS: Final = 8 << 20
"""The response bytes of a batch, after which its remaining calls are refused."""
_MAX_AT_ONCE: Final = 32
"""The most concurrent messages; further lines wait unread (backpressure)."""


class Rpc:
    """The server over a method table; transports refuse messages over `max_message` bytes."""

    def __init__(self, methods: Methods, max_message: int = MAX_MESSAGE) -> None:
        self.methods = methods
        self.max_message = max_message

    async def answer(self, raw: bytes, client: Requester = LOCAL_REQUESTER) -> bytes | None:
        """Return the response to a call or a batch, or None if there are only notifications."""
        try:
            message = messages.parse(raw)
        except CallError as error:
            return _error(None, error)
        if not isinstance(message, list):
            return await self._answer_call(message, client)
        batch = cast(list[Any], message)
        if not batch or len(batch) > MAX_BATCH:
            reason = f"Invalid Request: a batch has 1 to {MAX_BATCH} calls"
            return _error(None, CallError(reason, code=INVALID_REQUEST))
        answers: list[bytes] = []
        size = 0
        for member in batch:
            await anyio.lowlevel.checkpoint()  # be fair to concurrent messages
            is_over = size > MAX_ANSWERS
            answer = await self._answer_call(member, client, is_over=is_over)
            if answer is not None:
                answers.append(answer)
                size += len(answer)
        if not answers:
            return None
        return b"[" + b",".join(answers) + b"]"

    @staticmethod
    def calls_in(raw: bytes) -> int:
        """Return the number of calls in a message, at most `MAX_BATCH`."""
        message: object = None
        if raw.lstrip().startswith(b"["):
            with suppress(CallError):
                message = messages.parse(raw)
        if not isinstance(message, list):
            return 1
        return max(1, min(len(cast(list[Any], message)), MAX_BATCH))

    def too_long(self) -> bytes:
        """Return the error response to a message that exceeds `max_message`."""
        message = f"Invalid Request: the message has more than {self.max_message:,} bytes"
        return _error(None, CallError(message, code=INVALID_REQUEST))

    async def _answer_call(
        self, message: object, client: Requester, *, is_over: bool = False
    ) -> bytes | None:
        """Return the response to a call, an error if those to its batch `is_over` the limit."""
        try:
            call = messages.parse_call(message)
        except CallError as error:
            return _error(messages.id_of(message), error)
        if call is None:
            return None
        try:
            if is_over:
                reason = (
                    "the responses to this batch are already too long; send this call on its own"
                )
                raise CallError(reason, code=INTERNAL_ERROR)
            trace = events.trace_of(call.method, id_=call.id)
            principal, address = client.principal, client.address
            with events.Request(
                "skills-protocol", call.method, principal=principal, address=address, trace=trace
            ) as request:
                result = await self.methods.call(call.method, call.params, client)
                if result.get("status") == "failed":
                    request.outcome = "refused"  # as for a tool's result with `isError`
            answer = jsonrpc.dump({"jsonrpc": "2.0", "id": call.id, "result": result})
        except CallError as error:
            answer = _error(call.id, error)
        except Exception:
            logger.exception("%r failed", call.method[:100], extra=REPEATS)
            answer = _error(call.id, CallError("Internal error", code=INTERNAL_ERROR))
        if call.wants_response:
            return answer
        return None


def _error(id_: jsonrpc.Id, error: CallError) -> bytes:
    return jsonrpc.dump(jsonrpc.error(id_, error.code, str(error), error.data))


async def serve(rpc: Rpc) -> None:
    """Serve lines until stdin ends, stdout is closed, or SIGTERM or SIGINT arrives."""
    pipes = Pipes(rpc.max_message)
    await pipes.serve(partial(_answer_lines, rpc, pipes))


async def _answer_lines(rpc: Rpc, pipes: Pipes) -> None:
    slots = anyio.Semaphore(_MAX_AT_ONCE)
    async with anyio.create_task_group() as tasks:

        async def work(line: bytes | None) -> None:
            try:
                answer = rpc.too_long() if line is None else await rpc.answer(line)
                if answer is not None:
                    await pipes.send(answer + b"\n")
            finally:
                slots.release()

        async for line in pipes.lines():
            await slots.acquire()
            tasks.start_soon(work, line)
