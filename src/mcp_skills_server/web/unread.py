"""What clients have asked for and do not read: so many bytes for all of them together, and no more.

A request of 300 bytes may be answered by a file of 16 MiB, which waits in memory until its client reads it: sixty such
requests took 1.3 GB. When all that waits is too much, the owner for whom most of it waits loses the connection that has
kept its answer waiting longest; when what waits for one owner is more than its share, that owner does.
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


def give_large_blocks_back() -> None:
    """Have the memory of a large answer go back to the system when the answer is gone.

    glibc stops to do so once it has freed a large block, and then the pieces between others are kept: with 256 MiB
    waiting a process grew to 1 GB.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


class Unread:
    """The answers that wait to be read, by connection.

    Args:
        lines: says that a connection was cut off.
        most: bytes of all together.
        share: bytes of one owner; None where nothing but `most` bounds them. One answer may always wait.
    """

    def __init__(self, lines: Counted, most: int = MOST_BYTES, share: int | None = None) -> None:
        self._lines = lines
        self._most = most
        self._share = share
        self._waiting: dict[Place, int] = {}
        self._total = 0

    def add(self, place: Place, size: int) -> None:
        """Note that so many bytes wait for the client of this connection. Connections may be closed for it."""
        self.drop(place)
        self._waiting[place] = size
        self._total += size
        if self._share is not None:
            self._end_beyond(self._share, place.owner)
        while self._total > self._most:
            self._end_one()

    def drop(self, place: Place) -> None:
        """Note that they were read, or are lost. A connection for which none wait is passed over."""
        self._total -= self._waiting.pop(place, 0)

    def _end_beyond(self, share: int, owner: str) -> None:
        mine = [place for place in self._waiting if place.owner == owner]
        over = sum(self._waiting[place] for place in mine) - share
        for place in mine[:-1]:
            if over <= 0:
                return
            over -= self._waiting[place]
            self._end(place, f"quota unread-bytes: more than {share:,} waited for {owner}")

    def _end_one(self) -> None:
        by_owner: dict[str, int] = {}
        for place, size in self._waiting.items():
            by_owner[place.owner] = by_owner.get(place.owner, 0) + size
        owner = max(by_owner, key=by_owner.__getitem__)
        oldest = next(place for place in self._waiting if place.owner == owner)
        self._end(oldest, f"more than {self._most >> 20} MiB waited in all")

    def _end(self, place: Place, why: str) -> None:
        self.drop(place)
        self._lines.tell(f"cut off a client that left its answer unread: {why}")
        place.close()
