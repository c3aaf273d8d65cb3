"""watchfiles' events -> registry.refresh -> the registry's listeners.

The watch is armed before the first scan, or an edit in between would be lost. Events are hints: they say where to
look, the scan says what changed. A slow reconcile looks everywhere, because events do get lost (overflow, NFS,
containers). Runs in a thread of its own: arming holds the interpreter for half a second in a large tree, and that
must not happen before the client has its answer to `initialize`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.tree import is_ignored
from mcp_skills_server.model import Changes, Skill

logger = logging.getLogger(__name__)

_STEP_MS: Final = 40
"""How long it must be quiet before a burst counts as over; also what an edit waits at the least."""
_BURST_MS: Final = 1_000
_POLL_MS: Final = 200
_POLL_BLIND_S: Final = 1.1
"""A poll compares time stamps by the second: what follows a change so soon, only a scan sees."""
_IDLE_MS: Final = 500
"""How often an idle watch looks whether its roots are still the same directories."""
_RETRY_S: Final = 0.5
_DELETED: Final = 3
RECONCILE_S: Final = 300.0


class Watcher:
    """Keeps a registry current until it is stopped.

    Args:
        registry: loaded by the watcher, once the watch is armed.
        poll: look at time stamps instead of waiting for events, for network file systems.
        reconcile: seconds between full scans.
    """

    def __init__(self, registry: Registry, *, poll: bool = False, reconcile: float = RECONCILE_S) -> None:
        self._registry = registry
        self._poll = poll
        self._reconcile = reconcile
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._unproved: SimpleQueue[Skill | None] = SimpleQueue()
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin: arm, load, then follow."""
        self._unsubscribe = self._registry.subscribe(self._note)
        self._note(Changes({}, self._registry.snapshot.skills))
        for work in (self._follow, self._prove):
            thread = threading.Thread(target=work, name=f"skills-{work.__name__.strip('_')}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """End, and wait for the threads for up to `timeout` seconds."""
        self._stop.set()
        self._unsubscribe()
        self._unproved.put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _follow(self) -> None:
        poll, told = self._poll, False
        while not self._stop.is_set():
            # Where they lead now, and not at the start: a root may be a link that is moved.
            present = [path for root in self._registry.roots if os.path.isdir(path := os.path.realpath(root.given))]
            try:
                if present:
                    self._watch(present, poll=poll)
                    told = False
                else:
                    self._load_or_refresh()
            except FileNotFoundError:
                pass  # a root went while the watch was being armed
            except OSError as error:
                if not poll:
                    logger.warning("the file watch failed (%s); polling instead", error)
                    poll = True
                self._load_or_refresh()
            except Exception:
                # Whatever it was, a catalogue that no longer follows its folder is worse than a line in the log.
                if not told:
                    logger.exception("the file watch failed; arming it again")
                    told = True
                self._load_or_refresh()
            self._stop.wait(_RETRY_S)

    def _watch(self, paths: list[str], *, poll: bool) -> None:
        """Follow these directories until one of them is no longer the same, or another root appears."""
        # The backend itself and not watchfiles.watch(), whose generator cannot tell when the watch is armed.
        from watchfiles._rust_notify import RustNotify

        identities = _identities(self._registry)
        with RustNotify(paths, False, poll, _POLL_MS, True, True) as notify:
            self._load_or_refresh()
            due = time.monotonic() + (_POLL_BLIND_S if poll else self._reconcile)
            while _identities(self._registry) == identities:
                changes = notify.watch(_BURST_MS, _STEP_MS, _IDLE_MS, self._stop)
                if changes in ("stop", "signal"):
                    return
                if not isinstance(changes, str) and any(kind == _DELETED and path in paths for kind, path in changes):
                    return  # the next directory of this path may even have its inode
                if time.monotonic() >= due:
                    self._registry.refresh()
                    due = time.monotonic() + self._reconcile
                elif not isinstance(changes, str):
                    self._registry.refresh(self._relevant(path for _, path in changes))
                    due = min(due, time.monotonic() + _POLL_BLIND_S) if poll else due

    def _load_or_refresh(self) -> None:
        if self._registry.loaded.is_set():
            self._registry.refresh()
        else:
            self._registry.load()

    def _relevant(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if not is_ignored_below(path, [root.path for root in self._registry.roots])]

    def _prove(self) -> None:
        """Compute digests while nobody asks, in small steps: without them a touch looks like an edit."""
        while (skill := self._unproved.get()) is not None:
            if any(file.digest is None for file in skill.files.values()):
                self._registry.prove(skill)
                if self._stop.wait(0.0005):
                    return

    def _note(self, changes: Changes) -> None:
        for skill in changes.after.values():
            self._unproved.put(skill)


def is_ignored_below(path: str, roots: Iterable[str]) -> bool:
    """Whether a part of `path` has an ignored name, below whichever root. A root's own path may hold anything."""
    found = False
    for root in roots:
        if path == root:
            return False
        if path.startswith(root + os.sep):
            found = any(is_ignored(part) for part in path[len(root) + 1 :].split(os.sep) if part)
            if not found:
                return False
    return found


def _identities(registry: Registry) -> list[tuple[int, int] | None]:
    out: list[tuple[int, int] | None] = []
    for root in registry.roots:
        try:
            found = os.stat(root.given)
            out.append((found.st_dev, found.st_ino))
        except OSError:
            out.append(None)
    return out
