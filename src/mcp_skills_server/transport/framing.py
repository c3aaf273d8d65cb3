"""Split chunks of bytes into lines of bounded length. Pure: bytes in, bytes out.

`lines` is for a server, which answers lines; `blocks` for a proxy, which passes every byte on. The result does not
depend on where the chunks are cut, but for the pieces of a line that is too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_LINE: Final = 8 << 20
"""Bytes of a line by default."""


class LineBuffer:
    """One direction of a stream.

    A line ends with a line feed; a carriage return is part of it. Use either `lines` or `blocks`, not both.

    Args:
        max_line: bytes of a line without its line feed. A longer one is never kept as a whole.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._rest = bytearray()
        self._overflowing = False

    def lines(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the lines that this chunk completes, without blank ones; None for one as soon as it is too long."""
        if not (self._rest or self._overflowing) and chunk.find(b"\n") == len(chunk) - 1 <= self._max_line:
            if chunk.strip():  # one line, as nearly every chunk of a client that waits for its answers
                yield chunk[:-1]
            return
        reported = self._overflowing
        for block, whole in self.blocks(chunk):
            if whole:
                yield from (line for line in block.split(b"\n") if line.strip())
            elif not reported:
                yield None
            reported = False  # only the first block can go on with a line of the chunk before

    def last_line(self) -> bytes | None:
        """Return the last line when no more chunks come; None if it was ended, is blank or was too long."""
        rest = self.rest()
        return rest if rest.strip() else None

    def blocks(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield every byte in order: (block of whole lines, True), or (piece of a line that is too long, False)."""
        end = chunk.rfind(b"\n") + 1
        if end:
            head = chunk[:end]
            if self._overflowing:
                self._overflowing = False
                first = head.find(b"\n") + 1
                yield head[:first], False
                head = head[first:]
            elif self._rest:
                self._rest += head
                head = self.rest()
            if len(head) > self._max_line:
                yield from self._divided(head)
            elif head:
                yield head, True
        if tail := chunk[end:]:
            if self._overflowing:
                yield tail, False
                return
            self._rest += tail
            if len(self._rest) > self._max_line:
                self._overflowing = True
                yield self.rest(), False

    def rest(self) -> bytes:
        """Return what is left when no more chunks come: the begin of a line that was not ended, or nothing."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest

    def _divided(self, block: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield the parts of a block of whole lines, some of which are too long."""
        begin = place = 0
        while place < len(block):
            end = block.index(b"\n", place) + 1
            if end - place > self._max_line + 1:
                if begin < place:
                    yield block[begin:place], True
                yield block[place:end], False
                begin = end
            place = end
        if begin < place:
            yield block[begin:place], True
