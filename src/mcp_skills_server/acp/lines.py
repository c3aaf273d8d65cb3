"""Chunks of a stream as blocks that begin and end with a line, without a byte lost or moved.

A line that is too long to be kept in mind passes as it comes: nobody looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

LONGEST: Final = 8 << 20
"""Bytes of a line that is looked at."""


class Blocks:
    """One direction of a stream.

    Args:
        longest: bytes of a line that is kept until its end comes.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._rest = bytearray()
        self._passing = False

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """The blocks that this chunk completes, in order: whole lines, or a part of one that is too long (False)."""
        cut = chunk.rfind(b"\n") + 1
        if cut:
            head = chunk[:cut]
            if self._passing:
                self._passing = False
                first = head.find(b"\n") + 1
                yield head[:first], False
                head = head[first:]
            elif self._rest:
                self._rest += head
                head = self.end()
            if head:
                yield head, True
        tail = chunk[cut:]
        if self._passing:
            yield tail, False
        else:
            self._rest += tail
            if len(self._rest) > self._longest:
                self._passing = True
                yield self.end(), False

    def end(self) -> bytes:
        """What is left when no more chunks come: the last line, if it has no end."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest
