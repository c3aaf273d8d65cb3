"""Recent changes of the catalogue, and server-sent event streams that announce the next one.

A stream says that there is something to fetch, and nothing of it: the browser then asks for the
page again, and grants are judged there. While nothing changes a stream costs a line in half a
minute, by which lost clients are found.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import SkillSet, nested_in
from mcp_skills_server.model import Changes, Snapshot, Standing
from mcp_skills_server.runtime.quota import Owner, Quota, QuotaError
from mcp_skills_server.server.entrance import counted
from mcp_skills_server.web.ui.look import Look, reason_left_out, shown_problem

MOST_KEPT: Final = 1000
"""Changes that are kept of all skills together."""
MOST_SHOWN: Final = 200
"""Changes that are shown of one set of skills."""
MOST_STREAMS: Final = 1024
HEARTBEAT_S: Final = 30.0
_MOST_FILES: Final = 5
_PAUSE_S: Final = 0.25
"""Between two lines of one stream, however much changes."""
_RETRY: Final = "retry: 3000\n\n"
_HEARTBEAT: Final = ":\n\n"
_REPLACED: Final = "event: replaced\ndata: 1\n\n"
_TYPE: Final = "text/event-stream"

Stays: TypeAlias = Callable[[], Awaitable[bool]]


class Change(NamedTuple):
    """One skill that a scan found to differ, with some of the files that do, and how many more
    there are.

    `number` is that of the scan: about the milliseconds since 1970, and higher than that of each
    scan before. It does not tell how many skills of others differ.
    """

    kind: Literal["appeared", "changed", "vanished"]
    path: str
    files: tuple[str, ...] = ()
    more: int = 0
    number: int = 0
    time: float = 0.0


def _changes(found: Changes, snapshot: Snapshot) -> Iterator[Change]:
    """Yield what differs by path. A skill of which only skills inside it differ is left out."""
    paths = sorted(found.before.keys() | found.after.keys())
    for path in paths[-MOST_KEPT:]:
        before, after = found.before.get(path), found.after.get(path)
        if after is None:
            yield Change("vanished", path)
        elif before is None:
            yield Change("appeared", path)
        else:
            inside = (
                _differing_inside(path, paths)
                | nested_in(snapshot, before)
                | nested_in(snapshot, after)
            )
            folders = tuple(f"{each}/" for each in inside)
            names = sorted(before.files.keys() | after.files.keys())
            differing = [
                each for each in names if before.files.get(each) is not after.files.get(each)
            ]
            own = [each for each in differing if not each.startswith(folders)]
            if own or not inside:
                yield Change(
                    "changed", path, tuple(own[:_MOST_FILES]), max(0, len(own) - _MOST_FILES)
                )


def _differing_inside(path: str, paths: Sequence[str]) -> set[str]:
    """Return where below a skill others of these sorted paths lie."""
    below = f"{path}/"
    found = takewhile(
        lambda each: each.startswith(below), islice(paths, bisect_left(paths, below), None)
    )
    return {each.removeprefix(below) for each in found}


class Live:
    """The latest changes, as each set of skills has them, and the streams. Any thread may note
    changes.

    One owner may have `share` streams; None for a part of all.
    """

    def __init__(self, share: int | None = None) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[Change, ...] = ()
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
                self.note(_changes(changes, registry.snapshot))

        registry.subscribe(note)

    def note(self, found: Iterable[Change]) -> None:
        """Keep what one scan found, and wake all streams."""
        now = time.time()
        with self._lock:
            number = max(int(now * 1000), self.last_number + 1)
            made = [each._replace(number=number, time=now) for each in found]
            self._kept = (*self._kept, *made)[-MOST_KEPT:]
        if made and self.loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no stream is left
                self.loop.call_soon_threadsafe(self.wake)

    @property
    def last_number(self) -> int:
        """Return the number of the last change of any skill; 0 before the first."""
        return max((each.number for each in self._kept[-1:]), default=0)

    def latest(self, skills: SkillSet) -> list[Change]:
        """Return the changes of a set of skills, those of the last scan first."""
        return [*islice(self._of(skills), MOST_SHOWN)]

    def number(self, skills: SkillSet, after: int = 0, path: str = "") -> int:
        """Return the number of the last change of a set of skills; `after` where there is none
        beyond that.

        With `path` only changes of the skill at this path count.
        """
        return next(
            (each.number for each in self._of(skills, after) if path in ("", each.path)), after
        )

    def _of(self, skills: SkillSet, after: int = 0) -> Iterator[Change]:
        permissions = skills.permissions
        for each in reversed(self._kept):
            if each.number <= after:
                return
            if permissions is None or permissions.reads(each.path):
                yield each

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
        self, skills: SkillSet, owner: Owner, after: int, stays: Stays, path: str = ""
    ) -> ChangeStream:
        """Return a stream of server-sent events: one `change` for whatever happened since the
        change `after`.

        An owner who opens too many has the oldest one ended, with the event `replaced`. A stream
        ends where `stays` says no before a line. With `path` only changes of the skill at this path
        count.

        Raises:
            QuotaError: others have left no place.
        """
        made = ChangeStream(self, skills, after, stays, path)
        for oldest in self._places.claim(made, owner):
            oldest.is_replaced = True
            self.wake()
        return made

    def release(self, stream: ChangeStream) -> None:
        """Leave the place of a stream to others."""
        self._places.release(stream)


class ChangeStream(StreamingResponse):
    """One stream, made by `Live.open`. It leaves its place however the connection ends.

    `is_replaced` tells it to end, since its owner has opened too many after it.
    """

    def __init__(self, live: Live, skills: SkillSet, after: int, stays: Stays, path: str) -> None:
        self._live = live
        self._skills = skills
        self._after = after
        self._stays = stays
        self._path = path
        self.is_replaced = False
        self.lines = self._lines()
        super().__init__(self.lines, media_type=_TYPE, headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self.lines):
                await super().__call__(scope, receive, send)
        finally:
            self._live.release(self)

    async def _lines(self) -> AsyncGenerator[str]:
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
        self._after = max(self._after, looked_at)  # changes of others are not looked through again
        return True


async def page(request: Request, look: Look) -> Response:
    """Return the view, or with `part` in the query nothing but the changes."""
    live, skills = look.site.live, look.snapshot.skills
    changes = live.latest(look.runtime.skill_set)
    there = {each.path for each in changes if each.path in skills}
    left_out: dict[str, str] = {}
    for path in there:
        if skills[path].standing < Standing.VALID:
            reason = reason_left_out(skills[path])
            left_out[path] = "" if reason is None else shown_problem(look, reason).message
    template = "changes.html" if "part" in request.query_params else "live.html"
    number = max((each.number for each in changes), default=0)
    return look.page(
        template, changes=changes, there=there, left_out=left_out, since=live.since, number=number
    )


async def events(request: Request, look: Look) -> Response:
    """Return the stream that says that there are more."""
    if request.method == "HEAD":
        return Response(media_type=_TYPE)
    skills, live = look.runtime.skill_set, look.site.live
    text = request.headers.get("last-event-id") or request.query_params.get("after", "")
    known = live.number(skills)
    if text.isascii() and text.isdigit() and len(text) < 20:
        known = int(text)
    try:
        return live.open(
            skills, counted(request.scope), known, look.stays, request.query_params.get("skill", "")
        )
    except QuotaError as error:
        # What is no stream is not asked for again by a browser.
        return PlainTextResponse(f"{error}\n", 429, {"retry-after": "60"})
