"""Split chunks of bytes into lines of bounded length. Pure: bytes in, bytes out.

`lines` is for a server, which answers lines; `blocks` for a proxy, which passes every byte on. The result does not
depend on where the chunks are cut, except for the pieces of a line that is too long.
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
        reported = self._overflowing
        for line, whole in self.blocks(chunk):
            if whole and line.strip():
                yield line[:-1]
            elif not whole and not reported:
                yield None
            reported = False  # only the first piece can go on with a line of the chunk before

    def last_line(self) -> bytes | None:
        """Return the last line when no more chunks come; None if it was ended, is blank or was too long."""
        rest = self.rest()
        if rest.strip():
            return rest
        return None

    def blocks(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield every byte in order: (a whole line, True), or (a piece of a line that is too long, False)."""
        *ended, tail = chunk.split(b"\n")
        for line in ended:
            whole = not self._overflowing and len(self._rest) + len(line) <= self._max_line
            self._overflowing = False
            yield self.rest() + line + b"\n", whole
        if not tail:
            return
        self._rest += tail
        self._overflowing = self._overflowing or len(self._rest) > self._max_line
        if self._overflowing:
            yield self.rest(), False

    def rest(self) -> bytes:
        """Return what is left when no more chunks come: the begin of a line that was not ended, or nothing."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest
