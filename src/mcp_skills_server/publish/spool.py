"""Bytes set aside on disk, so that what an index has promised can still be delivered when the skill has changed.

They lie in temporary files without a name: no other process finds them, and nothing of them is left when this one
ends, however it ends. A slot stays readable for as long as somebody holds it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SEGMENT: Final = 32 << 20
"""Bytes after which the next file is begun."""


class _Segment:
    """One temporary file. It goes when no slot refers to it any more."""

    def __init__(self) -> None:
        self.size = 0
        self._lock = threading.Lock()
        self._descriptor = _nameless()

    def __del__(self) -> None:
        descriptor: int | None = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def append(self, raw: bytes) -> int:
        """Write at the end; the offset of it. On an error nothing was added."""
        with self._lock:
            os.lseek(self._descriptor, self.size, os.SEEK_SET)
            view = memoryview(raw)
            while view:
                view = view[os.write(self._descriptor, view) :]
            self.size += len(raw)
            return self.size - len(raw)

    def read(self, offset: int, size: int) -> bytes:
        """These bytes."""
        if sys.platform != "win32":
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, size)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where some bytes lie.

    Attributes:
        segment: the file that has them.
        offset: of the first of them.
        size: how many.
    """

    segment: _Segment
    offset: int
    size: int

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """The bytes from `start` on, as many as there are up to `length`."""
        left = self.size - start
        return self.segment.read(self.offset + start, left if length is None else min(length, left))


class Spool:
    """Where bytes are set aside. Not for two writers at once; any thread may read.

    Args:
        segment: bytes after which the next file is begun.
    """

    def __init__(self, segment: int = SEGMENT) -> None:
        self._most = segment
        self._current: _Segment | None = None

    def write(self, raw: bytes) -> Slot:
        """Set bytes aside.

        Raises:
            OSError: there is no place for them.
        """
        if self._current is None or self._current.size >= self._most:
            self._current = _Segment()
        return Slot(self._current, self._current.append(raw), len(raw))

    def tidy(self, slots: Mapping[str, Slot]) -> dict[str, Slot]:
        """Copies of those of these slots whose files are mostly waste, so that the files can go when these are used.

        Raises:
            OSError: there is no place for the copies.
        """
        used: dict[_Segment, int] = {}
        for slot in slots.values():
            used[slot.segment] = used.get(slot.segment, 0) + slot.size
        waste = {segment for segment, size in used.items() if size * 2 < segment.size and segment.size >= self._most}
        return {key: self.write(slot.read()) for key, slot in slots.items() if slot.segment in waste}


def _nameless() -> int:
    try:
        with tempfile.TemporaryFile(prefix="mcp-skills-") as file:
            return os.dup(file.fileno())
    except OSError:
        # A container with a read-only root may have no folder for temporary files.
        if sys.platform == "linux":
            return os.memfd_create("mcp-skills")
        raise
