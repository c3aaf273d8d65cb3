"""File access below a root that never follows a link, safe against TOCTOU races.

Directories are opened one inside the other, by descriptor where the platform can, so a directory
that is meanwhile swapped for a link is refused. Files are opened with O_NOFOLLOW. A scan reads the
file that its walk found, a request the file that has the scanned digest. No client text comes here:
callers pass names that a scan found.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from mcp_skills_server.format.ignored import is_ignored

_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_COMMON: Final[int] = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FILE: Final[int] = _COMMON | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_DIRECTORY: Final[int] = _COMMON | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0)
_STEP: Final[int] = _DIRECTORY | getattr(os, "O_PATH", 0)
"""Flags to open a directory on the way to another: it need not be readable."""
_BY_DESCRIPTOR: Final = os.scandir in os.supports_fd and os.open in os.supports_dir_fd
_SETTLED_NS: Final = 2_000_000_000
"""Minimum age of a file at its scan for reliable time stamps, even on FAT."""

MISSING_ERRORS: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
"""Errors of opening a directory that does not exist (any more)."""
TRANSIENT_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Transient errors: the process ran out of descriptors or memory."""

Handle: TypeAlias = "int | str"
"""An open directory: a descriptor, or its path on platforms without `dir_fd`."""


def signature(status: os.stat_result) -> str:
    """Return a stat signature that changes with the content of a file.

    Size and modification time are not enough: an rsync-style rewrite keeps both. One text for each
    file takes half the memory of five numbers.
    """
    size, mtime = status.st_size, status.st_mtime_ns
    since = status.st_ctime_ns - mtime
    return f"{size:x}.{mtime:x}.{since:x}.{status.st_ino:x}.{status.st_dev:x}"


class WalkedFile(NamedTuple):
    """A regular file as a walk found it, not read yet.

    Attributes:
        location: root-relative path, `/`-separated, with links resolved.
        is_settled: False if the file was so young that a later write could leave the same
            signature.
    """

    location: str
    size: int
    signature: str
    is_settled: bool
    is_executable: bool


def file_from(status: os.stat_result, location: str, now: int) -> WalkedFile:
    """Make a WalkedFile from a stat result taken at `now` (nanoseconds)."""
    young = now - _SETTLED_NS
    is_settled = status.st_mtime_ns < young and status.st_ctime_ns < young
    is_executable = bool(status.st_mode & stat.S_IXUSR)
    return WalkedFile(location, status.st_size, signature(status), is_settled, is_executable)


def is_foreign_hard_link(status: os.stat_result, handle: Handle) -> bool:
    """Tell whether a file is a hard link, owned by another user than its directory.

    Otherwise a user who may write into a folder could make the server read other users' files. Hard
    links within one owner's files are common: package stores and backups use them.
    """
    is_linked = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return is_linked and status.st_uid != os.stat(handle).st_uid


@contextmanager
def open_directory(root_path: str, path: str, *, follow: bool = True) -> Generator[Handle]:
    """Open a directory below a root, one path segment at a time, following no link.

    With `follow` the root itself may be a link.

    Raises:
        OSError: the directory is missing, is no directory, or has a link in its path.
    """
    handle = enter(None, root_path, follow=follow)
    try:
        for step in path.split("/") if path else ():
            inner = enter(handle, step)
            close(handle)
            handle = inner
        yield handle
    finally:
        close(handle)


