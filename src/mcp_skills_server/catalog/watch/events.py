"""File events for the directories that a scan enters, from watchfiles.

On Linux (inotify) each directory is watched by itself: no link is followed, and a directory that no
scan enters costs nothing. Elsewhere the system watches a whole tree at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from mcp_skills_server.catalog.disk import is_utf8, to_utf8
from mcp_skills_server.catalog.path_map import above
from mcp_skills_server.errors import SkillsServerError

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_WATCHES_TREES: Final = sys.platform != "linux"
_STEP_MS: Final = 20
"""Poll interval for events. An idle server wakes that often; halving it doubled the idle cost."""
_POLL_MS: Final = 200
_DELETED: Final = 3  # `watchfiles.Change.deleted`
_MAX_TRIES: Final = 10


class CannotWatchError(SkillsServerError):
    """The system gives no events for these directories; the message has cause and remedy."""


class WatchLostError(SkillsServerError):
    """Events were lost, or a root was replaced: arm the watch anew and scan everything."""


class DirectoryEvents:
    """File events below some roots, absolute and resolved; an absent one is skipped.

    A scan calls `enter` for each directory, `arm` then watches them, and a scan of what `arm`
    returns finds what changed before. Once it returns nothing, no change can be missed. The same is
    done after each change that `wait` returns, for the directories that came.

    Watches are kept in groups, because watchfiles cannot add a directory to a watch. A new group
    absorbs the groups that are no larger, so there are few. A directory is watched anew at most
    log2(number of directories) times.

    `stop` ends a wait. `enters` tells whether a scan enters a path.
    """

    def __init__(
        self, tops: Sequence[str], stop: threading.Event, enters: Callable[[str], bool]
    ) -> None:
        self._tops = list(dict.fromkeys(tops))
        self._stop = stop
        self._enters = enters
        self._entered: set[str] = set()
        self._groups: list[tuple[set[str], RustNotify]] = []

    def enter(self, top: str, location: str) -> None:
        """Record that a scan of the root `top` enters the directory `location` below it."""
        self._entered.add(f"{top}{os.sep}{location}" if location else top)

    def arm(self) -> set[str]:
        """Watch the directories entered since the last call; return those with a new watch.

        Among them are those of absorbed groups, whose last events may be lost.

        Raises:
            CannotWatchError: the system refuses to watch one of them.
            WatchLostError: directories come and go too fast.
        """
        entered, self._entered = self._entered, set()
        for top in self._tops:
            if not is_utf8(top):
                fault = "file events need a path in UTF-8; rename the folder"
                raise CannotWatchError(f"{to_utf8(top)}: {fault}")
        if _WATCHES_TREES:
            entered &= set(self._tops)
        new = {
            directory
            for directory in entered
            if not self._is_watched(directory) and _is_readable(directory)
        }
        if new:
            new = self._watch(new)
        return new

    def wait(self, seconds: float) -> set[str]:
        """Return the absolute paths that changed, or an empty set after `seconds` or at the stop.

        Raises:
            WatchLostError: a root is gone, or watchfiles failed.
        """
        end = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < end:
            changes = set[tuple[int, str]]()
            if not self._groups:
                self._stop.wait(seconds)
            for _, notify in self._groups:
                changes |= _events_of(notify, max(1, _STEP_MS // len(self._groups)))
            changes = {(kind, path) for kind, path in changes if self._enters(path)}
            if any(kind == _DELETED and path in self._tops for kind, path in changes):
                # a new directory at this path may even reuse the inode
                raise WatchLostError("a root is gone")
            gone = {path for kind, path in changes if kind == _DELETED and self._is_watched(path)}
            if gone:
                self._forget(gone)
            if changes:
                return {path for _, path in changes}
        return set()

    def close(self) -> None:
        """Release the watches."""
        for _, notify in self._groups:
            notify.close()
        self._groups.clear()

    def _forget(self, gone: Collection[str]) -> None:
        """Forget the watches of directories that are gone and all below: others may come there."""
        # `above` suits absolute paths, too: only Linux watches directories below roots.
        for watched, _ in self._groups:
            watched -= {inner for inner in watched if not set(above(inner)).isdisjoint(gone)}

    def _is_watched(self, directory: str) -> bool:
        return any(directory in watched for watched, _ in self._groups)

    def _watch(self, directories: set[str]) -> set[str]:
        """Watch directories in a new group, which absorbs no larger ones; return all in it."""
        while self._groups and len(self._groups[-1][0]) <= len(directories):
            smaller, notify = self._groups.pop()
            directories = directories | smaller
            notify.close()
        directories, notify = _opened(directories)
        self._groups.append((directories, notify))
        return {*directories}


def _events_of(notify: RustNotify, ms: int) -> set[tuple[int, str]]:
    """Return the events that watchfiles has queued, or that arrive within `ms` milliseconds.

    Raises:
        WatchLostError: watchfiles failed, as it does at a name that is not UTF-8.
    """
    from watchfiles._rust_notify import WatchfilesRustInternalError

    try:
        changes = notify.watch(debounce_ms=ms, step_ms=ms, timeout_ms=ms, stop_event=None)
    except WatchfilesRustInternalError as error:
        raise WatchLostError(str(error)) from None
    if isinstance(changes, str):
        return set()
    return changes


def _opened(directories: set[str]) -> tuple[set[str], RustNotify]:
    """Open a watch on those of the directories that exist; return them and the watch.

    Raises:
        CannotWatchError: the system refuses.
        WatchLostError: the directories come and go too fast.
    """
    # Not `watchfiles.watch`: that generator cannot tell when the watch is armed.
    from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

    for _ in range(_MAX_TRIES):
        there = set(filter(_is_readable, directories))
        try:
            return there, RustNotify(
                sorted(there),
                debug=False,
                force_polling=False,
                poll_delay_ms=_POLL_MS,
                recursive=_WATCHES_TREES,
                ignore_permission_denied=False,  # it would also hide an exhausted watch limit
            )
        except (FileNotFoundError, PermissionError):
            continue  # one of them vanished or changed since the check
        except (OSError, WatchfilesRustInternalError) as error:
            raise CannotWatchError(_reason(str(error))) from None
    raise WatchLostError("directories come and go faster than they can be watched")


def _is_readable(directory: str) -> bool:
    return os.path.isdir(directory) and os.access(directory, os.R_OK)


def _reason(error: str) -> str:
    if _WATCHES_TREES:
        return f"this system provides no file events ({error})"
    if "limit" in error:
        return (
            "not enough inotify watches for every directory (fs.inotify.max_user_watches is "
            f"{_limit('watches')}); raise the limit with sysctl"
        )
    return (
        f"no file events ({error}): no inotify instance is left (fs.inotify.max_user_instances is "
        f"{_limit('instances')}), or no file descriptor; raise the limit with sysctl or ulimit -n"
    )


def _limit(what: str) -> str:
    """Return Linux's limit for one user: the lower of the system's and the user namespace's."""
    limits: list[int] = []
    for path in (f"/proc/sys/fs/inotify/max_user_{what}", f"/proc/sys/user/max_inotify_{what}"):
        try:
            with open(path, encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            continue
    if limits:
        return str(min(limits))
    return "not known"
