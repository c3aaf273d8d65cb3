"""Have what was written survive a power cut. Pure packages do not use it."""

from __future__ import annotations

import errno
import os
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
