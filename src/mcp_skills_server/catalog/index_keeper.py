"""What is known of a registry's roots before their first scan, and when their indexes are read and written.

An index is read once, and written when enough has changed.

Writing costs what the root has of skills, so it waits until a share of them changed: the cost of an edit stays the same
however many skills lie beside it. What is not written is read again by the next process, and that is all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mcp_skills_server.catalog.index_files import IndexFiles
from mcp_skills_server.catalog.reading import ReadBefore
from mcp_skills_server.catalog.root_index import RootIndex
from mcp_skills_server.catalog.stored_root import StoredRoot
from mcp_skills_server.catalog.unchanged import FolderMarks

_SHARE: Final = 20
"""One of so many skills must have changed for an index to be written at once."""
_LATEST_S: Final = 300.0
"""With fewer changes it waits for so long."""


class IndexKeeper:
    """The indexes of some roots. Any thread may use it.

    Args:
        files: where they lie, None for nowhere.
        indexes: the roots, by their ranks.

    Attributes:
        files: as given.
    """

    def __init__(self, files: IndexFiles | None, indexes: Sequence[RootIndex]) -> None:
        self.files = files
        self._indexes = indexes
        self._lock = threading.Lock()
        self._read: dict[int, tuple[str, StoredRoot | None]] = {}
        self._read_before: list[dict[str, ReadBefore]] = [{} for _ in indexes]
        self._written = [time.monotonic()] * len(indexes)

    def stored(self, rank: int) -> StoredRoot | None:
        """What an earlier process left of a root; it is kept until `forget`."""
        if self.files is None:
            return None
        root = self._indexes[rank].root
        with self._lock:
            path, found = self._read.get(rank, ("", None))
            if path != root.path:
                found = self.files.load(root.path, root.shown)
                self._read[rank] = root.path, found
            return found

    def note(self, rank: int, directory: str, manifest: ReadBefore) -> None:
        """Take what a first look read of a SKILL.md, so that the scan need not read it again."""
        self._read_before[rank][directory] = manifest

    def read_before(self, rank: int) -> Mapping[str, ReadBefore]:
        """What a first look read of a root, by directory of the skill; it is kept until `forget`."""
        return self._read_before[rank]

    def forget(self) -> None:
        """The first scan is done: what was known before has been used."""
        with self._lock:
            self._read = {}
            self._read_before = [{} for _ in self._indexes]

    def save(self, registry_lock: threading.RLock, pause: Callable[[], bool]) -> None:
        """Write each index that is due; costs nothing where none is.

        Args:
            registry_lock: held while a root's skills are copied.
            pause: called now and then; returns whether to stop.
        """
        for rank, index in enumerate(self._indexes if self.files is not None else ()):
            late = time.monotonic() - self._written[rank] >= _LATEST_S
            if not index.unsaved or not (late or index.unsaved * _SHARE > len(index.skills)):
                continue
            with registry_lock:
                skills, path = [index.skills[each] for each in index.skills.below("")], index.root.path
                since = index.scanned_since
                index.unsaved = 0
            self._written[rank] = time.monotonic()
            if self.files is not None:
                self.files.save(path, skills, FolderMarks(path, skills, since).of, pause)
