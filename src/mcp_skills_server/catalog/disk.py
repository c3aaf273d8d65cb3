"""The boundary to the disk: opens directories and files below a root without ever following a link.

Directories are opened one inside the other, by descriptor where the platform can, so that a
directory that is swapped for a link meanwhile is refused. Files are opened with O_NOFOLLOW; a scan
reads the one that its walk found, and a request the one that has the digest of the scan. Client
text never comes here: callers pass names that a scan found.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, TypeAlias

from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.model import SkillFile

_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_COMMON: Final[int] = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FILE: Final[int] = _COMMON | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_DIRECTORY: Final[int] = _COMMON | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0)
_STEP: Final[int] = _DIRECTORY | getattr(os, "O_PATH", 0)
"""Opens a directory on the way to another: it need not be readable."""
_BY_DESCRIPTOR: Final = os.scandir in os.supports_fd and os.open in os.supports_dir_fd
_SETTLED_NS: Final = 2_000_000_000
"""A file older than this at its scan cannot change without its time stamps, even on FAT."""

GONE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
"""Errors of opening a directory where there is none (any more)."""
PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of any call that would succeed a moment later: the process ran out of something."""

Handle: TypeAlias = "int | str"
"""An open directory: a descriptor, or its path on platforms that cannot open relative to one."""


_SIGNATURE: Final = "%x.%x.%x.%x.%x"
"""Size, time of modification, how much later the inode changed, inode, device. One text takes half
the memory of five numbers, and there is one for every file."""


def signature(found: os.stat_result) -> str:
    """Return what tells one content of a file from the next without reading it.

    Size and modification time are not enough: an rsync-style rewrite keeps both.
    """
    mtime = found.st_mtime_ns
    return _SIGNATURE % (
        found.st_size,
        mtime,
        found.st_ctime_ns - mtime,
        found.st_ino,
        found.st_dev,
    )


def file_from(found: os.stat_result, root: int, location: str, now: int) -> SkillFile:
    """Return the SkillFile, its digest unknown, of a stat result taken at `now` (nanoseconds)."""
    young = now - _SETTLED_NS
    is_settled = found.st_mtime_ns < young and found.st_ctime_ns < young
    is_executable = bool(found.st_mode & stat.S_IXUSR)
    return SkillFile(root, location, found.st_size, signature(found), is_settled, "", is_executable)


