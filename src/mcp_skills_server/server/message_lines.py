"""Messages of one client at the other end of a pipe: judged on the way in, each request remembered until its answer.

Both fronts stand on it, so that they refuse alike, and end alike.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.server.messages import Id, Message, Refusal, UnderWay, duplicate, judge, too_long

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Lines(Protocol):
    """Where messages come from and go to; `transport.pipes.Pipes` is one."""

    max_line: int

    def judged(self, judge: Callable[[bytes | None], _T | None]) -> AsyncIterator[_T]:
        """What `judge` leaves of the lines until the client has no more to say; it gets None for one too long."""
        ...

    def send_now(self, raw: bytes) -> bool:
        """Write these bytes, after those of earlier calls; returns whether they are out."""
        ...

    async def flush(self) -> None:
        """Wait until everything is out that was to be written by now."""
        ...


class MessageLines:
    """What a client says and is answered.

    Args:
        lines: where its messages come from and go to.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._under_way = UnderWay()
        self._all_answered: asyncio.Event | None = None

    async def received(
        self, take: Callable[[Message], _T | None], repeats: Callable[[bytes], bool] | None = None
    ) -> AsyncIterator[_T]:
        """What `take` leaves of what comes until the client has no more to say; None is for what it is done with.

        What cannot be handed on is answered here. Neither callable may wait, or count on a task.

        Args:
            take: called with each message that can be handed on. A request of which it leaves nothing has its answer.
            repeats: called with each line before it is judged; returns whether it is done with it.

        Raises:
            BrokenPipeError: nobody reads the answers.
        """

        def judged(line: bytes | None) -> Refusal | _T | None:
            if repeats is not None and line is not None and repeats(line):
                return None
            found = too_long(self._lines.max_line) if line is None else judge(line)
            if isinstance(found, Refusal):
                return found
            if found.kind != "request":
                return take(found)
            if under_way and found.id in under_way:
                return duplicate(found.id)
            left = take(found)
            if left is not None:  # nobody can ask for what is answered by now, and most is
                under_way.add(found.id)
            return left

        under_way = self._under_way
        async for left in self._lines.judged(judged):
            if isinstance(left, Refusal):
                logger.warning("refused a message: %s", left.message, extra=REPEATS)
                await self.send(left.answer)
            else:
                yield left

    def is_under_way(self, id_: Id) -> bool:
        """Whether a request of this id has no answer yet."""
        return id_ in self._under_way

    def end(self, id_: Id) -> None:
        """A request has its answer, or will get none: the client may use its id again. Call it before `send`."""
        self._under_way.end(id_)
        if self._all_answered is not None and not self._under_way:
            self._all_answered.set()

    def send_now(self, *parts: bytes) -> bool:
        """Send a message, after those before it. Returns whether it is out; what is not goes out as the client reads.

        Args:
            parts: of its bytes, in order.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        return self._lines.send_now(b"".join((*parts, b"\n")))  # one copy: answers are large

    async def send(self, message: bytes) -> None:
        """Send a message and wait until it is out.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        if not self.send_now(message):
            await self._lines.flush()

    async def settle(self, seconds: float) -> None:
        """Wait until every request has its answer and everything is out, for so long at the most."""
        with suppress(BrokenPipeError, TimeoutError):
            async with asyncio.timeout(seconds):
                while self._under_way:
                    self._all_answered = asyncio.Event()
                    await self._all_answered.wait()
                await self._lines.flush()
