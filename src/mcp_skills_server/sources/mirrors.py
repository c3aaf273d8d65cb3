"""Mirrors: poll each remote source of a root, and keep a local copy current for the registry.

A failure leaves the last good copy in service. Each change of a copy is handed to the registry with
the revision that it belongs to, since nothing watches the copies.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import anyio
from anyio import to_thread
from anyio.from_thread import BlockingPortal

from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.codes import problem
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.sources.addresses import relative_to_site
from mcp_skills_server.sources.cache import PrivateFolder, make_own, trim
from mcp_skills_server.sources.folder import BusyError, clear
from mcp_skills_server.sources.kinds import KINDS, Kind, open_source
from mcp_skills_server.sources.reconcile import reconcile
from mcp_skills_server.sources.records import read_index
from mcp_skills_server.sources.source import (
    BundleVerifier,
    FetchReport,
    Revision,
    RewrittenError,
    Source,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnidentifiedError,
    UnreachableError,
)

logger = logging.getLogger(__name__)

Note: TypeAlias = Callable[[str, tuple[Problem, ...], Collection[str]], object]
"""Called in another thread with the served revision, its problems and the changed paths."""

_MIN_POLL_S: Final = 1.0
"""Minimum seconds between two requested polls."""
_TRIM_S: Final = 300.0
"""Seconds between two checks of the cache size after fetches; a check walks the cache."""
_FIRST_RETRY_S: Final = 30.0
"""Backoff after a first failure, if shorter than the polling interval; then it doubles."""
_STOP_S: Final = 1.0
"""Seconds that a shutdown waits for fetches to end."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of a fetched root. Times are in seconds since the epoch."""

    name: str
    ready: bool  # all skills of some revision were fetched, now or before
    trouble: str | None  # why the last fetch failed, in one line; always set while not ready
    revision: str = ""  # the served one; "" if a skill of it is still to be fetched
    polled: float | None = None  # end of the last poll
    next_poll: float | None = None  # start of the next poll; None while one is under way
    current: float | None = None  # end of the last poll that succeeded


