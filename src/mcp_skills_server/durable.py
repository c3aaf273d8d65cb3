"""Durable and trusted files: they survive a power cut, and no other user wrote them. Pure packages
do not use it."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_FEW: Final = 64
"""Up to so many paths are synchronized one by one; of more, the whole disk is at once."""
_LEFT_S: Final = 3600.0
"""A new file that still waits for its name after so long was left by a process that was killed."""
_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2
"""`RENAME_EXCHANGE` of Linux, which `renameat2` takes, and `RENAME_SWAP` of macOS."""
_CANNOT: Final = frozenset((errno.EINVAL, errno.ENOTSUP))


def read_regular(
    path: str | os.PathLike[str], most_bytes: int, *, wait: bool = False
) -> tuple[bytes, os.stat_result]:
    """Read a regular file, at most `most_bytes` and one more, and its status.

    Args:
        path: the operator's name of it; links are followed.
        most_bytes: the bound that the caller then checks.
        wait: read a FIFO too, until its writer ends: of what a command reads once, `<(...)` of a
            shell may be one.

    Raises:
        OSError: it cannot be read, or is no regular file. Nothing waits for the writer of a FIFO
            without `wait`.
    """
    nonblocking = 0 if wait else getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, os.O_RDONLY | nonblocking | getattr(os, "O_BINARY", 0))
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode) or not (wait or stat.S_ISREG(status.st_mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    with open(descriptor, "rb") as file:
        return file.read(most_bytes + 1), status


def sync_path(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, on the disk when this returns, where the system can do
    that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def why_untrusted(found: os.stat_result) -> str:
    """Return why a file or folder may hold what another user wrote, to follow its name; "" where
    only this user or root can.

    Where the system has lists of who may write in place of modes, it is trusted to keep others out.
    """
    if sys.platform == "win32":
        return ""
    if found.st_uid not in {0, os.geteuid()}:
        return "belongs to another user"
    return "may be written by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def sync_paths(paths: Collection[str]) -> None:
    """Have files and folders on the disk when this returns; not on Windows, where a file is
    synchronized when written.

    Raises:
        OSError: the disk failed. Where a file system cannot synchronize a folder, nothing is
            raised.
    """
    if sys.platform == "win32":
        return
    if len(paths) > _FEW and sys.platform == "linux":  # which alone waits until it is done
        os.sync()
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        finally:
            os.close(descriptor)


def replace_file(path: Path, raw: bytes, mode: int | None) -> None:
    """Replace a file atomically, on the disk when this returns.

    What processes that were killed have left beside it is removed after an hour.

    Args:
        path: the file.
        raw: its new contents.
        mode: its permissions; None for those of any new file of this user.

    Raises:
        OSError: it cannot be written. The old file is untouched.
    """
    made = path.parent / f".{path.name}-{os.urandom(4).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(made, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(descriptor)
            now = os.fstat(descriptor).st_mtime
        # What is private is made so: some file systems have no modes.
        if mode is not None and mode & ~0o600:
            os.chmod(made, mode)
        os.replace(made, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(made)
        raise
    sync_path(path.parent)
    ours = re.compile(rf"\.{re.escape(path.name)}-[a-z0-9_]{{8}}\.new")
    with suppress(OSError):
        for left in filter(ours.fullmatch, os.listdir(path.parent)):
            place = path.parent / left
            with suppress(OSError):
                if place.lstat().st_mtime < now - _LEFT_S:
                    place.unlink()


def write_folder(path: Path, files: Mapping[str, tuple[bytes, bool]]) -> None:
    """Write a new folder, whole or not at all, on the disk when this returns.

    Args:
        path: where nothing is yet.
        files: by their paths in it: their bytes, and whether they may be executed.

    Raises:
        OSError: it cannot be written, or something is there.
    """
    import secrets  # late: a server starts without them
    import shutil

    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name[:50]}-{secrets.token_hex(6)}")
    made.mkdir()
    try:
        for name, (raw, executable) in files.items():
            place = made / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)
            if executable:
                place.chmod(0o755)
        sync_paths([*map(str, made.rglob("*")), str(made)])
        made.rename(path)
        sync_paths([str(path.parent)])
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders of one file system atomically.

    Raises:
        OSError: the system or the file system cannot do that, or a folder is not there. Nothing is
            changed.
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
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(one))
    sync_path(one.parent)
