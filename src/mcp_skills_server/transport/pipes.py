"""A protocol of lines on stdin and stdout, in an event loop: reading, writing, and when it ends.

A thread that reads stdin cannot be interrupted: after SIGTERM the process would wait for its client. Here both ends are
served by the event loop, which also saves two thread switches a message.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from mcp_skills_server.transport import descriptors
from mcp_skills_server.transport.framing import MAX_LINE, LineBuffer
from mcp_skills_server.transport.scope import Scope, scope

_T = TypeVar("_T")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MOST_UNREAD: Final = 2
"""Chunks of stdin that are read before somebody takes them."""
_MOST_UNSENT: Final = 32 << 20
"""Bytes of answers beyond which no more lines are taken, until the peer has read some."""
_STUCK_S: Final = 0.4
"""For so long a peer that has closed stdin may read nothing while more waits than that."""


class _Unread(NamedTuple):
    """What of a chunk of stdin nobody has taken yet.

    Attributes:
        left: what `judge` left of the line before, None for nothing.
        lines: the lines after it, None at the end of stdin.
    """

    left: Any
    lines: Iterator[bytes | None] | None


class Pipes:
    """The process's stdin and stdout. Make only one; it claims both.

    Args:
        max_line: bytes of a line that is read.

    Attributes:
        max_line: the same.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self._stdin, self._stdout = descriptors.claim()
        self._write = descriptors.writer(self._stdout)
        self._buffer = LineBuffer(max_line)
        self._judge: Callable[[bytes | None], Any] = _itself
        self._unread: deque[_Unread] = deque()
        self._is_watched = False
        self._came: asyncio.Future[None] | None = None
        self._unsent: deque[memoryview | asyncio.Future[None]] = deque()
        self._unsent_bytes = 0
        self._less: asyncio.Future[None] | None = None
        self._broken: OSError | None = None

    async def lines(self) -> AsyncIterator[bytes | None]:
        """The lines until stdin ends, as `LineBuffer.lines`; the last one need not end with a line feed."""
        async for (line,) in self.judged(_itself):
            yield line

    async def judged(self, judge: Callable[[bytes | None], _T | None]) -> AsyncIterator[_T]:
        """What `judge` leaves of the lines, which are those of `lines`. Of one that it is done with it returns None.

        `judge` is called with one line after the other, none of them twice. Where nothing is left of all before it, it
        is called as soon as the line is there, by the event loop and not in a task: to wake one takes as long as most
        answers. So it must not wait, and call nothing that wants a task. What it raises is raised here.

        A peer that reads nothing of what is sent is heard no further: its lines wait, and so does what it writes. Where
        it has closed stdin as well, that is the end.
        """
        self._judge = judge
        try:
            while True:
                left, lines = await self._read()
                if left is not None:
                    yield left
                if self._unsent_bytes > _MOST_UNSENT and not await self._is_read():
                    return
                if lines is None:
                    break
                for line in lines:
                    if (left := judge(line)) is not None:
                        yield left
                    if self._unsent_bytes > _MOST_UNSENT and not await self._is_read():
                        return
        finally:
            self._watch_stdin(False)
        if (last := self._buffer.last_line()) and (left := judge(last)) is not None:
            yield left

    def send_now(self, raw: bytes) -> bool:
        """Write these bytes, after those of earlier calls. Returns whether they are out; `flush` waits for the rest.

        Raises:
            BrokenPipeError: nobody reads them.
        """
        rest = memoryview(raw)
        if not self._unsent:
            taken = self._write(raw)
            if taken == len(raw):  # as nearly always
                return True
            rest = rest[taken:]
            while rest and taken and (taken := self._write(rest)):
                rest = rest[taken:]
            if not rest:
                return True
            try:
                asyncio.get_running_loop().add_writer(self._stdout, self._send_rest)
            except (PermissionError, NotImplementedError):  # what the event loop cannot wait for
                descriptors.write(self._stdout, rest)
                return True
        elif self._broken is not None:
            raise self._broken
        self._unsent.append(rest)
        self._unsent_bytes += len(rest)
        return False

    async def flush(self) -> None:
        """Wait until everything is out that was to be written by now.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        if self._unsent:
            out = asyncio.get_running_loop().create_future()
            self._unsent.append(out)
            await out

    async def send(self, raw: bytes) -> None:
        """Write these bytes, after those of earlier calls, and wait until they are out.

        Raises:
            BrokenPipeError: nobody reads them.
        """
        if not self.send_now(raw):
            await self.flush()

    async def serve(
        self,
        work: Callable[[], Awaitable[None]],
        before_signalled: Callable[[], Awaitable[None]] | None = None,
        *,
        within: Scope | None = None,
    ) -> None:
        """Run `work` until it is done, SIGTERM or SIGINT comes, or nobody reads stdout any more.

        Args:
            work: what reads and sends. It may raise BrokenPipeError, alone or in a group.
            before_signalled: awaited after a signal, before `work` is cancelled.
            within: the scope that `work` is run in, and cancelled by; by default one of anyio.
        """
        work_scope = scope(shields=True) if within is None else within
        loop = asyncio.get_running_loop()
        ending: asyncio.Task[None] | None = None

        async def end() -> None:
            if before_signalled is not None:
                await before_signalled()
            work_scope.cancel()

        def end_on_signal() -> None:
            nonlocal ending
            ending = ending or loop.create_task(end())

        def watch_reader() -> None:
            if descriptors.wait_for_hang_up(self._stdout):
                with suppress(RuntimeError):  # the loop is closed: it has ended already
                    loop.call_soon_threadsafe(work_scope.cancel)

        # Not one of the event loop's threads: it waits as long as the process lives, and nobody may wait for it.
        threading.Thread(target=watch_reader, name="stdout-reader", daemon=True).start()
        for number in _SIGNALS:
            loop.add_signal_handler(number, end_on_signal)
        try:
            with work_scope:
                try:
                    await work()
                except* BrokenPipeError:
                    pass
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            if ending is not None:
                ending.cancel()

    async def _is_read(self) -> bool:
        """Wait until the peer has read enough to be heard again; whether it has, or may yet."""
        while (unsent := self._unsent_bytes) > _MOST_UNSENT and self._broken is None:
            self._less = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._less], timeout=_STUCK_S)
            if self._unsent_bytes == unsent and descriptors.has_hung_up(self._stdin):
                return False
        return True

    async def _read(self) -> _Unread:
        if not self._unread:
            if not self._watch_stdin(True):
                await asyncio.sleep(0)
                return self._next()
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        return self._unread.popleft()

    def _next(self) -> _Unread:
        chunk = descriptors.read(self._stdin)
        return _Unread(None, self._buffer.lines(chunk) if chunk else None)

    def _read_now(self) -> None:
        found = self._next()
        came = self._came
        if came is None or came.done():  # what was left before has its turn first
            self._unread.append(found)
            if len(self._unread) >= _MOST_UNREAD or found.lines is None:
                self._watch_stdin(False)
            return
        if found.lines is None:
            self._watch_stdin(False)
        else:
            try:
                for line in found.lines:
                    left = self._judge(line)
                    if left is not None or self._unsent_bytes > _MOST_UNSENT:
                        found = _Unread(left, found.lines)
                        break
                else:
                    return
            except Exception as error:
                came.set_exception(error)
                return
        self._unread.append(found)
        came.set_result(None)

    def _watch_stdin(self, wanted: bool) -> bool:
        """Have the event loop watch stdin, or not. Returns whether it does; a regular file is always ready."""
        if wanted != self._is_watched:
            loop = asyncio.get_running_loop()
            try:
                self._is_watched = wanted
                if wanted:
                    loop.add_reader(self._stdin, self._read_now)
                else:
                    loop.remove_reader(self._stdin)
            except PermissionError:
                self._is_watched = False
        return self._is_watched

    def _send_rest(self) -> None:
        """Write what stdout takes now, as the event loop found that it takes something."""
        try:
            while self._unsent:
                first = self._unsent[0]
                if isinstance(first, memoryview):
                    taken = self._write(first)
                    self._unsent_bytes -= taken
                    if taken < len(first):
                        self._unsent[0] = first[taken:]
                        return
                elif not first.done():
                    first.set_result(None)
                self._unsent.popleft()
        except OSError as error:
            self._broken = error
            for each in self._unsent:
                if isinstance(each, asyncio.Future) and not each.done():
                    each.set_exception(error)
        finally:
            less = self._broken is not None or self._unsent_bytes <= _MOST_UNSENT
            if less and self._less is not None and not self._less.done():
                self._less.set_result(None)
        asyncio.get_running_loop().remove_writer(self._stdout)


def _itself(line: bytes | None) -> tuple[bytes | None]:
    """A line that is wanted whatever it says; it may be None."""
    return (line,)