class Follower:
    """Poller of one source. Call its methods one at a time; `state` may be read from any thread."""

    def __init__(
        self,
        source: Source,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        *,
        given: str = "",
        link: Path | None = None,
    ) -> None:
        self.source = source
        self.given = given
        self.link = link
        """Symlink that is served instead of the source's own folder, so that it can `switch`."""
        self._note: Note | None = None
        self._sleep = sleep
        self._is_complete = False
        """Whether the folder held all of the revision when it was last read."""
        self._lines: tuple[str, ...] = ()
        self._problems: tuple[Problem, ...] = ()
        self._refused: tuple[str, UnacceptableError] | None = None
        """The digest of the last refused revision, and the reason."""
        self._reported: tuple[str, ...] = ()
        self.read_once = threading.Event()
        """Set when there is a copy, or the first fetch has ended."""
        self.state = SourceState(source.origin, ready=False, trouble="not fetched yet")
        self._read_whole_copy()
        if self.has_copy:
            self.read_once.set()
        self._waiting: anyio.CancelScope | None = None
        self._is_asked = False
        self._asked_at: float | None = None
        """Start of the last requested poll, by the event loop's clock."""

    @property
    def name(self) -> str:
        """The origin as printable text, in one line."""
        return clipped(printable(self.source.origin))

    def reason(self, error: SourceError | UsageError) -> str:
        """Return an error's message for a line that begins with `name`."""
        return relative_to_site(self.source.origin, str(error))

    @property
    def path(self) -> Path:
        """The folder that is served."""
        return self.link or self.source.place

    def _read_whole_copy(self) -> None:
        """Be ready if a process has fetched all skills before; a part of a first copy is none."""
        known = read_index(self.source.place, self.source.key)
        if known is not None and known.extent.files:
            self._change(ready=True, trouble=None, revision=known.revision)

    @property
    def has_copy(self) -> bool:
        """True if there are skills, fetched now or before."""
        try:
            return any(not entry.name.startswith(".") for entry in self.path.iterdir())
        except OSError:
            return False

    async def refresh(self, *, anew: bool = False) -> float:
        """Fetch the source's current revision, with `anew` even if its last answer is fresh.

        Return the seconds until the next poll is due.

        Raises:
            SourceError: the source cannot be fetched now.
            UsageError: a local setting or folder is wrong, not the source.
        """
        source = self.source  # `switch` may replace it meanwhile
        try:
            revision = await source.resolve(anew=anew)
            source.detect_changes()  # other processes share the folder
            is_known = self._is_complete and not source.changed
            if is_known and revision.digest == self.state.revision:
                await to_thread.run_sync(self._report, self._lines, self._problems)
                is_complete = True
            else:
                is_complete = await self._fetch_revision(source, revision)
        except (SourceError, UsageError) as error:
            self._change(trouble=self.reason(error))
            raise
        except Exception as error:  # a bug must not stop the other sources
            logger.exception("%s: could not be fetched", self.name)
            self._change(trouble="it could not be fetched")
            raise SourceError("it could not be fetched") from error
        else:
            is_whole = bool(self.state.revision)
            trouble = None if is_whole else "not all of its skills are fetched yet"
            is_ready = is_whole or self.state.ready
            self._change(ready=is_ready, trouble=trouble, current=time.time())
            return revision.next_check_s if is_complete else source.check_s
        finally:
            self._change(polled=time.time())
            # Set after the state: a listing that waited must not report the source as unread.
            self.read_once.set()

    def _change(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)

    async def follow(self) -> None:
        """Poll the source until cancelled, with exponential backoff after failures."""
        wait, retry, is_failing = 0.0, 0.0, False
        while True:
            anew = await self._wait(wait)
            first_retry = _FIRST_RETRY_S
            try:
                wait, retry = await self.refresh(anew=anew), 0.0
                if is_failing:
                    logger.info("%s: can be fetched again", self.name)
                is_failing = False
                continue
            except BusyError as error:  # what the other process fetches will be read then
                first_retry = _MIN_POLL_S
                logger.debug("%s: %s", self.name, self.reason(error))
            except (SourceError, UsageError) as error:
                is_failing = True
                await to_thread.run_sync(self.report_failure, error)
            if not self.state.ready:
                self._read_whole_copy()
            check_s = self.source.check_s
            longest = max(check_s, self.source.last_retry_s)
            wait = retry = min(retry * 2, longest) or min(check_s, first_retry)

    def poll_now(self) -> None:
        """Make `follow` poll now. Call it in the event loop of `follow`."""
        self._is_asked = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, seconds: float) -> bool:
        """Wait for so long, or until a poll is requested; tell whether one was."""
        with anyio.CancelScope() as self._waiting:
            if not self._is_asked:
                seconds *= random.uniform(1, 1.1)  # noqa: S311, jitter: many servers may have started together
                self._change(next_poll=time.time() + seconds)
                await self._sleep(seconds)
        self._waiting = None
        self._change(next_poll=None)
        asked = self._is_asked
        if asked and self._asked_at is not None:
            await self._sleep(max(0.0, self._asked_at + _MIN_POLL_S - anyio.current_time()))
        self._is_asked = False
        if asked:
            self._asked_at = anyio.current_time()
        return asked

    def report_failure(self, error: SourceError | UsageError) -> None:
        """Report a failure, and whether a copy is still served; may block as long as a scan."""
        last = "serving the last copy" if self.has_copy else "there is no copy of it yet"
        line = f"{self.reason(error)}; {last}"
        if isinstance(error, UnacceptableError):
            refused = problem(error.code, line).at(self.source.origin, "")
            self._report((), (*self._problems, refused))
        else:
            self._report((line,), self._problems)

    def report_to(self, note: Note) -> None:
        """Report revision, problems and changes to `note`, not to the log.

        It is called now, after each poll, and for each part of a long fetch. Then `state` changes.
        """
        self._note = note
        note(self.state.revision, self._problems, ())

    def switch(self, source: Source) -> None:
        """Serve another fetched source by moving the link; may raise OSError. Thread-safe."""
        self.source, self._refused = source, None
        source.changed.add("")
        self._change(revision="")
        if self.link is not None:
            _point_link(self.link, source.place)

    async def _fetch_revision(self, source: Source, revision: Revision) -> bool:
        """Fetch this revision into service; tell whether it is complete."""
        if self._refused is not None and self._refused[0] == revision.digest:
            raise self._refused[1]
        before = self.state.revision
        try:
            report = await reconcile(source, revision, self._hand_over_part)
        except UnacceptableError as error:
            if not isinstance(error, RewrittenError | UnidentifiedError):
                self._refused = revision.digest, error
            raise
        if source is not self.source:
            return False
        is_whole = all(refusal.fault == "publisher" for refusal in report.refused)
        self._is_complete = report.is_complete
        self._lines, self._problems = report.lines(source.origin), report.problems(source.origin)
        now = revision.digest if is_whole else ""
        await to_thread.run_sync(self._report, self._lines, self._problems, now)
        self._log_changes(report, report.before or before, revision.digest)
        return report.is_complete

    def _log_changes(self, report: FetchReport, before: str, now: str) -> None:
        revisions, changes = _short(now), report.changes
        if before not in {"", now}:
            revisions = f"{revisions} (was {_short(before)})"
            changes = changes or "no skill is another"
        if changes and not report.is_complete:
            changes = f"{changes}; the rest is still to come"
        if changes:
            logger.info("%s: fetched %s: %s", self.name, revisions, changes)

    def _hand_over(self, revision: str, problems: tuple[Problem, ...], changed: Set[str]) -> None:
        """Pass revision, problems and changes of the copy to `note`."""
        if self._note is not None:
            self._note(revision, problems, changed)
        self.source.changed -= changed
        self._change(revision=revision)

    def _hand_over_part(self, _done: int, _total: int) -> None:
        """Pass on the skills that an unfinished fetch has put in place; they are of no revision."""
        if part := self.source.changed - {""}:
            self._hand_over("", self._problems, part)

    def _report(
        self, lines: tuple[str, ...], problems: tuple[Problem, ...], revision: str | None = None
    ) -> None:
        """Hand over changes and problems, and log the lines, each set once until it changes.

        `revision` is that of the copy; None for no other one.
        """
        if revision is None:
            revision = "" if self.source.changed else self.state.revision
        self._hand_over(revision, problems, {*self.source.changed})
        if self._note is None:
            for problem in problems:
                path = problem.path.removeprefix(self.source.origin).strip("/")
                lines += (f"{path}: {problem.message}" if path else problem.message,)
        if self._reported != lines:
            self._reported = lines
            for line in lines:
                logger.warning("%s: %s", self.name, line)


