"""Measurement and removal of the directory trees that untrusted scripts leave.

These may have any depth and mode. So the code uses no recursion and no long paths, and follows no
symlinks. Trees may change while they are measured, but are removed only after their scripts' end.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

logger = logging.getLogger(__name__)

MAX_FILES: Final = 20_000
"""The maximum number of files and directories of a session, for a bounded time of walks."""
_ENTRY_BYTES: Final = 1 << 10
"""The fixed cost of a file or directory, in bytes, in addition to its size."""
_PASSES: Final = 5


def exceeds(tops: Iterable[str], most: int) -> bool:
    """Return True if trees exceed `most` bytes on disk or `MAX_FILES`, or are unreadable."""
    total = count = 0
    todo = [*tops]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    total += _ENTRY_BYTES + _bytes(entry)
                    count += 1
                    if total > most or count > MAX_FILES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except FileNotFoundError:
            continue  # removed during the walk
        except OSError:
            return True  # no permission, or a path beyond PATH_MAX
    return False


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if stat.S_ISDIR(status.st_mode):
        return 0
    size = status.st_size
    if hasattr(status, "st_blocks"):
        size = status.st_blocks * 512  # the allocated size of a sparse file
    return size // max(status.st_nlink, 1)


def discard(top: str) -> None:
    """Remove a directory tree, if it exists, and log a failure."""
    try:
        empty(top)
        os.rmdir(top)
    except OSError as error:
        if os.path.lexists(top):
            logger.warning("%s cannot be removed (%s)", top, error.strerror)


def empty(top: str) -> None:
    """Remove everything in a directory; raise OSError if something cannot be removed.

    Each nested directory is first moved to the top, so that no path exceeds PATH_MAX.
    """
    prefix = os.path.join(top, f".{secrets.token_hex(8)}-")
    moved = 0
    _unlock(top)
    todo = _clear_files(top)
    while todo:
        here = todo.pop()
        _unlock(here)
        for inner in _clear_files(here):
            _unlock(inner)
            moved += 1
            os.rename(inner, f"{prefix}{moved}")
            todo.append(f"{prefix}{moved}")
        os.rmdir(here)


def _clear_files(directory: str) -> list[str]:
    """Remove the entries that are not directories, and return the paths of the directories."""
    inner: list[str] = []
    # `scandir` may skip entries of a directory while entries are removed, so repeat it.
    for _ in range(_PASSES):
        inner.clear()
        seen = False
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
                else:
                    seen = True
                    _unlink(entry.path)
        if not seen:
            break
    return inner


def _unlock(directory: str) -> None:
    with suppress(OSError):
        os.chmod(directory, 0o700)


def _unlink(path: str) -> None:
    if os.name == "nt":
        os.chmod(path, stat.S_IWRITE)
    os.unlink(path)
