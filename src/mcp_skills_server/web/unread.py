"""What clients have asked for and do not read: so many bytes for all of them together, and no more.

A request of 300 bytes may be answered by a file of 16 MiB, which waits in memory until its client reads it: sixty such
requests took 1.3 GB. When all that waits is too much, the owner for whom most of it waits loses the connection that has
kept its answer waiting longest.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Final

from mcp_skills_server.web.counted import Counted
from mcp_skills_server.web.places import Place

MOST_BYTES: Final = 256 << 20
"""Bytes of answers that wait for all clients; some dozen of the largest files."""

_M_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 1 << 20
_LEAST_BYTES: Final = 32 << 20


def give_large_blocks_back() -> None:
    """Have the memory of a large answer go back to the system when the answer is gone.

    glibc stops to do so once it has freed a large block, and then the pieces between others are kept: with 256 MiB
    waiting a process grew to 1 GB.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def most_unread(processes: int) -> int:
    """Bytes of answers that may wait for the clients of one of so many processes: its part, and two large files."""
    return max(MOST_BYTES // processes, _LEAST_BYTES)


class Unread:
    """The answers that wait to be read, by connection.

    Args:
        lines: says that a connection was cut off.
        most: bytes of all together.
    """

    def __init__(self, lines: Counted, most: int = MOST_BYTES) -> None:
        self._lines = lines
        self._most = most
        self._waiting: dict[Place, int] = {}
        self._total = 0

    def add(self, place: Place, size: int) -> None:
        """Note that so many bytes wait for the client of this connection. Connections may be closed for it."""
        self.drop(place)
        self._waiting[place] = size
        self._total += size
        while self._total > self._most:
            self._end_one()

    def drop(self, place: Place) -> None:
        """Note that they were read, or are lost. A connection for which none wait is passed over."""
        self._total -= self._waiting.pop(place, 0)

    def _end_one(self) -> None:
        by_owner: dict[str, int] = {}
        for place, size in self._waiting.items():
            by_owner[place.owner] = by_owner.get(place.owner, 0) + size
        owner = max(by_owner, key=by_owner.__getitem__)
        oldest = next(place for place in self._waiting if place.owner == owner)
        self.drop(oldest)
        self._lines.tell(
            f"cut off a client that left its answer unread: more than {self._most >> 20} MiB waited in all"
        )
        oldest.close()
