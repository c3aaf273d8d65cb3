"""Mirrors of the roots that are not local folders: each is a folder that is kept current."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Final

import anyio
from anyio import to_thread
from anyio.from_thread import BlockingPortal

from mcp_skills_server.catalog.registry import MirroredRoot
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Problem
from mcp_skills_server.sources.cache import trim
from mcp_skills_server.sources.faults import SourceError
from mcp_skills_server.sources.follower import Follower, SourceState
from mcp_skills_server.sources.kinds import KINDS, Kind, open_source
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import Source
from mcp_skills_server.sources.store import Store, point_link

logger = logging.getLogger(__name__)

_NOTHING_YET: Final = "nothing-yet"
"""The tree that a source has until it was fetched."""

_TRIM_S: Final = 600.0
"""Between two looks at the size of the cache, each of which is a walk through it."""

_STOP_S: Final = 1.0
"""How long the end of a server waits for what fetches to end too."""


class Mirrors:
    """The sources among the roots.

    Args:
        settings: how they are opened.
        kinds: of sources.
    """

    def __init__(self, settings: SourceSettings, kinds: Sequence[Kind] = KINDS) -> None:
        self._settings: Final = settings
        self._kinds: Final = kinds
        self._stores: list[Store] = []
        self._followers: list[Follower] = []
        self._by_root: dict[str, Follower] = {}
        self._opened: dict[str, tuple[Follower, str, SourceSettings]] = {}
        """By the folder that is served: what keeps it current, and what opens its source anew."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None

    def root(self, given: str, pin: str | None = None, refresh_s: float | None = None) -> str | MirroredRoot:
        """Return what to give the registry for a root: itself for a folder, the folder with its copies for any other.

        Args:
            given: the root.
            pin: the revision that is wanted, None for the newest.
            refresh_s: seconds between two looks at it, None for what the settings say.

        Raises:
            UsageError: it is none that can be served.
        """
        settings = replace(self._settings, pin=pin)
        if refresh_s is not None:
            settings = replace(settings, refresh_s=refresh_s)

        source = open_source(given, settings, self._kinds)
        if source is None:
            return given
        store = Store()
        self._stores.append(store)
        follower = Follower(source, store)
        if not source.remote:
            try:
                anyio.run(follower.refresh)
            except SourceError as error:
                store.close()
                raise UsageError(f"{given}: {error}; give another one, or a folder") from None
        elif source.place is None:  # the registry wants a folder before anything was fetched
            store.serve(store.put(_NOTHING_YET, {}))
        if pin is not None and source.place is not None:
            with suppress(OSError):  # Windows wants a privilege for links: another revision then takes a restart
                link = store.directory / "pinned"
                point_link(link, source.place)
                follower.link = link
                self._opened[os.path.abspath(link)] = follower, given, settings
        self._followers.append(follower)
        self._by_root[given] = follower
        return MirroredRoot(os.fspath(follower.path), source.origin)

    def states(self) -> list[SourceState]:
        """Return the state of every root that is fetched or unpacked, from any thread."""
        return [each.state for each in self._followers]

    def revisions(self) -> dict[str, str]:
        """Return the revision of everything that is followed and whole, by the folder that is served, absolute."""
        return {os.path.abspath(each.path): each.revision for each in self._followers}

    def report_to(self, note: Callable[[str, str, tuple[Problem, ...]], object]) -> None:
        """Have revisions and problems taken from now on, and as they are now; without it problems are lines of the log.

        Args:
            note: takes folder, revision and problems of one source, in any thread, as `Registry.note` does.
        """
        for follower in self._followers:
            follower.report_to(partial(note, os.path.abspath(follower.path)))

    def fetch(self, *, proved: bool = False) -> None:
        """Fetch everything that is fetched now, whatever its cache headers say, and wait for it.

        Args:
            proved: a copy of an earlier time will not do.

        Raises:
            UsageError: a source cannot be had, and there is no copy of it that will do.
        """

        async def fetch_all() -> None:
            for follower in self._followers:
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
                    left = "what there is of it is not proved" if follower.has_copy else "there is no copy of it"
                    raise UsageError(f"{follower.name}: {follower.reason(error)}; {left}") from None

        if self._followers:
            anyio.run(fetch_all)
            trim(self._settings.cache, self._settings.cache_bytes)

    def start(self, arrived: Callable[[str], object] | None = None) -> None:
        """Keep everything current, in a thread of its own, until `stop`.

        `arrived` is called in another thread with the folder of a source when it came for the first time, and the
        source is ready only after it: a watch would need a moment to see what came.
        """
        if arrived is not None:
            for follower in self._followers:
                follower.arrived = arrived
        if self._followers:
            thread = threading.Thread(target=anyio.run, args=(self._follow,), name="skills-sources", daemon=True)
            thread.start()
            self._thread = thread

    def first_read(self, seconds: float) -> Callable[[], object] | None:
        """Return what blocks until each source was read once, at most so long from now; None where each has a copy."""
        unread = [each for each in self._followers if not each.read_once.is_set()]
        end = time.monotonic() + seconds

        def wait() -> None:
            for follower in unread:
                if not follower.read_once.wait(max(0.0, end - time.monotonic())):
                    logger.warning(
                        "%s: not read within %g seconds; serving without it until it is", follower.name, seconds
                    )

        return cache(wait) if unread else None

    def look(self) -> int:
        """Have everything that is fetched looked at now and not later, from any thread; how many sources that are."""
        remote = [each for each in self._followers if each.source.remote]
        portal = self._portal
        if portal is not None:  # else the first look is still to come
            for follower in remote:
                portal.start_task_soon(follower.look)
        return len(remote)

    def set_refresh(self, given: str, seconds: float) -> None:
        """Look at this root so often from now on, and once now, from any thread. Other roots stay as they are.

        Args:
            given: the root.
            seconds: between two looks.
        """
        follower = self._by_root.get(given)
        if follower is None or follower.source.refresh_s in (None, seconds):
            return
        follower.source.refresh_s = seconds
        if self._portal is not None:
            self._portal.start_task_soon(follower.look)

    def repinned(self, revisions: Mapping[str, str]) -> Callable[[], None]:
        """Fetch other revisions of pinned sources, and return what puts all of them in service. Blocks.

        Args:
            revisions: by the folder that is served, absolute; that of no pinned source is passed over.

        Raises:
            SourceError: one cannot be had now. All stay as they were.
            UsageError: one is no revision, or something here is wrong.
        """
        fetched: list[tuple[Follower, Source]] = []
        for folder, revision in revisions.items():
            if folder in self._opened and revision:
                follower, given, settings = self._opened[folder]
                source = open_source(given, replace(settings, pin=revision), self._kinds)
                if source is not None:
                    anyio.run(follower.fetch, source)
                    fetched.append((follower, source))

        def switch() -> None:
            for follower, source in fetched:
                follower.switch(source)
            self.look()

        return switch

    def stop(self) -> None:
        """Fetch no more, and remove what archives were unpacked to."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)  # programs that it has started end with it
        for store in self._stores:
            store.close()

    async def _follow(self) -> None:
        async with BlockingPortal() as self._portal, anyio.create_task_group() as tasks:
            for follower in self._followers:
                if follower.source.pace is not None:
                    tasks.start_soon(follower.follow, follower.source.pace)
            tasks.start_soon(self._keep_small)
            await to_thread.run_sync(self._stop.wait, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()

    async def _keep_small(self) -> None:
        """Keep the cache below its size, until cancelled."""
        while True:
            await to_thread.run_sync(trim, self._settings.cache, self._settings.cache_bytes, abandon_on_cancel=True)
            await anyio.sleep(_TRIM_S)
