"""Have what was written survive a power cut. Pure packages do not use it."""

from __future__ import annotations

import os
from contextlib import suppress


def sync_path(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, on the disk when this returns, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
