"""Durable, atomic file writes, and checks that no other user could have written a file.

Pure packages do not use this module.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3

_MAX_SINGLE: Final = 64
"""The most paths that are flushed one by one; for more, their whole file system is."""
_LEFT_S: Final = 3600.0
"""Seconds after which a temporary file counts as left by a killed process."""
_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2
"""Flag value of both `RENAME_EXCHANGE` (Linux `renameat2`) and `RENAME_SWAP` (macOS)."""
_NOT_FLUSHABLE: Final = frozenset((errno.EINVAL, errno.ENOTSUP))


def read_regular(
    path: str | os.PathLike[str], most_bytes: int, *, wait: bool = False
) -> tuple[bytes, os.stat_result]:
    """Read a regular file of at most `most_bytes` bytes, and its status.

    Symlinks are followed. With `wait` a FIFO is read until its writer
    closes it, as for `<(...)` of a shell.

    Raises:
        OSError: the file is unreadable, too large, or not regular. Without `wait` a FIFO fails at
            once.
    """
    nonblocking = 0 if wait else getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, os.O_RDONLY | nonblocking | getattr(os, "O_BINARY", 0))
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode) or not (wait or stat.S_ISREG(status.st_mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    with open(descriptor, "rb") as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", os.fspath(path))
    return raw, status


def sync_path(path: str | os.PathLike[str]) -> None:
    """Flush a file or a folder's entries to the disk (fsync), if the system can."""
    with suppress(OSError):
        sync_paths([os.fspath(path)])


def untrusted_reason(status: os.stat_result) -> str:
    """Return why other users may have written a file or folder, for a message; "" if they cannot.

    On Windows, with access lists instead of modes, all files are trusted.
    """
    if sys.platform == "win32":
        return ""
    if status.st_uid not in {0, os.geteuid()}:
        return "belongs to another user"
    return "is writable by other users" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def sync_paths(paths: Collection[str]) -> None:
    """Flush files and folders of one file system to the disk (fsync).

    On Windows do nothing: folders cannot be flushed there.

    Raises:
        OSError: the disk failed. File systems that cannot flush folders raise nothing.
    """
    if sys.platform == "win32":
        return
    if len(paths) > _MAX_SINGLE and sys.platform == "linux":
        _sync_file_system(next(iter(paths)))
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_FLUSHABLE:
                raise
        finally:
            os.close(descriptor)


def _sync_file_system(path: str) -> None:
    """Flush the file system of a path; sync() would also wait for every other disk."""
    import ctypes

    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise _os_error(ctypes.get_errno(), path)
    finally:
        os.close(descriptor)


def _os_error(number: int, path: str | os.PathLike[str]) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


def replace_file(path: Path, raw: bytes, mode: int | None) -> None:
    """Replace a file atomically and durably, with these permissions or the user's default ones.

    Temporary files that killed processes left beside it are removed after an hour.

    Raises:
        OSError: it cannot be written. The old file is unchanged.
    """
    fresh = path.parent / f".{path.name}-{os.urandom(4).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(fresh, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(descriptor)
            now = os.fstat(descriptor).st_mtime
        if mode not in (None, 0o600):  # not for those: some file systems refuse chmod
            os.chmod(fresh, mode)
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    sync_path(path.parent)
    ours = re.compile(rf"\.{re.escape(path.name)}-[a-z0-9_]{{8}}\.new")
    with suppress(OSError):
        for name in filter(ours.fullmatch, os.listdir(path.parent)):
            temporary = path.parent / name
            with suppress(OSError):
                if temporary.lstat().st_mtime < now - _LEFT_S:
                    temporary.unlink()


def write_folder(path: Path, files: Mapping[str, tuple[bytes, bool]]) -> None:
    """Write a new folder atomically; `files` are (content, executable) by path.

    The folder is durable at return, except on Windows.

    Raises:
        OSError: it cannot be written, or exists and is not empty.
    """
    import secrets  # lazy: a server starts without them
    import shutil

    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name[:50]}-{secrets.token_hex(6)}")
    fresh.mkdir()
    try:
        for name, (raw, executable) in files.items():
            target = fresh / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)
            if executable:
                target.chmod(0o755)
        sync_paths([*map(str, fresh.rglob("*")), str(fresh)])
        fresh.rename(path)
        sync_paths([str(path.parent)])
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


@contextmanager
def open_database(path: str | Path, busy_s: float) -> Generator[sqlite3.Connection]:
    """Open an SQLite database; at the end commit, or roll back after an error, and close it."""
    import sqlite3  # lazy: a start without an index needs none

    database = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
    with closing(database), database:
        database.execute("PRAGMA synchronous = NORMAL")
        yield database


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders of one file system atomically.

    Raises:
        OSError: the system or file system cannot do this, or a folder is missing. Nothing changed.
    """
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform == "linux":
        failed = library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE)
    elif sys.platform == "darwin":
        failed = library.renamex_np(first, second, _EXCHANGE)
    else:
        raise OSError(errno.ENOTSUP, "this system cannot exchange two folders", os.fspath(one))
    if failed:
        raise _os_error(ctypes.get_errno(), one)
    for folder in {one.parent, other.parent}:
        sync_path(folder)
