"""Recent changes of the catalogue, and server-sent event streams that announce new ones.

An event says only that something changed. The browser then loads the page again, where grants are
checked. An idle stream sends a heartbeat every 30 seconds, by which lost clients are detected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from itertools import islice
from typing import Final, Literal, NamedTuple

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.quota import Owner, Streams
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import permissions_of
from mcp_skills_server.model import Changes

MAX_KEPT: Final = 1000
"""Changes kept in all."""
MAX_SHOWN: Final = 200
"""Changes shown of one set of skills."""
HEARTBEAT_S: Final = 30.0
_MAX_FILES: Final = 5
_PAUSE_S: Final = 0.25
"""Minimum seconds between two events of one stream (throttling)."""
RETRY: Final = "retry: 3000\n\n"
_HEARTBEAT: Final = ":\n\n"
TYPE: Final = "text/event-stream"


class Change(NamedTuple):
    """A change of one skill in a scan, with some changed files and the number of others.

    `number` is that of the scan: about the milliseconds since 1970, and strictly increasing. It
    does not reveal how many other skills changed.
    """

    kind: Literal["appeared", "changed", "vanished"]
    path: str
    files: tuple[str, ...] = ()
    more: int = 0
    number: int = 0
    time: float = 0.0


def _changes(changes: Changes) -> Iterator[Change]:
    """Yield the changes by path, without skills of which only nested skills differ."""
    paths = sorted(changes.before.keys() | changes.after.keys())
    for path in paths[-MAX_KEPT:]:
        before, after = changes.before.get(path), changes.after.get(path)
        if after is None:
            yield Change("vanished", path)
        elif before is None:
            yield Change("appeared", path)
        else:
            inside = {*before.nested, *after.nested}
            folders = tuple(f"{nested}/" for nested in inside)
            old, new = before.files, after.files
            changed = (name for name in old.keys() | new if old.get(name) != new.get(name))
            own = sorted(name for name in changed if not name.startswith(folders))
            if own or not inside:
                more = max(0, len(own) - _MAX_FILES)
                yield Change("changed", path, tuple(own[:_MAX_FILES]), more)


class Live:
    """Recent changes by set of skills, and their event streams. `note` is thread-safe.

    `streams` counts the open streams, of other protocols too.
    """

    def __init__(self, streams: Streams) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[Change, ...] = ()
        self.streams = streams
        self.loop: asyncio.AbstractEventLoop | None = None
        self.news = anyio.Event()
        self.since = time.time()
        self.is_closing = False

    def follow(self, registry: Registry) -> None:
        """Record changes of the registry from now on, except those of the first scan."""

        def note(changes: Changes) -> None:
            if registry.loaded.is_set():
                self.note(_changes(changes))

        registry.subscribe(note)

    def note(self, changes: Iterable[Change]) -> None:
        """Record the changes of one scan, and wake all streams."""
        now = time.time()
        with self._lock:
            number = max(int(now * 1000), self.last_number + 1)
            made = [change._replace(number=number, time=now) for change in changes]
            self._kept = (*self._kept, *made)[-MAX_KEPT:]
        if made and self.loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no stream is left
                self.loop.call_soon_threadsafe(self.wake)

    @property
    def last_number(self) -> int:
        """Return the number of the last change of any skill; 0 before the first."""
        return max((change.number for change in self._kept[-1:]), default=0)

    def latest(self, skills: SkillSet) -> list[Change]:
        """Return the changes of a set of skills, last scan first."""
        return [*islice(self._of(skills), MAX_SHOWN)]

    def number(self, skills: SkillSet, after: int = 0, path: str = "") -> int:
        """Return the number of the last change of a set, or its skill at `path`; else `after`."""
        numbers = (change.number for change in self._of(skills, after) if path in ("", change.path))
        return next(numbers, after)

    def _of(self, skills: SkillSet, after: int = 0) -> Iterator[Change]:
        permissions = permissions_of(skills)
        for change in reversed(self._kept):
            if change.number <= after:
                return
            if permissions is None or permissions.can_read(change.path):
                yield change

    def wake(self) -> None:
        """Wake all streams. Call this in the event loop."""
        self.news.set()
        self.news = anyio.Event()

    def close(self) -> None:
        """End every stream. Browsers reconnect, if there is a server then."""
        self.is_closing = True
        self.wake()


class ChangeStream(StreamingResponse):
    """A server-sent event stream: one `change` for all changes since `after`.

    A stream ends if `has_access` returns False before an event. With `path` only changes of the
    skill at this path count. However it ends, it no longer counts.

    Raises:
        QuotaError: the owner or the server has too many streams.
    """

    def __init__(
        self,
        live: Live,
        skills: SkillSet,
        owner: Owner | None,
        after: int,
        has_access: Callable[[], Awaitable[bool]],
        *,
        path: str = "",
    ) -> None:
        self._live = live
        self._skills = skills
        self._after = after
        self._has_access = has_access
        self._path = path
        self.lines = self._lines()
        super().__init__(self.lines, media_type=TYPE, headers={"x-accel-buffering": "no"})
        live.streams.open(self, owner)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self.lines):
                await super().__call__(scope, receive, send)
        finally:
            self._live.streams.release(self)

    async def _lines(self) -> AsyncGenerator[str]:
        self._live.loop = asyncio.get_running_loop()
        yield RETRY
        while True:
            with anyio.move_on_after(HEARTBEAT_S):
                while self._is_quiet():
                    await self._live.news.wait()
            if self._live.is_closing or not await self._has_access():
                return
            number = self._live.number(self._skills, self._after, self._path)
            if number == self._after:
                yield _HEARTBEAT
                continue
            self._after = number
            yield f"id: {number}\nevent: change\ndata: {number}\n\n"
            await anyio.sleep(_PAUSE_S)

    def _is_quiet(self) -> bool:
        if self._live.is_closing:
            return False
        looked_at = self._live.last_number
        if self._live.number(self._skills, self._after, self._path) > self._after:
            return False
        self._after = max(self._after, looked_at)  # skip changes of other skills next time
        return True