@contextmanager
def open_real(path: str) -> Generator[Handle]:
    """Open a directory by its real path, from `/` down, following no link.

    Raises:
        OSError: the directory is missing, is no directory, or has a link in its path by now.
    """
    if not _BY_DESCRIPTOR:
        yield enter(None, path)
        return
    *steps, last = path.strip(os.sep).split(os.sep)
    handle = os.open(os.sep, _STEP)
    try:
        for step, flags in (*((step, _STEP) for step in steps), (last or ".", _DIRECTORY)):
            inner = os.open(step, flags, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def lstat(handle: Handle, name: str) -> os.stat_result:
    """Return the status of a name in an open directory, not following a link.

    Raises:
        OSError: nothing has this name.
    """
    if isinstance(handle, int):
        return os.stat(name, dir_fd=handle, follow_symlinks=False)
    return os.lstat(f"{handle}/{name}")


def read(
    path: str, most_bytes: int, directory: Handle | None = None
) -> tuple[bytes, os.stat_result]:
    """Read a regular file whole, not through a link; return its bytes and stat result.

    `path` may be a name in the open `directory`.

    Raises:
        OSError: the file is gone, unreadable, not regular, or larger than `most_bytes`.
    """
    if isinstance(directory, str):
        path = f"{directory}/{path}"
    descriptor = os.open(path, _FILE, dir_fd=directory if isinstance(directory, int) else None)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise OSError(errno.EFBIG, "it is too large, or not a regular file", path)
        return _read_all(descriptor, status.st_size), status
    finally:
        os.close(descriptor)


def ingest(
    root_path: str, location: str, file: WalkedFile, most_bytes: int
) -> tuple[bytes, WalkedFile]:
    """Read a file that a walk found; return its bytes, and the file as it is now.

    The path of the directory `root_path` is free of links; `location` is that of the file below it.

    Raises:
        OSError: the file is gone, unreadable, not regular, or too large.
    """
    path = f"{root_path}/{location}"
    try:
        raw, status = read(path, most_bytes)
        # it changed, or a directory above it was swapped for a link
        if signature(status) != file.signature:
            parent, _, name = location.rpartition("/")
            with open_directory(root_path, parent) as handle:
                raw, status = read(name, most_bytes, handle)
                if is_foreign_hard_link(status, handle):
                    raise FileNotFoundError(errno.ENOENT, "", path)
    except OSError as error:
        reason = error.strerror
        if error.errno in MISSING_ERRORS:
            reason = "it keeps changing"
        raise OSError(error.errno, reason, path) from None
    mark = signature(status)
    if mark != file.signature or len(raw) != status.st_size:
        file = file._replace(size=len(raw), signature=mark, is_settled=False)
    return raw, file


def resolve_link(root_path: str, directory: str, name: str) -> WalkedFile | None:
    """Return the regular file inside the root that a link leads to, or None.

    None for a link that leaves the root, leads to a directory or a device, is broken, or passes an
    ignored name. Ignored names in the path of the link itself do not count: the walk entered those.
    """
    target = os.path.realpath(os.path.join(root_path, directory, name))
    if os.path.commonpath((target, root_path)) != root_path or target == root_path:
        return None
    location = os.path.relpath(target, root_path).replace(os.sep, "/")
    parts, ours = location.split("/"), directory.split("/")
    common = next(
        (n for n, (part, own) in enumerate(zip(parts, ours, strict=False)) if part != own),
        len(ours),
    )
    if any(is_ignored(part) for part in parts[common:]) or not is_utf8(location):
        return None
    status = lstat_below(root_path, location)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return file_from(status, location, time.time_ns())


def lstat_below(root_path: str, location: str) -> os.stat_result | None:
    """Return the lstat result at a root-relative path; None if missing or a foreign hard link."""
    parent, _, last = location.rpartition("/")
    try:
        with open_directory(root_path, parent) as handle:
            status = lstat(handle, last)
            if is_foreign_hard_link(status, handle):
                return None
            return status
    except OSError:
        return None


def _read_all(descriptor: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def enter(parent: Handle | None, name: str, *, follow: bool = False) -> Handle:
    """Open a directory inside an open one, or by its path without a parent; see `close`.

    Raises:
        OSError: the directory is missing, is no directory, or is a link that must not be followed.
    """
    if not _BY_DESCRIPTOR:
        path = name if parent is None else f"{parent}/{name}"
        if not stat.S_ISDIR((os.stat if follow else os.lstat)(path).st_mode):
            raise NotADirectoryError(path)
        return path
    flags = _DIRECTORY
    if follow:
        flags = _DIRECTORY & ~_NOFOLLOW
    return os.open(name, flags, dir_fd=parent if isinstance(parent, int) else None)


def close(handle: Handle) -> None:
    """Close a handle of `enter`."""
    if isinstance(handle, int):
        os.close(handle)


def is_utf8(name: str) -> bool:
    """Tell whether a name, as decoded from the file system, is UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def to_utf8(name: str) -> str:
    """Return the name with its bytes that are not UTF-8 escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
