"""Editions of a publication, and the retention of their artifacts on disk.

An artifact that a later edition drops is retained for a while. So clients with an old index can
download it after the skill has changed.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import finalize

from mcp_skills_server.dialects.wellknown import Artifact
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import UnpackLimits
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot

GRACE_S: Final = 3600.0
_NO_LIMITS: Final = UnpackLimits(files=1 << 30, bytes=1 << 40, file=1 << 40)
"""Artifacts come from the catalogue, which has enforced its limits already."""


@dataclass(frozen=True, slots=True)
class Published:
    """A skill as an index offers it, with its artifact."""

    skill: Skill
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class Edition:
    """Immutable set of all artifacts that are published at one time."""

    snapshot: Snapshot
    skills: Mapping[str, Published]
    """The skills of the index 0.2.0, by name and in its order."""
    older: frozenset[str]
    """Names of those that the index 0.1.0 offers, too."""
    index: bytes
    digest: str
    index_0_1: bytes
    digest_0_1: str
    left_out: tuple[tuple[str, str], ...]
    """(skill path, reason) of every skill that is not published."""
    left_out_0_1: tuple[tuple[str, str], ...]
    """(skill path, reason) of those that only 0.2.0 publishes."""


class Item(NamedTuple):
    """A file of a published tree; `path` is below the base URL, begins with `/`, is not encoded."""

    path: str
    digest: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention of artifacts that the newest index does not name: age, number and total bytes."""

    seconds: float = GRACE_S
    number: int = 20_000
    bytes: int = 512 << 20


class Artifacts:
    """Artifacts of the latest and of recent editions. Write under the publication's lock."""

    def __init__(self, keeping: RetentionPolicy, clock: Callable[[], float]) -> None:
        self._keeping = keeping
        self._clock = clock
        self._spool = Spool()
        self._kept: dict[str, tuple[Published, ArtifactSlot]] = {}
        self._retired: dict[str, float] = {}  # since when, by path, the oldest first
        self._former: dict[str, Published] = {}  # the newest retired version, by skill name

    def put(self, published: Published, raw: bytes) -> None:
        """Spool an artifact, or raise OSError if there is no space."""
        path = published.artifact.path
        slot = self._kept[path][1] if path in self._kept else self._spool.write(raw)
        self._kept[path] = published, slot

    def get(self, path: str) -> tuple[Published, ArtifactSlot] | None:
        """Return the artifact at a path and its bytes, or None if it is not retained."""
        return self._kept.get(path) if self._is_kept(path) else None

    def read(self, artifact: Artifact) -> bytes:
        """Read the bytes of an artifact, or raise KeyError if it is not retained."""
        return self._kept[artifact.path][1].read()

    def unpacked(self, artifact: Artifact) -> archive.Files:
        """Unpack a spooled artifact, or raise KeyError if it is not retained."""
        raw = self.read(artifact)
        if artifact.kind == "archive":
            return archive.unpack(raw, _NO_LIMITS)
        return {SKILL_MD: (raw, False)}

    def former(self, name: str) -> Published | None:
        """Return the retained earlier version of a published skill, or None."""
        former = self._former.get(name)
        return former if former is not None and self._is_kept(former.artifact.path) else None

    def renew(self, before: Edition | None, made: Edition) -> None:
        """Keep the new edition's artifacts, and retire those that only the one before it named."""
        now = self._clock()
        named = {published.artifact.path for published in made.skills.values()}
        for published in before.skills.values() if before else ():
            path = published.artifact.path
            if path not in named and path in self._kept:
                self._retired.pop(path, None)  # it becomes the newest
                self._retired[path] = now
                self._former[published.skill.name] = published
        for path in named & self._retired.keys():
            del self._retired[path]
        self._forget(now)
        for path in self._kept.keys() - named - self._retired.keys():
            self._spool.delete(self._kept.pop(path)[1].row)
        self._former = {
            name: published
            for name, published in self._former.items()
            if published.artifact.path in self._retired
        }

    def _forget(self, now: float) -> None:
        keeping = self._keeping
        size = sum(self._kept[path][1].size for path in self._retired)
        for path, since in list(self._retired.items()):
            is_within = len(self._retired) <= keeping.number and size <= keeping.bytes
            if is_within and now - since < keeping.seconds:
                break
            size -= self._kept[path][1].size
            del self._retired[path]

    def _is_kept(self, path: str) -> bool:
        since = self._retired.get(path)
        return since is None or self._clock() - since < self._keeping.seconds


@dataclass(frozen=True, slots=True)
class ArtifactSlot:
    """Handle to bytes in a spool."""

    spool: Spool
    row: int
    size: int

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """Read at most `length` bytes from `start` on."""
        stop = self.size if length is None else start + length
        return self.spool.read(self.row, start, stop)


class Spool:
    """Thread-safe temporary store of bytes, in an anonymous SQLite database.

    The system deletes the database when this process ends, even by a crash.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        try:
            tempfile.gettempdir()
            name = ""
        except FileNotFoundError:  # as in a container with a read-only root
            name = ":memory:"
        self._database = sqlite3.connect(name, check_same_thread=False, isolation_level=None)
        finalize(self, self._database.close)
        self._database.execute("PRAGMA journal_mode = MEMORY")
        self._database.execute("CREATE TABLE spool (id INTEGER PRIMARY KEY, raw BLOB)")

    def write(self, raw: bytes) -> ArtifactSlot:
        """Store bytes, or raise OSError if there is no space."""
        with self._lock:
            try:
                row = self._database.execute("INSERT INTO spool (raw) VALUES (?)", (raw,)).lastrowid
            except sqlite3.Error as error:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        return ArtifactSlot(self, row or 0, len(raw))

    def read(self, row: int, start: int, stop: int) -> bytes:
        with self._lock, self._database.blobopen("spool", "raw", row, readonly=True) as blob:
            blob.seek(start)
            return blob.read(stop - start)

    def delete(self, row: int) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._database.execute("DELETE FROM spool WHERE id = ?", (row,))
