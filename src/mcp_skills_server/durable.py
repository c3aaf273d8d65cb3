"""What can be relied on of files: that they survive a power cut, and that nobody else wrote them. Pure packages do not
use it."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Final

_FEW: Final = 64
"""Up to so many paths are synchronized one by one; of more, the whole disk is at once."""
_CANNOT: Final = frozenset((errno.EINVAL, errno.ENOTSUP))


def sync_path(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, on the disk when this returns, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def why_untrusted(found: os.stat_result) -> str:
    """Why a file or folder may hold what another user wrote, to follow its name; "" where only this user or root can.

    Where the system has lists of who may write in place of modes, it is trusted to keep others out.
    """
    if sys.platform == "win32":
        return ""
    if found.st_uid not in {0, os.geteuid()}:
        return "belongs to another user"
    return "may be written by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def sync_paths(paths: Collection[str]) -> None:
    """Have files and folders on the disk when this returns; not on Windows, where a file is synchronized when written.

    Raises:
        OSError: the disk failed. Where a file system cannot synchronize a folder, nothing is raised.
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
