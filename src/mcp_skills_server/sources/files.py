"""Write, read and delete trees of files.

Links are never followed, and a file that is there is never written over.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mcp_skills_server.format.archive import Files

BINARY: Final[int] = getattr(os, "O_BINARY", 0)
NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_PIECE: Final = 1 << 16
_T = TypeVar("_T")


def file_digest(path: str) -> str:
    """Return the sha256 of a regular file in hex.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | NOFOLLOW | BINARY)
    try:
        digest = hashlib.sha256()
        while piece := os.read(descriptor, _PIECE):  # `hashlib.file_digest` makes a buffer for each file
            digest.update(piece)
        return digest.hexdigest()
    finally:
        os.close(descriptor)


def tree_digests(place: str | Path) -> dict[str, str] | None:
    """Return the sha256 in hex of every file by path, or None if there is anything but folders and files.

    Raises:
        OSError: a file cannot be read.
    """
    return _of_files(place, lambda entry: file_digest(entry.path))


def _of_files(place: str | Path, get: Callable[[os.DirEntry[str]], _T]) -> dict[str, _T] | None:
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        return None
    out: dict[str, _T] = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        with os.scandir(f"{place}/{prefix}") as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path + "/")
                elif entry.is_file(follow_symlinks=False):
                    out[path] = get(entry)
                else:
                    return None
    return out


def stat_signature(found: os.stat_result) -> list[int]:
    """Return what proves a file unchanged: size, mtime and ctime in nanoseconds, and inode."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def tree_signatures(place: str) -> dict[str, list[int]] | None:
    """Return the stat signature of every file by path, or None if there is anything but folders and files.

    Raises:
        OSError: a folder cannot be read.
    """
    return _of_files(place, lambda entry: stat_signature(entry.stat(follow_symlinks=False)))


class Written(NamedTuple):
    """A tree that was written.

    Attributes:
        files: what the system says of each file, by its path in the tree.
        parts: every file and directory.
    """

    files: dict[str, os.stat_result]
    parts: tuple[str, ...]


def read_tree(place: Path) -> dict[str, tuple[bytes, bool]]:
    """Read the files of a tree that `write_tree` made, in path order.

    Raises:
        OSError: a file cannot be read, or there is something else among them.
    """
    found = tree_digests(place)
    if found is None:
        raise OSError(errno.EINVAL, "there is more than files and folders", os.fspath(place))
    out: dict[str, tuple[bytes, bool]] = {}
    for path in sorted(found):
        descriptor = os.open(place / path, os.O_RDONLY | NOFOLLOW | BINARY)
        with open(descriptor, "rb") as stream:
            out[path] = stream.read(), bool(os.fstat(descriptor).st_mode & stat.S_IXUSR)
    return out


def write_tree(top: str | Path, files: Files) -> Written:
    """Write files below a new directory, which replaces one that is there.

    Modes are 0755 and 0644, less what the process's umask takes away.

    Raises:
        OSError: the disk is full, or the like.
    """
    folders = {""}
    for path in files:
        while (path := path.rpartition("/")[0]) not in folders:
            folders.add(path)
    places = [f"{top}/{folder}" for folder in sorted(folders)]  # those above come first
    clear(Path(top))
    for place in places:
        os.mkdir(place)
    written = {
        path: write_file(f"{top}/{path}", raw, 0o755 if executable else 0o644)
        for path, (raw, executable) in files.items()
    }
    return Written(written, (*(f"{top}/{path}" for path in files), *places))


def write_file(path: str | Path, raw: bytes, mode: int) -> os.stat_result:
    """Write a new file and return its stat result. On Windows its bytes are on the disk then.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, mode)
    try:
        left = memoryview(raw)
        while left:
            left = left[os.write(descriptor, left) :]
        if sys.platform == "win32":  # where a file cannot be synchronized afterwards
            os.fsync(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def clear(path: Path) -> None:
    """Delete a file or a tree, if it is there; what resists is left to the next process."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
