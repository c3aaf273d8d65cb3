"""Keep what one source brings in service: when to ask, what to do where it fails, and what the operator hears.

What fails leaves the last good copy in service. The registry's watch sees what changes, so that clients are notified as
of any edit.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import anyio
from anyio import to_thread

from mcp_skills_server.codes import problem
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.sources.faults import RewrittenError, SourceError, UnacceptableError, UnreachableError
from mcp_skills_server.sources.source import Pace, Revision, Source
from mcp_skills_server.sources.store import Store, point_link
from mcp_skills_server.sources.urls import relative_to_site

logger = logging.getLogger(__name__)

Note: TypeAlias = Callable[[str, tuple[Problem, ...]], object]
"""Takes the revision that is served and what is wrong with it, in another thread."""

_SOONEST_S: Final = 1.0
"""Between two looks that somebody asked for."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """How it stands with a root that is fetched.

    Attributes:
        name: its origin, without what may be a secret.
        ready: it has answered once, or a copy of it was kept.
        trouble: why it could not be fetched the last time, in one line; None if it could. Where it is not ready there
            always is one.
        revision: what is served; "" where it is not known.
        looked: when the last look ended, in seconds since 1970; None before the first.
        next_look: when the next one begins; None where none is planned, as while one is under way.
        current: when the last look that succeeded ended, in seconds since 1970; None before the first.
    """

    name: str
    ready: bool
    trouble: str | None
    revision: str = ""
    looked: float | None = None
    next_look: float | None = None
    current: float | None = None


class Follower:
    """One source in service. Its methods are called one at a time, `state` from any thread.

    Args:
        source: what is followed.
        store: where its trees go.
        sleep: waits for seconds.
    """

    def __init__(self, source: Source, store: Store, sleep: Callable[[float], Awaitable[object]] = anyio.sleep) -> None:
        self.source = source
        self.link: Path | None = None
        """The folder that is served in place of the source's own, as a link to it: `switch` moves it."""
        self.arrived: Callable[[str], object] = str
        """Called in another thread with the folder when it came for the first time; it is ready only after that."""
        self.note: Note | None = None
        """Takes revision and problems when one is another; without it problems are lines of the log."""
        self._store = store
        self._sleep = sleep
        self._served = ""
        self._refused: tuple[str, UnacceptableError] | None = None
        self._reported: tuple[str, ...] = ()
        self._problems: tuple[Problem, ...] = ()
        """What is wrong with the tree that is served."""
        self._noted: tuple[str, tuple[Problem, ...]] = "", ()
        self._trouble: str | None = None
        self._ready = self.has_copy
        self.read_once = threading.Event()
        """Set when there is a copy, or the first attempt to get one has failed."""
        if self._ready:
            self.read_once.set()
        self._looked: float | None = None
        self._next_look: float | None = None
        self._current: float | None = None
        self._waiting: anyio.CancelScope | None = None
        self._asked = False
        self._looked_at: float | None = None
        """When a look that somebody asked for last began, by the clock of the event loop."""

    @property
    def name(self) -> str:
        """The origin for people, not longer than a line."""
        return clipped(printable(self.source.origin))

    def reason(self, error: SourceError | UsageError) -> str:
        """Return why it cannot be had, as it stands behind the name."""
        return relative_to_site(self.source.origin, str(error))

    @property
    def path(self) -> Path:
        """The folder that is served."""
        return self.link or self.source.place or self._store.root

    @property
    def revision(self) -> str:
        """The revision that is served; "" where nothing was fetched yet, or not all of it."""
        return self._served

    @property
    def has_copy(self) -> bool:
        """Whether there are skills, fetched now or before."""
        try:
            return any(not each.name.startswith(".") for each in self.path.iterdir())
        except OSError:
            return False

    @property
    def state(self) -> SourceState:
        """How it stands."""
        trouble = self._trouble if self._ready else self._trouble or "not fetched yet"
        return SourceState(
            self.source.origin,
            self._ready,
            trouble,
            self._served,
            looked=self._looked,
            next_look=self._next_look,
            current=self._current,
        )

    async def refresh(self, *, anew: bool = False) -> float:
        """Serve what the source has now; with `anew` whatever it said about how long that holds.

        Returns:
            In how many seconds it makes sense to ask again.

        Raises:
            SourceError: it cannot be had now.
            UsageError: something here is wrong, not there.
        """
        source = self.source  # which may be replaced meanwhile
        try:
            revision = await source.resolve(anew=anew)
            # A place of the source's own is shared with other processes: what was brought before proves nothing there.
            current = source.place is None and revision.digest == self._served and self.path.is_dir()
            complete = current or await self._bring(source, revision)
        except (SourceError, UsageError) as error:
            self._trouble = self.reason(error)
            raise
        except Exception as error:  # a bug must not end the others' service
            logger.exception("%s: could not be fetched", self.name)
            self._trouble = "it could not be fetched"
            raise SourceError(self._trouble) from error
        finally:
            self._looked = time.time()
            self.read_once.set()
        self._trouble, self._current = None, self._looked
        if not self._ready:
            await to_thread.run_sync(self.arrived, str(self.path))
            self._ready = True
        return revision.next_check_s if complete or source.pace is None else source.pace.check_s

    async def follow(self, pace: Pace) -> None:
        """Keep it current until cancelled."""
        wait, retry = 0.0, pace.first_retry_s
        while True:
            anew = await self._wait(wait)
            pace = self.source.pace or pace  # which the operator may have changed
            try:
                wait, retry = await self.refresh(anew=anew), pace.first_retry_s
                continue
            except UsageError as error:  # another server fetches into the same cache, and we shall see what it brings
                logger.debug("%s: %s", self.name, self.reason(error))
            except SourceError as error:
                await to_thread.run_sync(self.report_failure, error)
            self._ready = self._ready or self.has_copy
            wait, retry = retry, min(retry * 2, pace.last_retry_s)

    def look(self) -> None:
        """Have `follow` look now instead of later. To be called in its event loop."""
        self._asked = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, seconds: float) -> bool:
        """Wait for so long, or until somebody asks for a look; whether somebody does."""
        with anyio.CancelScope() as self._waiting:
            if not self._asked:
                # Not all at the same moment, when many servers were started together.
                seconds *= random.uniform(1, 1.1)  # noqa: S311
                self._next_look = time.time() + seconds
                await self._sleep(seconds)
        self._waiting = self._next_look = None
        asked = self._asked
        if asked and self._looked_at is not None:  # however often somebody asks
            await self._sleep(max(0.0, self._looked_at + _SOONEST_S - anyio.current_time()))
        self._asked = False
        if asked:
            self._looked_at = anyio.current_time()
        return asked

    def report_failure(self, error: SourceError | UsageError) -> None:
        """Report why it cannot be had, and what is served meanwhile; may block for as long as a scan."""
        last = "serving the last copy" if self.has_copy else "there is no copy of it yet"
        line = f"{self.reason(error)}; {last}"
        if isinstance(error, UnacceptableError):
            refused = problem(error.code, line).at(self.source.origin, "")
            self._report((), (*self._problems, refused))
        else:
            self._report((line,), self._problems)

    def report_to(self, note: Note) -> None:
        """Have revision and problems taken from now on, and as they are now."""
        self.note = note
        note(*self._noted)

    async def fetch(self, source: Source) -> None:
        """Bring what `switch` is to serve.

        Raises:
            SourceError: it cannot be had now.
            UsageError: something here is wrong, not there.
        """
        await source.materialise(await source.resolve(), self._store)

    def switch(self, source: Source) -> None:
        """Serve another revision from now on, which was fetched: the link is moved. From any thread.

        Raises:
            OSError: it cannot be moved.
        """
        self.source, self._served, self._refused = source, "", None
        if self.link is not None and source.place is not None:
            point_link(self.link, source.place)

    async def _bring(self, source: Source, revision: Revision) -> bool:
        """Serve this revision; whether all of it is there."""
        if self._refused is not None and self._refused[0] == revision.digest:
            raise self._refused[1]
        try:
            tree = await source.materialise(revision, self._store)
        except UnacceptableError as error:
            if not isinstance(error, RewrittenError):
                self._refused = revision.digest, error
            raise
        if source is not self.source:
            return False
        if source.place is None:
            try:
                await to_thread.run_sync(self._store.serve, tree.path)
            except OSError as error:
                raise UnreachableError(f"cannot be served ({error.strerror or error})") from None
        difference = tree.difference
        before = difference.before or self._served
        self._served = revision.digest if tree.complete else ""
        self._problems = tree.problems
        await to_thread.run_sync(self._report, tree.warnings, tree.problems)
        is_another = before not in {"", revision.digest}
        if str(difference) or is_another:
            was = f" (was {_short(before)})" if is_another else ""
            rest = "" if tree.complete else "; the rest is still to come"
            found = str(difference) or "no skill is another"
            logger.info("%s: fetched %s%s: %s%s", self.name, _short(revision.digest), was, found, rest)
        return tree.complete

    def _report(self, lines: tuple[str, ...], problems: tuple[Problem, ...]) -> None:
        """Say what is wrong, once for as long as it stays the same."""
        if self._noted != (self._served, problems):
            self._noted = self._served, problems
            if self.note is not None:
                self.note(*self._noted)
        if self.note is None:
            places = [each.path.removeprefix(self.source.origin).strip("/") for each in problems]
            lines += tuple(
                f"{place}: {each.message}" if place else each.message
                for place, each in zip(places, problems, strict=True)
            )
        if self._reported != lines:
            self._reported = lines
            for line in lines:
                logger.warning("%s: %s", self.name, line)


def _short(revision: str) -> str:
    """Return a commit or digest as people write it: the first twelve digits."""
    return revision.removeprefix("sha256:")[:12]