def digest_of(raw: bytes) -> str:
    """Return the digest of these bytes as every protocol writes it: `sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def is_digest(text: str) -> bool:
    """Tell whether a text has the shape of one."""
    return len(text) == _DIGEST_LENGTH and text.startswith("sha256:")


_DIGEST_LENGTH: Final = len(digest_of(b""))


def is_foreign(found: os.stat_result, handle: Handle) -> bool:
    """Tell whether a file is a hard link to a file of another user than the owner of the directory
    that it is found in.

    Who may write into a folder could else have the server read what is not theirs. Hard links
    within one owner's files are what package stores and backups are made of.
    """
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and found.st_uid != _owner(handle)


def _owner(handle: Handle) -> int:
    return os.stat(handle).st_uid


@contextmanager
def open_directory(root_path: str, path: str) -> Generator[Handle]:
    """Open a directory below a root, one step at a time, following no link.

    Raises:
        OSError: it is not there, not a directory, or a link stands in the way.
    """
    handle = enter(None, root_path, follow=True)
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
    """Open a directory by its real path, from the top, following no link.

    Raises:
        OSError: it is not there, not a directory, or a link stands in the way by now.
    """
    if not _BY_DESCRIPTOR:
        yield enter(None, path)
        return
    *steps, last = path.strip(os.sep).split(os.sep)
    handle = os.open(os.sep, _STEP)
    try:
        for step in steps:
            inner = os.open(step, _STEP, dir_fd=handle)
            os.close(handle)
            handle = inner
        inner = os.open(last or ".", _DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = inner
        yield handle
    finally:
        os.close(handle)


def owner_of(handle: Handle, name: str) -> int:
    """Return the user that a name in an open directory belongs to, "" for the directory itself; a
    link counts as itself.

    Raises:
        OSError: nothing has this name.
    """
    if not name:
        return _owner(handle)
    if isinstance(handle, int):
        return os.stat(name, dir_fd=handle, follow_symlinks=False).st_uid
    return os.lstat(f"{handle}/{name}").st_uid


def read(
    path: str, most_bytes: int, directory: Handle | None = None
) -> tuple[bytes, os.stat_result]:
    """Read a regular file whole, and its status; a link is not followed. `path` may be a name in an
    open directory.

    Raises:
        OSError: it is gone, unreadable, no regular file, or has more bytes.
    """
    if isinstance(directory, str):
        path = f"{directory}/{path}"
    descriptor = os.open(path, _FILE, dir_fd=directory if isinstance(directory, int) else None)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            raise OSError(errno.EFBIG, "it is too large, or no regular file", path)
        return _read_all(descriptor, found.st_size), found
    finally:
        os.close(descriptor)


def ingest(root_path: str, location: str, file: SkillFile, most_bytes: int) -> bytes:
    """Read a file that a walk found, and record in it what was read: digest, size and signature.

    Args:
        root_path: a directory that is free of links.
        location: the place of the file below it.
        file: as the walk found it.
        most_bytes: a larger file is not read.

    Raises:
        OSError: it is gone, unreadable, no regular file, or too large.
    """
    path = f"{root_path}/{location}"
    try:
        raw, found = read(path, most_bytes)
        # it changed, or a directory above it was swapped for a link
        if signature(found) != file.signature:
            parent, _, name = location.rpartition("/")
            with open_directory(root_path, parent) as handle:
                raw, found = read(name, most_bytes, handle)
                if is_foreign(found, handle):
                    raise FileNotFoundError(errno.ENOENT, "", path)
    except OSError as error:
        reason = error.strerror
        if error.errno in GONE:
            reason = "it keeps changing"
        raise OSError(error.errno, reason, path) from None
    mark = signature(found)
    if mark != file.signature or len(raw) != found.st_size:
        file.size, file.signature, file.mtime_reliable = len(raw), mark, False
    file.digest = digest_of(raw)
    return raw


def resolve_link(root_path: str, root: int, directory: str, name: str) -> SkillFile | None:
    """Return the regular file inside its root that a link stands for, or None.

    None for a link that leaves the root, leads to a directory or a device, is broken, or passes an
    ignored name. A dot folder in which the link itself lies is not ignored, since the walk went
    there.
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
    found = look(root_path, location)
    if found is None or not stat.S_ISREG(found.st_mode):
        return None
    return file_from(found, root, location, time.time_ns())


def look(root_path: str, location: str) -> os.stat_result | None:
    """Return what lies at a place below a root when no link is followed, or None when nothing does
    that may be served.
    """
    parent, _, last = location.rpartition("/")
    try:
        with open_directory(root_path, parent) as handle:
            if isinstance(handle, int):
                found = os.stat(last, dir_fd=handle, follow_symlinks=False)
            else:
                found = os.lstat(f"{handle}/{last}")
            if is_foreign(found, handle):
                return None
            return found
    except OSError:
        return None


def _read_all(descriptor: int, size: int) -> bytes:
    raw = b""
    if size:
        raw = os.read(descriptor, size)
    if len(raw) == size:
        return raw
    parts = [raw]
    missing = size - len(raw)
    while missing > 0 and parts[-1]:
        parts.append(os.read(descriptor, missing))
        missing -= len(parts[-1])
    return b"".join(parts)


def enter(parent: Handle | None, name: str, *, follow: bool = False) -> Handle:
    """Open a directory inside an open one, or by its path where there is none. `close` ends it.

    Raises:
        OSError: it is not there, not a directory, or a link and not to be followed.
    """
    if not _BY_DESCRIPTOR:
        path = name
        if parent is not None:
            path = f"{parent}/{name}"
        if not stat.S_ISDIR((os.stat if follow else os.lstat)(path).st_mode):
            raise NotADirectoryError(path)
        return path
    flags = _DIRECTORY
    if follow:
        flags = _DIRECTORY & ~_NOFOLLOW
    return os.open(name, flags, dir_fd=parent if isinstance(parent, int) else None)


def close(handle: Handle) -> None:
    """Give back what `enter` opened."""
    if isinstance(handle, int):
        os.close(handle)


def is_utf8(name: str) -> bool:
    """Tell whether this name, as the file system gave it, is UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def spelled(name: str) -> str:
    """Return the name, with escapes for the bytes that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
