"""Artifacts set aside on disk: those that the latest edition names, and for a grace period those that it dropped.

So what an index promised is delivered even after the skill has changed. The bytes lie in temporary files without a
name: no other process finds them, and nothing of them is left when this one ends, however it ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.dialects.wellknown import Artifact
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import UnpackLimits
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.publish.edition import Edition, Published

GRACE_S: Final = 3600.0
SEGMENT: Final = 32 << 20
"""Bytes after which the next file is begun."""
_OWN: Final = UnpackLimits(files=1 << 30, bytes=1 << 40, file=1 << 40)
"""What we have packed ourselves has been through the catalogue's limits."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long artifacts stay that the newest index no longer names.

    Attributes:
        seconds: of age since then.
        number: at once; the oldest go first.
        bytes: of all of them; the oldest go first.
    """

    seconds: float = GRACE_S
    number: int = 20_000
    bytes: int = 512 << 20


class Artifacts:
    """The artifacts of the latest edition and of those not long before. Written under the publication's lock.

    Args:
        keeping: how long artifacts stay that the newest index no longer names.
        clock: seconds that only grow.
        segment: bytes of one of the temporary files.
    """

    def __init__(self, keeping: RetentionPolicy, clock: Callable[[], float], segment: int) -> None:
        self._keeping = keeping
        self._clock = clock
        self._spool = Spool(segment)
        self._artifacts: dict[str, Artifact] = {}
        self._slots: dict[str, Slot] = {}
        self._retired: dict[str, float] = {}
        self._former: dict[str, Published] = {}
        self._unpacked: tuple[str, archive.Files] = ("", {})

    def __contains__(self, artifact: Artifact) -> bool:
        return artifact.path in self._slots

    def put(self, artifact: Artifact, raw: bytes) -> None:
        """Set an artifact aside.

        Raises:
            OSError: there is no place for it.
        """
        if artifact.path not in self._slots:
            self._slots[artifact.path] = self._spool.write(raw)
            self._artifacts[artifact.path] = artifact

    def get(self, path: str) -> tuple[Artifact, Slot] | None:
        """Return the artifact at a path and its bytes, or None if there is none or its time is over."""
        artifact, slot = self._artifacts.get(path), self._slots.get(path)
        return (artifact, slot) if artifact and slot and self._is_kept(path) else None

    def read(self, artifact: Artifact) -> bytes:
        """Read the bytes of an artifact.

        Raises:
            StaleFileError: it was never set aside, or is not kept any more.
        """
        if artifact.path not in self._slots:
            raise StaleFileError(artifact.path)
        return self._slots[artifact.path].read()

    def unpacked(self, artifact: Artifact) -> archive.Files:
        """Unpack an artifact that was set aside.

        Raises:
            KeyError: it is not kept any more.
        """
        path, files = self._unpacked
        if path != artifact.path:
            raw = self._slots[artifact.path].read()
            files = archive.unpack(raw, _OWN) if artifact.kind == "archive" else {SKILL_MD: (raw, False)}
            self._unpacked = (artifact.path, files)
        return files

    def former(self, name: str) -> Published | None:
        """Return what was published under a name before, as long as its artifact is kept."""
        former = self._former.get(name)
        return former if former is not None and self._is_kept(former.artifact.path) else None

    def renew(self, before: Edition | None, made: Edition) -> None:
        """Keep what the new edition names, and retire what only the one before it named."""
        now = self._clock()
        named = {each.artifact.path for each in made.skills.values()}
        for each in before.skills.values() if before else ():
            if each.artifact.path not in named and each.artifact.path in self._slots:
                self._retired.pop(each.artifact.path, None)
                self._retired[each.artifact.path] = now
                self._former[each.skill.name] = each
        for path in named & self._retired.keys():
            del self._retired[path]
        self._forget(now)
        kept = named | self._retired.keys()
        for path in self._slots.keys() - kept:
            del self._slots[path], self._artifacts[path]
        for name in [name for name, each in self._former.items() if each.artifact.path not in self._retired]:
            del self._former[name]
        with suppress(OSError):  # no place for a copy: the waste stays
            self._slots |= self._spool.tidy(self._slots)

    def _forget(self, now: float) -> None:
        keeping = self._keeping
        size = sum(self._slots[path].size for path in self._retired)
        for path, since in list(self._retired.items()):  # the oldest first
            if now - since < keeping.seconds and len(self._retired) <= keeping.number and size <= keeping.bytes:
                break
            size -= self._slots[path].size
            del self._retired[path]

    def _is_kept(self, path: str) -> bool:
        since = self._retired.get(path)
        return since is None or self._clock() - since < self._keeping.seconds


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
        """Read `size` bytes at an offset."""
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
        """Read the bytes from `start` on, at most `length`."""
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
        """Copy the slots whose files are mostly waste, so that the files can be deleted once the copies are used.

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
