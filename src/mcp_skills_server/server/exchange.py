"""Messages between a pipe and the SDK: judged on the way in, and each request remembered until it has its answer.

It stands in place of the SDK's own stdio transport, which says nothing to a message that it cannot read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from mcp_skills_server.server.message_lines import Lines, MessageLines
from mcp_skills_server.server.messages import Id, Message


class Exchange:
    """One client at the other end of a pipe.

    Args:
        lines: where its messages come from and go to.
    """

    def __init__(self, lines: Lines) -> None:
        self._messages = MessageLines(lines)

    async def read(self, inward: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand on what comes until stdin ends. What cannot be handed on is answered here.

        Raises:
            BrokenPipeError: nobody reads the answers.
        """
        async for message in self._messages.received(self._handed_on):
            await inward.send(message)

    async def write(self, outward: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send what the SDK has to say until it has no more.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        async for each in outward:
            message = each.message
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
                self._messages.end(message.id)
            await self._messages.send(message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def settle(self, seconds: float) -> None:
        """Wait until every request has its answer, for so long at the most."""
        await self._messages.settle(seconds)

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
            self._messages.end(id_)

        return forget
