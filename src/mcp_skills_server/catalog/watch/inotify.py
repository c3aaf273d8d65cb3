"""Linux: one inotify watch for each directory that a scan enters, and for no other.

Links to directories are never followed, so a link into a root or to a large tree adds nothing. A directory is watched
before it is listed, by the scan itself or by the event of its coming: what appears in between is in the list. The
places below say which paths a watch stands for; they are kept as directories come, go and move, so an event costs the
same however many directories there are.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from mcp_skills_server.catalog.watch import inotify_calls as calls
from mcp_skills_server.catalog.watch.events import CannotWatchError, WatchLostError
from mcp_skills_server.catalog.watch.inotify_calls import Inotify
from mcp_skills_server.format.ignored import is_entered, is_ignored

_CAME: Final = calls.CREATE | calls.MOVED_TO
_WENT: Final = calls.DELETE | calls.MOVED_FROM
_CHANGED: Final = calls.MODIFY | calls.CLOSE_WRITE | calls.ATTRIB
_REPLACED: Final = calls.MOVE_SELF | calls.DELETE_SELF | calls.UNMOUNT | calls.IGNORED
"""What ends a root: another directory may stand at its path already, even with the same inode."""
_MASK: Final = _CAME | _WENT | _CHANGED | calls.MOVE_SELF | calls.ONLYDIR | calls.DONT_FOLLOW

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_LOOK_FOR_STOP_MS: Final = 100
_FEW: Final = 4


class _Place:
    """A watched directory: a root by its absolute path, any other by its name in the one above."""

    __slots__ = ("above", "below", "name", "twin", "watch")

    def __init__(self, name: str, above: _Place | None) -> None:
        self.name = sys.intern(name)  # many skills have directories of the same names
        self.above = above
        self.below: dict[str, _Place] | tuple[_Place, ...] = ()
        """The places in it; a dict takes four times the memory of a few places, and pays for many."""
        self.twin: _Place | None = None
        """Another place of the same directory, which has the same watch."""
        self.watch = -1

    def child(self, name: str) -> _Place | None:
        if isinstance(self.below, dict):
            return self.below.get(name)
        for each in self.below:
            if each.name == name:
                return each
        return None

    def put(self, child: _Place) -> None:
        below = self.below
        if isinstance(below, dict):
            below[child.name] = child
        elif len(below) < _FEW and self.child(child.name) is None:
            self.below = (*below, child)
        else:
            self.below = {each.name: each for each in (*below, child)}

    def drop(self, child: _Place) -> None:
        if self.child(child.name) is child:
            if isinstance(self.below, dict):
                del self.below[child.name]
            else:
                self.below = tuple(each for each in self.below if each is not child)

    def children(self) -> list[_Place]:
        return list(self.below.values() if isinstance(self.below, dict) else self.below)

    def path(self) -> str:
        names: list[str] = []
        place: _Place | None = self
        while place is not None:
            names.append(place.name)
            place = place.above
        return os.path.join(*reversed(names))

    def level(self) -> int:
        level, place = 0, self.above
        while place is not None:
            level, place = level + 1, place.above
        return level


class DirectoryEvents:
    """Events of all that scans of some roots see.

    Args:
        tops: the resolved directories, watched when they are entered; one that is absent or unreadable is passed over.
        reach: levels of directories below each that are watched.
        stop: ends a wait.
        hidden: whether dot folders outside of skills are scanned. Those inside are then watched without need.

    Raises:
        CannotWatchError: the system gives no events at all.
    """

    def __init__(self, tops: Sequence[str], reach: int, stop: threading.Event, *, hidden: bool) -> None:
        self._reach = reach
        self._stop = stop
        self._hidden = hidden
        self._places: dict[int, _Place] = {}
        """By watch. The kernel has one for a directory, also where that is seen at several paths."""
        self._denied: set[str] = set()
        """The paths of directories that could not be watched for want of permission."""
        self._tops = {top: _Place(top, None) for top in tops}
        self._holder: tuple[str, str, _Place | None] = "", "", None
        """The place of the directory in which one was entered last, behind its own place below a root, and that."""
        self._trouble: CannotWatchError | None = None
        self._notify = _open()

    def enter(self, top: str, location: str) -> None:
        """As in `Events`."""
        place = self._entered(top, location)
        if place is None or place.watch >= 0 or self._trouble is not None:
            return
        try:
            self._watch(place, f"{top}{os.sep}{location}" if location else top)
        except CannotWatchError as error:
            self._trouble = error
            self.close()  # the watches are other programs' as well, and the scan may go on for a while

    def check(self) -> None:
        """As in `Events`."""
        if self._trouble is not None:
            raise self._trouble

    def _entered(self, top: str, location: str) -> _Place | None:
        """The place of a directory that is entered, None where the one above it could not be watched.

        That is gone then, or another by now, and the event of that has the rest armed.
        """
        if not location:
            return self._tops.get(top)
        holder, _, last = location.rpartition("/")
        known = self._holder
        if known[0] != holder or known[1] != top or known[2] is None or known[2].watch < 0:
            known = self._holder = holder, top, self._find(top, holder)
        place = known[2]  # a scan enters what lies in a directory one after the other
        return None if place is None else place.child(last) or _Place(last, place)

    def _find(self, top: str, location: str) -> _Place | None:
        """The place of a directory, None where it or one above it is not watched."""
        place = self._tops.get(top)
        for name in location.split("/") if location else ():
            if place is None or place.watch < 0:
                return None
            place = place.child(name)
        return None if place is None or place.watch < 0 else place

    def _at(self, watch: int) -> Iterator[_Place]:
        """The places of a watch."""
        place = self._places.get(watch)
        while place is not None:
            yield place
            place = place.twin

    def close(self) -> None:
        """Give back every watch."""
        self._notify.close()

    def wait(self, seconds: float) -> set[str]:
        """The absolute paths that changed, as soon as there are any; none when the time is over or at the stop.

        Raises:
            CannotWatchError: a new directory cannot be watched.
            WatchLostError: events were dropped, or a root is gone.
        """
        changed: set[str] = set()
        end = time.monotonic() + seconds
        while not changed and not self._stop.is_set() and (left := end - time.monotonic()) > 0:
            timeout = min(_LOOK_FOR_STOP_MS, int(left * 1000) + 1)
            for watch, mask, name in self._notify.read(timeout):
                if mask & calls.Q_OVERFLOW:
                    raise WatchLostError("more happened than the system keeps events of")
                for place in tuple(self._at(watch)):
                    self._handle(place, mask, name, changed)
        return changed

    def _handle(self, place: _Place, mask: int, name: str, changed: set[str]) -> None:
        if not name:
            self._handle_own(place, mask, changed)
        elif not mask & calls.ISDIR:
            if not is_ignored(name):
                changed.add(os.path.join(place.path(), name))
        elif is_entered(name, hidden=self._hidden):
            path = os.path.join(place.path(), name)
            changed.add(path)
            known = place.child(name)
            if mask & (_CAME | _WENT) or self._may_be_allowed_now(path):
                if known is not None:
                    self._forget(known)  # or it would go on under a name that it no longer has
                if not mask & _WENT and place.level() < self._reach:
                    self._arm(_Place(name, place))

    def _handle_own(self, place: _Place, mask: int, changed: set[str]) -> None:
        if mask & _REPLACED and place.above is None:
            raise WatchLostError("a root is gone")
        if mask & calls.IGNORED:
            self._forget(place)
        elif mask & (calls.ATTRIB | calls.UNMOUNT):
            changed.add(path := place.path())
            if mask & calls.UNMOUNT or self._may_be_allowed_now(path):
                self._forget(place)
                self._arm(_Place(place.name, place.above))  # below a mount point there is what it had hidden

    def _may_be_allowed_now(self, path: str) -> bool:
        """Whether something at or below this path, whose permissions changed, could not be watched."""
        found = {each for each in self._denied if each == path or each.startswith(path + os.sep)}
        self._denied -= found
        return bool(found)

    def _arm(self, first: _Place) -> None:
        """Watch a directory and all below it that is not yet watched."""
        todo = [(first, first.path(), self._reach - first.level())]
        while todo:
            place, path, levels = todo.pop()
            for name in self._watch(place, path, inner=levels > 0):
                todo.append((_Place(name, place), f"{path}{os.sep}{name}", levels - 1))

    def _watch(self, place: _Place, path: str, *, inner: bool = False) -> list[str]:
        """Watch one directory; the names of those in it, if these are wanted."""
        try:
            self._add(place, path)
            return self._inner(path) if inner else []
        except OSError as error:
            self._forget(place)
            if isinstance(error, PermissionError):
                self._denied.add(path)
            elif error.errno == errno.ENOSPC:
                raise CannotWatchError(_no_watches()) from None
            elif error.errno in (*_OUT_OF_DESCRIPTORS, errno.ENOMEM):
                raise CannotWatchError(f"no file events ({error.strerror})") from None
            return []  # gone meanwhile; its end is an event of the directory above

    def _add(self, place: _Place, path: str) -> None:
        place.watch = watch = self._notify.add(path, _MASK)
        place.twin = self._places.get(watch)
        self._places[watch] = place
        if place.above is not None:
            place.above.put(place)

    def _inner(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [name for name in found if is_entered(name, hidden=self._hidden)]

    def _forget(self, first: _Place) -> None:
        """End the watches of a place and of all below it."""
        if first.above is not None:
            first.above.drop(first)
        todo = [first]
        while todo:
            place = todo.pop()
            todo += place.children()
            place.below = ()
            if place.watch >= 0:
                self._let_go(place)

    def _let_go(self, place: _Place) -> None:
        """End the watch of a place, unless it is that of another one, too."""
        others = [other for other in self._at(place.watch) if other is not place]
        self._places.pop(place.watch, None)
        if not others:
            self._remove(place.watch)
        for other in others:
            other.twin = self._places.get(place.watch)
            self._places[place.watch] = other
        place.watch, place.twin = -1, None

    def _remove(self, watch: int) -> None:
        with suppress(OSError):  # it may have ended with its directory
            self._notify.remove(watch)


def _open() -> Inotify:
    try:
        return Inotify()
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            message = (
                f"no inotify instance is left (fs.inotify.max_user_instances is {_limit('instances')}), "
                "or no file descriptor; raise the limit with sysctl or ulimit -n"
            )
            raise CannotWatchError(message) from None
        raise CannotWatchError(f"inotify cannot be used here ({error.strerror})") from None


def _no_watches() -> str:
    return (
        "not enough inotify watches for every directory "
        f"(fs.inotify.max_user_watches is {_limit('watches')}); raise the limit with sysctl"
    )


def _limit(what: str) -> str:
    """What the system allows one user: the lower of its own limit and that of the user namespace."""
    found: list[int] = []
    for path in (f"/proc/sys/fs/inotify/max_user_{what}", f"/proc/sys/user/max_inotify_{what}"):
        try:
            with open(path, encoding="ascii") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return str(min(found)) if found else "not known"
