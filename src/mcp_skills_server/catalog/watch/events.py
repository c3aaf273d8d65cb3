"""Sources of file events: what one is, and the one for each platform.

On Linux each directory that is scanned gets a watch of its own (inotify.py). Elsewhere the system watches a whole tree
at once and follows no links in it, so watchfiles is enough.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from mcp_skills_server.catalog.tree import MOST_LEVELS
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format.ignored import is_entered

_GROUP_MS: Final = 20
_STEP_MS: Final = 10
_POLL_MS: Final = 200
_DELETED: Final = 3


class CannotWatchError(SkillsServerError):
    """The system gives no events for these directories. The message says why, and what to do, in one line."""


class WatchLostError(SkillsServerError):
    """Events were lost, or a root is another directory now: arm anew and look everywhere."""


class Events(Protocol):
    """Events of some directories: of those that a scan looks into, from the moment before it does."""

    def enter(self, top: str, location: str) -> None:
        """A scan of this root is about to look into this directory below it: have its events from now on.

        The directories above it were entered before. Raises nothing; `check` does.
        """
        ...

    def check(self) -> None:
        """Whether all that was entered is watched.

        Raises:
            CannotWatchError: the system would not watch one of them.
        """
        ...

    def wait(self, seconds: float) -> set[str]:
        """The absolute paths that changed, as soon as there are any; none when the time is over or at the stop.

        Raises:
            CannotWatchError: a new directory cannot be watched.
            WatchLostError: what happened is not known.
        """
        ...

    def close(self) -> None:
        """Give back what the system holds for it."""
        ...


def open_events(tops: Sequence[str], stop: threading.Event, *, hidden: bool) -> Events:
    """Watch what scans of these resolved directories see; `hidden` is whether they look into dot folders.

    A directory that is absent is passed over. The watch is armed by a scan of them that calls `enter`.

    Raises:
        CannotWatchError: the system gives no events for all of them.
    """
    if sys.platform == "linux":
        from mcp_skills_server.catalog.watch.inotify import DirectoryEvents

        return DirectoryEvents(tops, MOST_LEVELS, stop, hidden=hidden)
    return TreeEvents(tops, stop, hidden=hidden)


class TreeEvents:
    """Events of whole trees, for systems that have them. Links to directories are not followed there."""

    def __init__(self, tops: Sequence[str], stop: threading.Event, *, hidden: bool) -> None:
        from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

        self._tops = [top for top in tops if os.path.isdir(top)]
        self._stop = stop
        self._hidden = hidden
        try:
            # The backend itself and not watchfiles.watch(), whose generator cannot tell when the watch is armed.
            self._notify = RustNotify(self._tops, False, False, _POLL_MS, True, True)
        except FileNotFoundError:
            raise WatchLostError("a root went while the watch was armed") from None
        except (OSError, WatchfilesRustInternalError) as error:
            raise CannotWatchError(f"no file events from this system ({error})") from None

    def enter(self, top: str, location: str) -> None:
        """As in `Events`; the system watches all of a tree already."""

    def check(self) -> None:
        """As in `Events`."""

    def wait(self, seconds: float) -> set[str]:
        """As in `Events`."""
        changes = self._notify.watch(_GROUP_MS, _STEP_MS, max(1, round(seconds * 1000)), self._stop)
        if isinstance(changes, str):
            return set()
        if any(kind == _DELETED and path in self._tops for kind, path in changes):
            raise WatchLostError("a root is gone")  # the next directory of this path may even have its inode
        return {path for _, path in changes if not is_ignored_below(path, self._tops, hidden=self._hidden)}

    def close(self) -> None:
        """As in `Events`."""
        with suppress(RuntimeError):
            self._notify.close()


def is_ignored_below(path: str, roots: Iterable[str], *, hidden: bool = False) -> bool:
    """Whether no scan enters a part of `path`, below whichever root. A root's own path may hold anything."""
    found = False
    for root in roots:
        if path == root:
            return False
        if path.startswith(root + os.sep):
            found = any(not is_entered(part, hidden=hidden) for part in path[len(root) + 1 :].split(os.sep) if part)
            if not found:
                return False
    return found
