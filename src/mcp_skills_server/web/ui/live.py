"""What differs while people look: the latest changes of a set of skills, and streams that say when there is another.

A stream says that there is something to fetch, and nothing of it: whoever hears it asks for the page again, and grants
are judged there. While nothing changes a stream costs a line in half a minute, by which those are found who are gone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import anyio

from mcp_skills_server.catalog.granted import nested_in
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.errors import clipped
from mcp_skills_server.model import Changes, Skill, Snapshot
from mcp_skills_server.runtime.quota import Owner, Quota

MOST_DIFFERENCES: Final = 1000
"""Differences that are kept of all skills together."""
_FILES: Final = 5

Kind: TypeAlias = Literal["appeared", "changed", "vanished"]
HEARTBEAT_S: Final = 30.0
KEPT: Final = 200
"""Changes that are kept of one set of skills."""
MOST_STREAMS: Final = 1024
_PAUSE_S: Final = 0.25
"""Between two lines of one stream, however much changes."""
_IN_SCAN: Final = MOST_DIFFERENCES + 1
"""Numbers that the changes of one scan may take."""
_RETRY: Final = "retry: 3000\n\n"
_HEARTBEAT: Final = ":\n\n"
_REPLACED: Final = "event: replaced\ndata: 1\n\n"


class SkillDifference(NamedTuple):
    """One skill that differs.

    Attributes:
        kind: what happened.
        path: the skill path.
        name: what the skill is or was called, at most 200 characters.
        files: paths of those that differ, some of them where there are many; only of a skill that changed.
        more: how many more there are.
    """

    kind: Kind
    path: str
    name: str
    files: tuple[str, ...] = ()
    more: int = 0


class ScanChanges(NamedTuple):
    """What one scan found.

    Attributes:
        number: about the milliseconds since 1970, and higher than that of each scan before.
        time: when, in seconds since 1970.
        differences: by path; of more than `MOST_DIFFERENCES` the last ones.
    """

    number: int
    time: float
    differences: tuple[SkillDifference, ...]


class Scans:
    """The latest scans that found something. Whoever calls it sees to it that nobody else does meanwhile.

    Args:
        now: seconds since 1970.

    Attributes:
        since: when the first could be, in seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._kept: deque[ScanChanges] = deque()
        self._weight = 0
        self.since = now()

    def latest(self) -> list[ScanChanges]:
        """Return the scans, the last one at the end."""
        return [*self._kept]

    def note(self, changes: Changes, snapshot: Snapshot) -> ScanChanges | None:
        """Keep what a scan found, after which the skills are these; None where that is nothing to show."""
        found, now = _differences(changes, snapshot), self._now()
        if not found:
            return None
        last = self._kept[-1].number if self._kept else 0
        scan = ScanChanges(max(int(now * 1000), last + 1), now, found)
        self._kept.append(scan)
        self._weight += len(scan.differences)
        while self._weight > MOST_DIFFERENCES and len(self._kept) > 1:
            self._weight -= len(self._kept.popleft().differences)
        return scan


def _differences(changes: Changes, snapshot: Snapshot) -> tuple[SkillDifference, ...]:
    paths = sorted(changes.before.keys() | changes.after.keys())
    found = (_difference(path, paths, changes, snapshot) for path in paths[-MOST_DIFFERENCES:])
    return tuple(each for each in found if each is not None)


def _difference(path: str, paths: Sequence[str], changes: Changes, snapshot: Snapshot) -> SkillDifference | None:
    """Return what is different of one of the skills that differ; None where that is about skills inside it alone."""
    before, after = changes.before.get(path), changes.after.get(path)
    if before is None or after is None:
        there = after or before
        name = clipped(there.name if there is not None else path)
        return SkillDifference("vanished" if after is None else "appeared", path, name)
    old, new = before.files, after.files
    files = sorted(each for each in old.keys() | new.keys() if old.get(each) is not new.get(each))
    inside = _inside(before, after, paths, snapshot)
    own = [each for each in files if not each.startswith(inside)]
    if inside and not own:
        return None  # each of those is a difference of its own
    shown = tuple(own[:_FILES])
    return SkillDifference("changed", path, clipped(after.name), shown, len(own) - len(shown))


def _inside(before: Skill, after: Skill, paths: Sequence[str], snapshot: Snapshot) -> tuple[str, ...]:
    """Below which places of a skill other skills are, or were until now. `paths` are those that differ, sorted."""
    below = f"{after.path}/"
    differing = takewhile(lambda each: each.startswith(below), islice(paths, bisect_left(paths, below), None))
    found = {each.removeprefix(below) for each in differing} | nested_in(snapshot, before) | nested_in(snapshot, after)
    return tuple(f"{each}/" for each in found)


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
    what: SkillDifference


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

    def take(self, scan: ScanChanges) -> None:
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
        """Return the changes, the last one first."""
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
        self._places = Quota[ChangeStream]("open live pages", MOST_STREAMS, share)
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

    def _give(self, scan: ScanChanges | None) -> None:
        if scan is not None:
            for feed in [*self._feeds.values()]:
                feed.take(scan)

    def feed(self, skills: SkillSet) -> Feed:
        """Return the changes of a set of skills, also those from before somebody looked at it."""
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

    def open(self, skills: SkillSet, owner: Owner, after: int, stays: Callable[[], Awaitable[bool]]) -> ChangeStream:
        """Return a stream of server-sent events: one `change` for whatever happened since the last one.

        An owner who opens too many has the oldest one ended, with the event `replaced`.

        Args:
            skills: whose changes.
            owner: among whose streams it counts.
            after: the number of the last change that is known.
            stays: asked before each line; where it says no, the stream ends.

        Raises:
            QuotaError: others have left no place.
        """
        made = ChangeStream(self, skills, after, stays)
        for oldest in self._places.claim(made, owner):
            oldest.is_replaced = True
            oldest.feed.wake()
        return made

    def release(self, stream: ChangeStream) -> None:
        """Count a stream no more."""
        self._places.release(stream)


class ChangeStream:
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
