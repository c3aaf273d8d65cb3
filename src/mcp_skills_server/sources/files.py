"""Write and delete trees of files, whole: what is written by one of these and then renamed is there after a power cut.

Links are never followed, and a file that is there is never written over.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import sync_path
from mcp_skills_server.format.archive import Files

BINARY: Final[int] = getattr(os, "O_BINARY", 0)
NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)


def file_digest(path: str) -> str:
    """sha256 of a regular file in hex.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | NOFOLLOW | BINARY)
    with open(descriptor, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_digests(place: Path) -> dict[str, str] | None:
    """sha256 in hex of every file below, by path; None when there is anything but directories and regular files.

    Raises:
        OSError: a file cannot be read.
    """
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        return None
    out: dict[str, str] = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        with os.scandir(place / prefix) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path + "/")
                elif entry.is_file(follow_symlinks=False):
                    out[path] = file_digest(entry.path)
                else:
                    return None
    return out


def write_tree(top: Path, files: Files, *, durable: bool = True, umask: bool = True) -> tuple[str, ...]:
    """These files below a new directory; what is there before is deleted. With `durable` all of it is then on the disk.

    Modes are 0755 and 0644, less what the process's umask takes away unless `umask` is False.

    Returns:
        Every file and directory that was written.

    Raises:
        OSError: the disk is full, or the like.
    """
    folders = {""}
    for path in files:
        while (path := path.rpartition("/")[0]) not in folders:
            folders.add(path)
    places = [f"{top}/{folder}" for folder in sorted(folders)]  # those above come first
    try:
        os.mkdir(top)
    except FileExistsError:
        clear(top)
        os.mkdir(top)
    for place in places[1:]:
        os.mkdir(place)
    for path, (raw, executable) in files.items():
        mode = 0o755 if executable else 0o644
        write_file(f"{top}/{path}", raw, mode, durable=durable)
        if not umask:
            os.chmod(f"{top}/{path}", mode)
    if durable:
        for place in places:
            sync_path(place)
    return (*(f"{top}/{path}" for path in files), *places)


def write_file(path: str | Path, raw: bytes, mode: int, *, durable: bool = True) -> None:
    """A new file. With `durable` its bytes are then on the disk.

    Raises:
        OSError: it is there already, or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, mode)
    try:
        left = memoryview(raw)
        while left:
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clear(path: Path) -> None:
    """Delete a file or a tree, if it is there; what resists is left to the next process."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
