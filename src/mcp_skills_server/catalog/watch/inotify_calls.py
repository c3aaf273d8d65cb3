"""The calls of inotify(7), which Python has none for, and its events.

The C library is part of the process already: nothing looks for its file, which would start another program.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

MODIFY: Final = 0x2
ATTRIB: Final = 0x4
CLOSE_WRITE: Final = 0x8
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
DELETE_SELF: Final = 0x400
MOVE_SELF: Final = 0x800
UNMOUNT: Final = 0x2000
Q_OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000
ONLYDIR: Final = 0x0100_0000
DONT_FOLLOW: Final = 0x0200_0000
ISDIR: Final = 0x4000_0000

_HEAD: Final = struct.Struct("iIII")
_SIZE: Final = struct.Struct("i")


class Event(NamedTuple):
    """One event.

    Attributes:
        watch: whose event it is; -1 for the overflow of the queue.
        mask: what happened, as above.
        name: of what is in the directory, "" for the directory itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance, with its watches.

    Raises:
        OSError: the system gives none.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._add: Callable[[int, bytes, int], int] = libc.inotify_add_watch
        self._remove: Callable[[int, int], int] = libc.inotify_rm_watch
        self._descriptor = _done(libc.inotify_init1, os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def fileno(self) -> int:
        """The descriptor, -1 once it is closed."""
        return self._descriptor

    def close(self) -> None:
        """Give back the instance and every watch. Closing it again does nothing; every other call raises OSError."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._poll.unregister(descriptor)  # the number may be another file's soon
            os.close(descriptor)

    def add(self, path: str, mask: int) -> int:
        """Watch a directory; the number of the watch, which is the same for the same directory.

        Raises:
            OSError: it cannot be watched.
        """
        watch = self._add(self._descriptor, os.fsencode(path), mask)
        return watch if watch >= 0 else _done(self._add, self._descriptor, os.fsencode(path), mask)

    def remove(self, watch: int) -> None:
        """End a watch.

        Raises:
            OSError: it has ended.
        """
        _done(self._remove, self._descriptor, watch)

    def read(self, timeout_ms: int) -> list[Event]:
        """All that has happened, as soon as there is anything; nothing when the time is over.

        Raises:
            OSError: it was closed.
        """
        ready = self._descriptor < 0 or self._poll.poll(timeout_ms)
        if self._descriptor < 0:  # before the wait, or in another thread during it
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not ready:
            return []
        (size,) = _SIZE.unpack(fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(_SIZE.size)))
        return list(_events(os.read(self._descriptor, size))) if size else []


def _done(call: Callable[..., int], *arguments: object) -> int:
    """What a call returns, made again where a signal ended it.

    Raises:
        OSError: it failed.
    """
    while (result := call(*arguments)) == -1:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return result


def _events(raw: bytes) -> Iterator[Event]:
    at = 0
    while at < len(raw):
        watch, mask, _cookie, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size + length
        yield Event(watch, mask, os.fsdecode(raw[at - length : at].rstrip(b"\0")))
