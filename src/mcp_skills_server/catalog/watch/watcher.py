"""File watcher: file events, debounced into bursts, each of which refreshes a registry.

A first scan answers clients and names the directories to watch; a second one, once they are
watched, finds what changed in between. Events say where to look, the scan says what changed.

Events get lost (NFS, containers, mounts), so everything is scanned and the watch armed anew at
intervals. Where the system gives no events, the scan is polled. Copies of fetched skills are not
watched: their source tells what it changes. The watcher has its own thread, since a scan takes half
a second in a large tree, and must not delay the answer to `initialize`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Final, Self

from mcp_skills_server.catalog.path_map import outermost
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import FolderLink, Root, directory_identity, link_state
from mcp_skills_server.catalog.scan import Arm
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.catalog.watch.events import CannotWatchError, DirectoryEvents, WatchLostError

logger = logging.getLogger(__name__)

RECONCILE_S: Final = 300.0
_LONE_S: Final = 0.04
"""Debounce in seconds after a lone edit; the shortest wait of all."""
_QUIET_S: Final = 0.25
"""Debounce in seconds after a burst."""
_MAX_WAIT_S: Final = 3.0
"""Longest burst: a file that is written all the time would otherwise never be read again."""
_LONE_PATHS: Final = 8
_LONE_TOPS: Final = 3
"""Paths that one save touches in its directory at most: the file, a temporary and a backup copy."""
_IDLE_S: Final = 0.5
"""Seconds between two checks of an idle watch that its roots are still the same directories."""
_FIRST_S: Final = 0.05
"""Seconds that changes found by the scan after arming wait for their events."""
_CALM_S: Final = 0.2
"""An event this soon after a report belongs to the same burst and is no lone edit."""
_PAUSE_S: Final = 0.25
"""Seconds before the watch is armed anew: whatever ended it may still be going on."""
_POLL_S: Final = 0.5
_POLL_SHARE: Final = 4
"""A poll pauses for this multiple of the processor time that it took, at least its own duration."""
_STOP_CHECK_S: Final = 0.1
_RETRY_S: Final = 60.0
"""Seconds after which events are tried again where the system gave none."""


class Burst:
    """Debounced group of events that belong together, by their absolute paths.

    `lone` says that this may be a lone edit: it does not closely follow a reported burst.
    """

    def __init__(self, paths: Iterable[str], now: float, *, lone: bool = True) -> None:
        self.paths = set(paths)
        self._lone = lone
        self._began = self._last = now

    def add(self, paths: Iterable[str], now: float) -> None:
        """Add events of this moment; without paths, nothing changes."""
        for path in paths:
            self.paths.add(path)
            self._last = now

    def deadline(self) -> float:
        """Return the time at which the burst is over if no further event comes."""
        self._lone = self._lone and self._looks_lone()
        return min(self._last + (_LONE_S if self._lone else _QUIET_S), self._began + _MAX_WAIT_S)

    def _looks_lone(self) -> bool:
        """Tell whether this may be one save, or one small directory created, deleted or renamed."""
        if len(self.paths) > _LONE_PATHS:
            return False
        tops = outermost({path.replace(os.sep, "/") for path in self.paths})
        return len(tops) <= _LONE_TOPS and len({top.rpartition("/")[0] for top in tops}) == 1


class Watcher:
    """File watcher that keeps a registry current in its own thread, from `start` to `stop`.

    `with Watcher(registry):` starts the thread, waits for the first scan, and stops it at the end;
    `async with` does the same without blocking the event loop. A watcher cannot be restarted.

        registry = Registry(["skills"])
        async with Watcher(registry):
            registry.subscribe(lambda changes: print(sorted(changes.after)))
            ...

    Args:
        registry: loaded by the watcher.
        poll: poll time stamps instead of waiting for events, for network file systems.
        reconcile: seconds between full scans, which make up for lost events; by default 300.
    """

    def __init__(
        self, registry: Registry, *, poll: bool = False, reconcile: float = RECONCILE_S
    ) -> None:
        self._registry = registry
        self._roots = [root for root in registry.roots if root.origin is None]
        self._poll = poll
        self._reconcile = reconcile
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.armed = threading.Event()
        """Set once no change since the first scan can be missed, by events or by polling."""
        self._trouble = ""
        """Reason for missing events, as last logged; empty while events arrive."""

    def start(self) -> None:
        """Start a thread that loads the registry, sets `registry.loaded` and follows the roots."""
        self._end_following = self._registry.follow()
        thread = threading.Thread(target=self._follow, name="skills-follow", daemon=True)
        thread.start()
        self._thread = thread  # now, since a `stop` meanwhile cannot join it earlier

    def stop(self, timeout: float = 1.0) -> None:
        """Stop the thread and wait for it for up to `timeout` seconds."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._end_following()

    def __enter__(self) -> Self:
        self.start()
        self._await_loaded()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        try:
            await in_thread(self._await_loaded)
        except BaseException:
            self.stop(timeout=0)  # cancelled: `__aexit__` will not run
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        from anyio import CancelScope

        with CancelScope(shield=True):
            await in_thread(self.stop)

    def _await_loaded(self) -> None:
        while not self._registry.loaded.wait(_STOP_CHECK_S) and not self._stop.is_set():
            continue

    def _follow(self) -> None:
        polled_until = float("inf") if self._poll else 0.0
        while not self._stop.is_set():
            try:
                if time.monotonic() < polled_until:
                    self._poll_until(polled_until)
                else:
                    self._follow_events()
            except WatchLostError:
                pass
            except CannotWatchError as error:
                self._report(f"{error}; until then the folders are polled about once a second")
                polled_until = time.monotonic() + _RETRY_S
                continue
            except Exception:
                # Any bug: a catalogue that no longer follows its folder is worse than a traceback.
                self._report("the file watch failed; arming it again", traceback=True)
                with suppress(Exception):  # the scan may be what failed
                    self._scan()
                    self._registry.settle()
                self.armed.set()
            self._stop.wait(_PAUSE_S)

    def _follow_events(self) -> None:
        """Follow events until a root or the target of a link differs, or a full scan is due."""
        roots = self._roots
        places = _watched_places(roots)
        # Resolve the roots anew: a root may be a link that was moved since the start.
        tops = [os.path.realpath(root.given) for root in roots]
        tops += [link.target for _, links in places for link in links.values() if link.target]
        with closing(DirectoryEvents(tops, self._stop, self._registry.enters)) as events:
            self._scan(events.enter)
            while not self._stop.is_set() and events.arm():
                self._scan(events.enter)
            self.armed.set()
            if self._trouble:
                logger.warning("file events work again; changes are noticed at once")
                self._trouble = ""
            due = time.monotonic() + self._reconcile
            reported, patience = -_CALM_S, _FIRST_S
            again: set[str] = set()
            """Directories to scan again, since their watch is new."""
            while (
                not self._stop.is_set()
                and time.monotonic() < due
                # a change here ends the watch; the next one covers the new directories
                and _watched_places(roots) == places
            ):
                paths = again | events.wait(0 if again else patience) | _changed_links(roots)
                if paths:
                    is_lone = time.monotonic() - reported > _CALM_S
                    paths = self._gather(events, Burst(paths, time.monotonic(), lone=is_lone))
                    if self._scan(events.enter, paths):
                        reported = time.monotonic()
                    again = events.arm()
                self._registry.settle()
                if not paths:
                    self._registry.save_index()
                patience = _IDLE_S

    def _gather(self, events: DirectoryEvents, burst: Burst) -> set[str]:
        """Return the paths of all events of a burst that has begun, once it is over."""
        left = burst.deadline() - time.monotonic()
        while left > 0 and not self._stop.is_set():
            burst.add(events.wait(left), time.monotonic())
            left = burst.deadline() - time.monotonic()
        return burst.paths

    def _poll_until(self, until: float) -> None:
        until = min(until, time.monotonic() + self._reconcile)
        paths: list[str] | None = None  # at first all roots
        while not self._stop.is_set() and (began := time.monotonic()) < until:
            worked = time.thread_time()
            self._scan(paths=paths)
            paths = [root.path for root in self._roots]
            self._registry.settle()
            self.armed.set()
            self._registry.save_index()
            worked, now = time.thread_time() - worked, time.monotonic()
            pause = max(_POLL_S, _POLL_SHARE * worked, now - began)
            self._stop.wait(min(pause, max(0.0, until - now)))

    def _report(self, trouble: str, *, traceback: bool = False) -> None:
        if trouble != self._trouble:
            logger.warning(trouble, exc_info=traceback)
            self._trouble = trouble

    def _scan(self, arm: Arm | None = None, paths: Iterable[str] | None = None) -> bool:
        if not self._registry.loaded.is_set():
            self._registry.load(arm)
            return True
        # Deferred: the changes may be the first half of a burst whose second half comes as events.
        return bool(self._registry.refresh(paths, arm=arm, defer=True))


def _watched_places(roots: Iterable[Root]) -> list[tuple[tuple[int, ...], dict[str, FolderLink]]]:
    """Return the identity and the links of each root, which decide what is to be watched.

    The same path may be another directory, which nothing watches yet. No event is reported behind a
    link.
    """
    # a copy, since a scan of another thread may change the links meanwhile
    return [(directory_identity(root.given), {**root.links}) for root in roots]


def _changed_links(roots: Iterable[Root]) -> set[str]:
    """Return the absolute paths of the links whose targets differ from what the scan judged.

    Polled, because the target of a link may come and go where nothing is watched.
    """
    links = [
        (os.path.join(root.path, path), link)
        for root in roots
        for path, link in [*root.links.items()]
    ]
    changed = {path for path, link in links if link_state(path) != link.state}
    # the links of a root that is away differ for as long as it is
    return set(filter(os.path.lexists, changed))
