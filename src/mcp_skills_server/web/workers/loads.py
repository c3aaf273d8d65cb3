"""How much each worker has to do, in memory that all share: who has least takes the next connection.

The kernel wakes all workers for a connection, and the same one would be the first again and again.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

_AWAY: Final = 0xFFFFFFFF
"""Of a worker that takes no connections."""
_BYTES: Final = 4


def make_loads(path: str, count: int) -> None:
    """Make the file for so many workers, none of which takes connections yet."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with open(descriptor, "wb") as file:
        file.write(_AWAY.to_bytes(_BYTES, "little") * count)


class Loads:
    """What each worker has to do, as it said last. Whole numbers are read and written at once, so nothing is locked.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._all = memoryview(mmap.mmap(file.fileno(), 0)).cast("I")

    def put(self, worker: int, load: int) -> bool:
        """Note what a worker has to do; whether no other has less."""
        self._all[worker] = load
        return load <= min(self._all)

    def leave(self, worker: int) -> None:
        """Note that a worker takes no connections."""
        self._all[worker] = _AWAY
