"""What is known of a registry's roots before their first scan, and what of it goes back to the index."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from mcp_skills_server.catalog.index import Index, StoredSkills
from mcp_skills_server.catalog.reading import ReadBefore
from mcp_skills_server.catalog.root_index import RootIndex


class IndexKeeper:
    """The index of a registry's roots. Any thread may use it.

    Args:
        index: where it lies, None for nowhere.
        indexes: the roots, by their ranks.

    Attributes:
        index: as given.
    """

    def __init__(self, index: Index | None, indexes: Sequence[RootIndex]) -> None:
        self.index = index
        self._indexes = indexes
        self._lock = threading.Lock()
        self._read: dict[int, tuple[str, StoredSkills | None]] = {}
        self._read_before: list[dict[str, ReadBefore]] = [{} for _ in indexes]

    def stored(self, rank: int) -> StoredSkills | None:
        """What an earlier process left of a root; it is kept until `forget`."""
        if self.index is None:
            return None
        root = self._indexes[rank].root
        with self._lock:
            path, found = self._read.get(rank, ("", None))
            if path != root.path:
                found = self.index.skills(root.path)
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
        """Write the skills that changed since they were last written. It costs little where none did.

        Args:
            registry_lock: held while a root's skills are copied.
            pause: called now and then; returns whether to stop.
        """
        if self.index is None:
            return
        for root in self._indexes:
            with registry_lock:
                skills = {directory: root.skills[directory] for directory in root.skills.below("")}
                path, saved = root.root.path, root.saved
            changed = [skill for directory, skill in skills.items() if saved.get(directory) is not skill]
            gone = saved.keys() - skills.keys()
            if not changed and not gone:
                continue
            if len(skills) >= self.index.least and self.index.save(path, changed, gone, pause):
                root.saved = dict(skills)
