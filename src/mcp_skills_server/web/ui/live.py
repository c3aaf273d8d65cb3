"""The latest changes of a set of skills, and server-sent event streams that announce the next one.

A stream says that there is something to fetch, and nothing of it: the browser then asks for the page again, and grants
are judged there. While nothing changes a stream costs a line in half a minute, by which lost clients are found.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias

import anyio

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import nested_in
from mcp_skills_server.errors import clipped
from mcp_skills_server.model import Changes, Skill, Snapshot
from mcp_skills_server.runtime.quota import Owner, Quota

MOST_DIFFERENCES: Final = 1000
"""Differences that are kept of all skills together."""
_FILES: Final = 5

Kind: TypeAlias = Literal["appeared", "changed", "vanished"]
HEARTBEAT_S: Final = 30.0
KEPT: Final = 200
"""Changes that are shown of one set of skills."""
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
    """The changes that one scan found.

    Attributes:
        number: about the milliseconds since 1970, and higher than that of each scan before.
        time: when, in seconds since 1970.
        differences: by path; of more than `MOST_DIFFERENCES` the last ones.
    """

    number: int
    time: float
    differences: tuple[SkillDifference, ...]


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


class Live:
    """The latest changes, as each set of skills has them, and the streams. Any thread may note changes.

    Args:
        share: streams that one owner may have; None for a part of all.

    Attributes:
        since: when the first change could be, in seconds since 1970.
        loop: runs the streams; None before the first one.
        is_closing: whether all streams are to end.
    """

    def __init__(self, share: int | None = None) -> None:
        self._lock = threading.Lock()
        self._scans: deque[ScanChanges] = deque()
        self._weight = 0
        self._places = Quota[ChangeStream]("open live pages", MOST_STREAMS, share)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._news = anyio.Event()
        self.since = time.time()
        self.is_closing = False

    def __len__(self) -> int:
        """Return how many streams are open."""
        return len(self._places)

    def follow(self, registry: Registry) -> None:
        """Note what differs of these skills from now on. What the first scan finds is no change."""

        def note(changes: Changes) -> None:
            if registry.loaded.is_set():
                self.note(_differences(changes, registry.snapshot))

        registry.subscribe(note)

    def note(self, differences: tuple[SkillDifference, ...]) -> None:
        """Keep what one scan found, and wake all streams."""
        if not differences:
            return
        with self._lock:
            last = self._scans[-1].number if self._scans else 0
            now = time.time()
            self._scans.append(ScanChanges(max(int(now * 1000), last + 1), now, differences))
            self._weight += len(differences)
            while self._weight > MOST_DIFFERENCES and len(self._scans) > 1:
                self._weight -= len(self._scans.popleft().differences)
        if (loop := self.loop) is not None:
            with suppress(RuntimeError):  # the loop is closed: no stream is left
                loop.call_soon_threadsafe(self.wake)

    def latest(self, skills: SkillSet) -> list[Change]:
        """Return the changes of a set of skills, the last one first."""
        return [*islice(self._changes(skills), KEPT)]

    def number(self, skills: SkillSet, after: int = 0, path: str = "") -> int:
        """Return the number of the last change of a set of skills; `after` where there is none beyond that.

        With `path` only changes of the skill at this path count.
        """
        last = next((each for each in self._changes(skills, after) if path in ("", each.what.path)), None)
        if last is None:
            return after
        return max(after, last.number)

    @property
    def last_number(self) -> int:
        """Return a number that no change of any skills until now is beyond."""
        with self._lock:
            return (self._scans[-1].number + 1) * _IN_SCAN - 1 if self._scans else 0

    def _changes(self, skills: SkillSet, after: int = 0) -> Iterator[Change]:
        """Yield the changes of a set of skills, the last one first, without those of scans up to this number."""
        permissions = skills.permissions
        with self._lock:
            scans = [*self._scans]
        for scan in reversed(scans):
            if scan.number * _IN_SCAN + len(scan.differences) <= after:
                return
            found = [each for each in scan.differences if permissions is None or permissions.reads(each.path)]
            for place in range(len(found), 0, -1):
                yield Change(scan.number * _IN_SCAN + place, scan.time, found[place - 1])

    async def wait(self) -> None:
        """Wait until a change is noted, or until `wake`."""
        await self._news.wait()

    def wake(self) -> None:
        """Wake all streams, from the event loop."""
        self._news.set()
        self._news = anyio.Event()

    def close(self) -> None:
        """End every stream. A browser opens its own anew, if there is a server then."""
        self.is_closing = True
        self.wake()

    def open(
        self, skills: SkillSet, owner: Owner, after: int, stays: Callable[[], Awaitable[bool]], path: str = ""
    ) -> ChangeStream:
        """Return a stream of server-sent events: one `change` for whatever happened since the last one.

        An owner who opens too many has the oldest one ended, with the event `replaced`.

        Args:
            skills: whose changes.
            owner: among whose streams it counts.
            after: the number of the last change that is known.
            stays: asked before each line; where it says no, the stream ends.
            path: of the one skill whose changes count; "" for all.

        Raises:
            QuotaError: others have left no place.
        """
        made = ChangeStream(self, skills, after, stays, path)
        for oldest in self._places.claim(made, owner):
            oldest.is_replaced = True
            self.wake()
        return made

    def release(self, stream: ChangeStream) -> None:
        """Count a stream no more."""
        self._places.release(stream)


class ChangeStream:
    """One stream; made by `Live.open`, and closed by what sends its lines.

    Attributes:
        is_replaced: whether it has to end, since its owner has opened too many after it.
    """

    def __init__(
        self, live: Live, skills: SkillSet, after: int, stays: Callable[[], Awaitable[bool]], path: str
    ) -> None:
        self._live = live
        self._skills = skills
        self._after = after
        self._stays = stays
        self._path = path
        self.is_replaced = False

    def close(self) -> None:
        """Leave its place to others."""
        self._live.release(self)

    async def lines(self) -> AsyncGenerator[str]:
        """Yield what is sent, event by event."""
        self._live.loop = asyncio.get_running_loop()
        yield _RETRY
        while True:
            with anyio.move_on_after(HEARTBEAT_S):
                while self._is_quiet():
                    await self._live.wait()
            if self.is_replaced:
                yield _REPLACED
                return
            if self._live.is_closing or not await self._stays():
                return
            number = self._live.number(self._skills, self._after, self._path)
            if number == self._after:
                yield _HEARTBEAT
                continue
            self._after = number
            yield f"id: {number}\nevent: change\ndata: {number}\n\n"
            await anyio.sleep(_PAUSE_S)

    def _is_quiet(self) -> bool:
        if self.is_replaced or self._live.is_closing:
            return False
        looked_at = self._live.last_number
        if self._live.number(self._skills, self._after, self._path) > self._after:
            return False
        self._after = max(self._after, looked_at)
        return True
