"""Messages between a pipe and the SDK: judged on the way in, and each request remembered until it has its answer.

It stands in place of the SDK's own stdio transport, which says nothing to a message that it cannot read.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.messages import Id, Message, Refusal, UnderWay, judge, too_long
from mcp_skills_server.transport.pipes import Pipes

logger = logging.getLogger(__name__)

_END: Final = b"\n"


class Exchange:
    """One client at the other end of a pipe.

    Args:
        pipes: where its messages come from and go to.
    """

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._under_way = UnderWay()
        self._sending = 0
        self._changed = anyio.Event()

    async def read(self, inward: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand on what comes until stdin ends. What cannot be handed on is answered here.

        Raises:
            BrokenPipeError: nobody reads the answers.
        """
        async for line in self._pipes.lines():
            found = too_long(self._pipes.max_line) if line is None else judge(line)
            if isinstance(found, Message) and found.kind == "request":
                found = self._under_way.begin(found.id) or found
            if isinstance(found, Refusal):
                logger.warning("refused a message: %s", found.message, extra=REPEATS)
                await self._send(found.answer + _END)
            else:
                await inward.send(self._handed_on(found))

    async def write(self, outward: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send what the SDK has to say until it has no more.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        async for each in outward:
            message = each.message
            # Its id is free from here on: the client may use it again as soon as it has read the answer.
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
                self._under_way.end(message.id)
            await self._send(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + _END)

    async def settle(self, seconds: float) -> None:
        """Wait until every request has its answer, for so long at the most."""
        with anyio.move_on_after(seconds):
            while self._under_way or self._sending:
                self._changed = anyio.Event()
                await self._changed.wait()

    async def _send(self, raw: bytes) -> None:
        self._sending += 1
        try:
            await self._pipes.send(raw)
        finally:
            self._sending -= 1
            self._changed.set()

    def _handed_on(self, message: Message) -> SessionMessage:
        fields = message.fields
        if message.kind == "request":
            metadata = ServerMessageMetadata(on_request_unanswered=self._forget(message.id))
            return SessionMessage(types.JSONRPCRequest.model_validate(fields), metadata)
        if message.kind == "notification":
            return SessionMessage(types.JSONRPCNotification.model_validate(fields))
        kind = types.JSONRPCError if "error" in fields else types.JSONRPCResponse
        return SessionMessage(kind.model_validate(fields))

    def _forget(self, id_: Id) -> Callable[[], Awaitable[None]]:
        """What ends a request that gets no answer, because the client took it back."""

        async def forget() -> None:
            self._under_way.end(id_)
            self._changed.set()

        return forget