class Mirrors:
    """The followers of all roots that are not local folders."""

    def __init__(self, settings: SourceSettings, kinds: Sequence[Kind] = KINDS) -> None:
        self._settings: Final = settings
        self._kinds: Final = kinds
        self.followers: list[Follower] = []
        """In the order of the roots; a root with two pins has two followers."""
        self._links: PrivateFolder | None = None
        self._awaited: Sequence[Follower] = ()
        self._awaited_s = self._awaited_until = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None

    def root(
        self,
        given: str,
        pin: str | None = None,
        refresh_s: float | None = None,
        token: str = "",
        bundles: BundleVerifier | None = None,
    ) -> str | MirroredRoot:
        """Return a folder as given, or the folder with the copies of a source, for the registry.

        `pin` is the wanted revision, None for the newest; `refresh_s` the polling interval, None
        for that of the settings; `token` and `bundles` are as in `SourceSettings`.

        Raises:
            UsageError: `given` is no root that can be served.
        """
        settings = replace(self._settings, pin=pin, token=token, bundles=bundles)
        if refresh_s is not None:
            settings = replace(settings, refresh_s=refresh_s)
        source = open_source(given, settings, self._kinds)
        if source is None:
            return given
        link: Path | None = None
        if source.remote and pin is not None:
            self._links = self._links or PrivateFolder()
            next_link = self._links.skills / str(len(self.followers))
            # Windows needs a privilege for links: without one, a new pin needs a restart
            with suppress(OSError):
                _point_link(next_link, source.place)
                link = next_link
        follower = Follower(source, given=given, link=link)
        if not source.remote:
            try:
                anyio.run(follower.refresh)
            except SourceError as error:
                clear(source.place)
                raise UsageError(f"{given}: {error}; give another one, or a folder") from None
        self.followers.append(follower)
        return MirroredRoot(os.fspath(follower.path), source.origin)

    def states(self) -> list[SourceState]:
        """Return the state of every source. Thread-safe."""
        return [follower.state for follower in self.followers]

    def report_to(self, registry: Registry) -> None:
        """Report to a registry, now and after each poll, instead of the log."""
        for follower in self.followers:
            follower.report_to(partial(registry.note, os.path.abspath(follower.path)))

    def fetch(self, *, proved: bool = False) -> None:
        """Fetch all remote sources now, or raise UsageError; `proved` accepts no older copy."""

        async def fetch_all() -> None:
            for follower in self.followers:
                if not follower.source.remote:
                    continue
                try:
                    await follower.refresh(anew=True)
                except (UsageError, SourceError) as error:
                    if not proved and follower.has_copy:
                        follower.report_failure(error)
                        continue
                    if isinstance(error, UsageError):
                        raise
                    left = "there is no copy of it"
                    if follower.has_copy:
                        left = "what there is of it is not proved"
                    raise UsageError(f"{follower.name}: {follower.reason(error)}; {left}") from None

        if self.followers:
            anyio.run(fetch_all)
            trim(self._settings.cache, self._settings.cache_bytes)

    def start(self, first_load: float) -> None:
        """Follow every source in a thread, until `stop`.

        Until `first_load` seconds from now, sources that were never read are awaited.
        """
        self._awaited = [follower for follower in self.followers if not follower.read_once.is_set()]
        self._awaited_s, self._awaited_until = first_load, time.monotonic() + first_load
        if self.followers:
            run = partial(anyio.run, self._follow)
            self._thread = threading.Thread(target=run, name="skills-sources", daemon=True)
            self._thread.start()

    def unread(self) -> list[str]:
        """Return the names of the sources that were never read. Thread-safe."""
        return [state.name for state in self.states() if not state.ready and state.current is None]

    @property
    def are_awaited(self) -> bool:
        """True if a source had never been read at the start."""
        return bool(self._awaited)

    def await_first_read(self) -> None:
        """Block until each of those sources was read once, or the wait times out."""
        for follower in self._awaited:
            if not follower.read_once.wait(max(0.0, self._awaited_until - time.monotonic())):
                said = "%s: not read within %g seconds; serving without it until it is"
                logger.warning(said, follower.name, self._awaited_s)

    def poll_now(self) -> int:
        """Poll all remote sources now and return their number. Thread-safe."""
        remote = [follower for follower in self.followers if follower.source.remote]
        for follower in remote:
            self._poll_now(follower)
        return len(remote)

    def set_refresh(self, given: str, seconds: float) -> None:
        """Set the polling interval of a root, and poll it now. Thread-safe."""
        for follower in self.followers:
            source = follower.source
            if follower.given == given and source.own_check_s is None and source.check_s != seconds:
                source.check_s = seconds
                self._poll_now(follower)

    def repin(self, revisions: Mapping[str, str]) -> None:
        """Fetch other revisions of pinned sources, then switch to all of them.

        Blocks. `revisions` is by absolute served folder; folders of other sources are skipped.

        Raises:
            SourceError: a revision cannot be fetched now; no source was changed.
            UsageError: a revision is malformed, or a local setting or folder is wrong.
            OSError: a source cannot be switched; none was. Try again.
        """

        async def fetch(source: Source) -> None:
            report = await reconcile(source, await source.resolve())
            for refusal in report.refused:
                if refusal.fault != "publisher":
                    raise UnreachableError(str(refusal))

        fetched: list[tuple[Follower, Source]] = []
        for follower in self.followers:
            revision = revisions.get(os.path.abspath(follower.path))
            if follower.link is not None and revision:
                settings = replace(follower.source.settings, pin=revision)
                source = cast("Source", open_source(follower.given, settings, self._kinds))
                try:
                    anyio.run(fetch, source)
                except SourceError as error:
                    reason = follower.reason(error)
                    raise UnreachableError(f"{follower.name}: {reason}") from None
                fetched.append((follower, source))

        with ExitStack() as undo:  # if one cannot be switched, those before it are switched back
            for follower, source in fetched:
                undo.callback(follower.switch, follower.source)
                follower.switch(source)
            undo.pop_all()

    def stop(self) -> None:
        """Stop fetching, and remove the temporary folders of this process."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)  # the programs that it started end with the thread
        for follower in self.followers:
            if not follower.source.remote:
                clear(follower.source.place)
        if self._links is not None:
            clear(self._links.skills)

    def _poll_now(self, follower: Follower) -> None:
        if self._portal is not None:  # before the start, the first poll is still to come
            self._portal.start_task_soon(follower.poll_now)

    async def _follow(self) -> None:
        async with BlockingPortal() as self._portal, anyio.create_task_group() as tasks:
            for follower in self.followers:
                tasks.start_soon(follower.follow)
                tasks.start_soon(follower.source.listen, follower.poll_now)
            tasks.start_soon(self._trim_cache)
            await to_thread.run_sync(self._stop.wait, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()

    async def _trim_cache(self) -> None:
        """Evict from the cache at intervals if something was fetched, until cancelled."""
        cache, most_bytes = self._settings.cache, self._settings.cache_bytes
        before = [follower.state.revision for follower in self.followers]
        while True:
            await anyio.sleep(_TRIM_S)
            now = [follower.state.revision for follower in self.followers]
            if now != before:
                before = now
                await to_thread.run_sync(trim, cache, most_bytes, abandon_on_cancel=True)


def _point_link(link: Path, folder: Path) -> None:
    """Point a symlink to a folder, atomically."""
    make_own(link.parent)  # a cleaner of old temporary files may have removed it
    fresh = link.with_name(f"{link.name}.fresh")
    clear(fresh)
    fresh.symlink_to(os.path.abspath(folder), target_is_directory=True)
    os.replace(fresh, link)


def _short(revision: str) -> str:
    """Return the first twelve digits of a commit or digest."""
    return revision.removeprefix("sha256:")[:12]
