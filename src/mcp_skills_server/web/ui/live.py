"""What differs while people look: the latest changes of a set of skills, and streams that say when there is another.

A stream says that there is something to fetch, and nothing of it: whoever hears it asks for the page again, and grants
are judged there. While nothing changes a stream costs a line in half a minute, by which those are found who are gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import anyio

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.model import Changes
from mcp_skills_server.runtime.quota import Owner, Quota
from mcp_skills_server.web.ui.changes import MOST, Difference, Scan, Scans

HEARTBEAT_S: Final = 30.0
KEPT: Final = 200
"""Changes that are kept of one set of skills."""
MOST_STREAMS: Final = 1024
_PAUSE_S: Final = 0.25
"""Between two lines of one stream, however much changes."""
_IN_SCAN: Final = MOST + 1
"""Numbers that the changes of one scan may take."""
_RETRY: Final = "retry: 3000\n\n"
_HEARTBEAT: Final = ":\n\n"
_REPLACED: Final = "event: replaced\ndata: 1\n\n"


class Change(NamedTuple):
    """One skill that differs, as one set of skills has it.

    Attributes:
        number: a change has a higher one than those before it. It says when, and not how many there were of skills
            that are not of this set.
        time: seconds since 1970.
        what: the difference.
    """

    number: int
    time: float
    what: Difference


class Feed:
    """The latest changes of one set of skills. Any thread may have it take some; the rest is for one event loop.

    Args:
        reads: whether the skill of a path is of this set.
    """

    def __init__(self, reads: Callable[[str], bool] = lambda _: True) -> None:
        self._reads = reads
        self._lock = threading.Lock()
        self._changes: deque[Change] = deque(maxlen=KEPT)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[anyio.Event] = set()
        self.number = 0
        """Of the last change."""

    def take(self, scan: Scan) -> None:
        """Keep what a scan found of these skills, and wake who waits."""
        found = [each for each in scan.differences if self._reads(each.path)]
        if not found:
            return
        with self._lock:
            first = scan.number * _IN_SCAN
            self._changes.extend(Change(first + at, scan.time, each) for at, each in enumerate(found, 1))
            self.number = first + len(found)
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody looks any more
                loop.call_soon_threadsafe(self.wake)

    def latest(self) -> list[Change]:
        """The changes, the last one first."""
        with self._lock:
            return [*reversed(self._changes)]

    async def wait(self, after: int) -> None:
        """Wait until there is a change beyond this number, or until `wake`."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self.number > after:
                return
        woken = anyio.Event()
        self._waiting.add(woken)
        try:
            await woken.wait()
        finally:
            self._waiting.discard(woken)

    def wake(self) -> None:
        """Have all go on that wait."""
        for each in self._waiting:
            each.set()


class Live:
    """The feeds of all sets of skills that somebody looks at, and the streams.

    Args:
        share: streams that one owner may have; None for a part of all.
    """

    def __init__(self, share: int | None = None) -> None:
        self._feeds: WeakKeyDictionary[SkillSet, Feed] = WeakKeyDictionary()
        self._scans = Scans()
        self._lock = threading.Lock()
        self._places = Quota[Stream]("open live pages", MOST_STREAMS, share)
        self.is_closing = False
        """Whether all streams are to end."""

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._places)

    @property
    def since(self) -> float:
        """When the first change could be, in seconds since 1970."""
        return self._scans.since

    def follow(self, registry: Registry) -> None:
        """Take what differs of these skills from now on. What the first scan finds is no change."""

        def note(changes: Changes) -> None:
            if registry.loaded.is_set():
                with self._lock:
                    self._give(self._scans.note(changes, registry.snapshot))

        registry.subscribe(note)

    def _give(self, scan: Scan | None) -> None:
        if scan is not None:
            for feed in [*self._feeds.values()]:
                feed.take(scan)

    def feed(self, skills: SkillSet) -> Feed:
        """The changes of a set of skills, also those from before somebody looked at it."""
        with self._lock:
            found = self._feeds.get(skills)
            if found is None:
                permissions = skills.permissions
                found = self._feeds[skills] = Feed() if permissions is None else Feed(permissions.reads)
                for scan in self._scans.latest():
                    found.take(scan)
            return found

    def close(self) -> None:
        """End every stream. A browser opens its own anew, if there is a server then."""
        self.is_closing = True
        for feed in [*self._feeds.values()]:
            feed.wake()

    def open(self, skills: SkillSet, owner: Owner, after: int, stays: Callable[[], Awaitable[bool]]) -> Stream:
        """A stream of server-sent events: one `change` for whatever happened since the last one.

        An owner who opens too many has the oldest one ended, with the event `replaced`.

        Args:
            skills: whose changes.
            owner: among whose streams it counts.
            after: the number of the last change that is known.
            stays: asked before each line; where it says no, the stream ends.

        Raises:
            QuotaError: others have left no place.
        """
        made = Stream(self, skills, after, stays)
        for oldest in self._places.claim(made, owner):
            oldest.is_replaced = True
            oldest.feed.wake()
        return made

    def release(self, stream: Stream) -> None:
        """Count a stream no more."""
        self._places.release(stream)


class Stream:
    """One stream; made by `Live.open`, and closed by whoever sends its lines.

    Attributes:
        feed: whose changes it tells of.
        is_replaced: whether it has to end, since its owner has opened too many after it.
    """

    def __init__(self, live: Live, skills: SkillSet, after: int, stays: Callable[[], Awaitable[bool]]) -> None:
        self._live = live
        self._skills = skills  # which is followed for as long as somebody has it
        self._after = after
        self._stays = stays
        self.feed = live.feed(skills)
        self.is_replaced = False

    def close(self) -> None:
        """Leave its place to others."""
        self._live.release(self)

    async def lines(self) -> AsyncGenerator[str]:
        """What is sent, event by event."""
        yield _RETRY
        while True:
            if not (self.is_replaced or self._live.is_closing):
                with anyio.move_on_after(HEARTBEAT_S):
                    await self.feed.wait(self._after)
            if self.is_replaced:
                yield _REPLACED
                return
            if self._live.is_closing or not await self._stays():
                return
            if self.feed.number == self._after:
                yield _HEARTBEAT
                continue
            self._after = self.feed.number
            yield f"id: {self._after}\nevent: change\ndata: {self._after}\n\n"
            await anyio.sleep(_PAUSE_S)
