"""One message in, one answer out, whatever carries them: JSON-RPC 2.0 with batches over the method
table.

Every message has a defined answer, and a notification has none. What a batch may ask for is bounded
in number, and what it may be answered in bytes. A bug is -32603 for the client and a traceback in
the log.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.lowlevel

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.rpc import messages
from mcp_skills_server.rpc.messages import MAX_BATCH, CallError
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.runtime.quota import Owner
from mcp_skills_server.telemetry import events
from mcp_skills_server.transport import Pipes

logger = logging.getLogger(__name__)

MAX_MESSAGE: Final = 8 << 20
"""Bytes of a message."""
MAX_ANSWERS: Final = 8 << 20
"""Bytes of answers in one batch; what comes after is refused."""
_AT_ONCE: Final = 32
"""Messages that are being answered; a line behind them waits to be read."""


class Rpc:
    """Answers messages over a method table, each of at most `max_message` bytes."""

    def __init__(self, methods: Methods, max_message: int = MAX_MESSAGE) -> None:
        self.methods = methods
        self.max_message = max_message

    async def answer(
        self,
        raw: bytes,
        owner: Owner = None,
        principal: Principal | None = None,
        address: str | None = None,
    ) -> bytes | None:
        """Return the answer to a message, a call or a batch of them; None where none is wanted.

        `owner` is among whose things counts what it leaves here; `address` is None for a pipe.
        """
        if len(raw) > self.max_message:
            return self.too_long()
        try:
            message = messages.parse(raw)
        except CallError as error:
            return _error(None, error)
        if not isinstance(message, list):
            return await self._one(message, owner, principal, address)
        batch = cast(list[Any], message)
        if not batch or len(batch) > MAX_BATCH:
            reason = "the batch is empty"
            if batch:
                reason = f"at most {MAX_BATCH} calls are taken at once"
            return _error(None, CallError(f"Invalid Request: {reason}", code=INVALID_REQUEST))
        answers: list[bytes] = []
        size = 0
        for each in batch:
            await anyio.lowlevel.checkpoint()  # a batch must not keep the others waiting
            if size > MAX_ANSWERS:
                answer = _over(each)
            else:
                answer = await self._one(each, owner, principal, address)
            if answer is not None:
                answers.append(answer)
                size += len(answer)
        if not answers:
            return None
        return b"[" + b",".join(answers) + b"]"

    @staticmethod
    def calls_in(raw: bytes) -> int:
        """Return how many calls a message holds: of a batch all of them, at most as many as are
        taken at once."""
        if not raw.lstrip().startswith(b"["):
            return 1
        try:
            message = messages.parse(raw)
        except CallError:
            return 1
        if not isinstance(message, list):
            return 1
        return max(1, min(len(cast(list[Any], message)), MAX_BATCH))

    def too_long(self) -> bytes:
        """Return the answer to a message that was not read to its end."""
        message = f"Invalid Request: the message has more than {self.max_message:,} bytes"
        return _error(None, CallError(message, code=INVALID_REQUEST))

    async def _one(
        self, message: object, owner: Owner, principal: Principal | None, address: str | None
    ) -> bytes | None:
        try:
            call = messages.call(message)
        except CallError as error:
            return _error(messages.id_of(message), error)
        try:
            with events.observe(
                "skills-protocol", call.method, principal=principal, address=address, id_=call.id
            ):
                result = await self.methods.call(call.method, call.params, owner, principal)
            answer = jsonrpc.dump(messages.result(call.id, result))
        except CallError as error:
            answer = _error(call.id, error)
        except Exception:
            logger.exception("%r failed", call.method[:100], extra=REPEATS)
            answer = _error(call.id, CallError("Internal error", code=INTERNAL_ERROR))
        if not call.answered:
            return None
        return answer


def _error(id_: jsonrpc.Id, error: CallError) -> bytes:
    return jsonrpc.dump(jsonrpc.error(id_, error.code, str(error), error.data))


def _over(message: object) -> bytes | None:
    if not messages.wants_answer(message):
        return None
    reason = "the answers to this batch are too long already; ask for this by itself"
    return _error(messages.id_of(message), CallError(reason, code=INTERNAL_ERROR))


async def serve(rpc: Rpc) -> None:
    """Answer lines until stdin ends, stdout is closed, or SIGTERM or SIGINT arrives."""
    pipes = Pipes(rpc.max_message)
    await pipes.serve(partial(_answer_lines, rpc, pipes))


async def _answer_lines(rpc: Rpc, pipes: Pipes) -> None:
    places = anyio.Semaphore(_AT_ONCE)
    async with anyio.create_task_group() as tasks:

        async def work(line: bytes | None) -> None:
            try:
                answer = rpc.too_long() if line is None else await rpc.answer(line)
                if answer is not None:
                    await pipes.send(answer + b"\n")
            finally:
                places.release()

        async for line in pipes.lines():
            await places.acquire()
            tasks.start_soon(work, line)
