"""What a program writes to a pipe, kept up to a cap, so that no output can fill the memory or stop the program."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import ExitStack, suppress
from typing import Final

import anyio
from anyio import to_thread

_CHUNK: Final = 64 << 10
_WINDOWS: Final = sys.platform == "win32"


class Capture:
    """The reading end of a pipe, kept up to a cap and drained beyond it.

    Args:
        most: bytes that are kept.
        held: closes both ends when it is left.

    Attributes:
        writer: the end that a program writes to; -1 once our copy of it is closed.
        truncated: more was written than is kept.
        ended: every writer has closed its end.
    """

    def __init__(self, most: int, held: ExitStack) -> None:
        self._reader, self.writer = os.pipe()
        held.callback(os.close, self._reader)
        held.callback(self.close_writer)
        self._most = most
        self._kept = bytearray()
        self.truncated = False
        self.ended = anyio.Event()
        if not _WINDOWS:
            os.set_blocking(self._reader, False)

    def close_writer(self) -> None:
        """Close our copy of the end that the program writes to. Safe to call twice."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    async def drain(self) -> None:
        """Read until every writer has closed its end."""
        while chunk := await self._chunk():
            left = self._most - len(self._kept)
            self._kept += chunk[:left]
            self.truncated = self.truncated or len(chunk) > left
        self.ended.set()

    async def _chunk(self) -> bytes:
        if _WINDOWS:
            return await to_thread.run_sync(os.read, self._reader, _CHUNK, abandon_on_cancel=True)
        while True:
            await anyio.wait_readable(self._reader)
            with suppress(BlockingIOError):
                return os.read(self._reader, _CHUNK)

    @property
    def text(self) -> str:
        """What was kept. A character that the cap cuts in two is left out."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._kept), final=not self.truncated)
