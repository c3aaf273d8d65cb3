"""When the index of a search is read from the disk and written to it: read by the first question, written after one.

Only an index of whole roots is kept: of what grants leave there may be a hundred. Writing costs what the catalogue has
of skills, so it waits until a share of them changed, and is done in a thread, in small steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.model import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_skills_server.runtime.search_file import SearchFile
    from mcp_skills_server.runtime.search_index import IndexCopy, SearchIndex

_SHARE: Final = 20
"""One of so many rows must have been put in or taken out for an index to be written at once; an edit is both."""
_LATEST_S: Final = 300.0
"""With fewer changes it waits for so long."""
_STEP_S: Final = 0.001
_END_S: Final = 1.0
"""How long an end waits for the step that is being written."""


class SearchKeeper:
    """The kept index of one set of skills. Any thread may use it.

    Args:
        skill_set: whose index it is.

    Attributes:
        is_used: whether the present index was made of a kept one.
        rows, changes: of the present index: how many there are, and how many were put in and taken out.
    """

    def __init__(self, skill_set: SkillSet) -> None:
        self._skill_set = skill_set
        self._file: SearchFile | None = None
        self._seen: int | None = None
        self._looked = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._kept_at = time.monotonic()
        self.is_used = False
        self.rows = self.changes = 0
        self._kept_changes = 0
        """How many there were when it was last written."""

    def restored(self, snapshot: Snapshot) -> SearchIndex | None:
        """The index of this snapshot, made of what an earlier process left; None where it must be made of the skills.

        The disk is looked at once.
        """
        files, permissions = self._skill_set.keeper.index, self._skill_set.permissions
        if self._looked or files is None or not self._skill_set.loaded.is_set():
            return None
        self._looked = True
        if permissions is not None and not permissions.reads_all:
            return None
        from mcp_skills_server.runtime.search_file import SearchFile

        self._file = SearchFile(files, [root.given for root in self._skill_set.roots])
        self._seen = self._file.identity
        found = self._file.load(snapshot) if self._seen is not None else None
        self.is_used = found is not None
        return found

    def reject(self) -> None:
        """What was kept cannot be used after all."""
        self.is_used = False
        self._kept_changes = 0
        if self._file is not None:
            self._file.pass_over("it cannot be asked")

    def keep(self, copy: Callable[[Path], IndexCopy | None]) -> None:
        """Leave the index to the next process if that is due; returns at once.

        Args:
            copy: makes a copy of the index, in another thread, with its database in this file.
        """
        file, new = self._file, self.changes - self._kept_changes
        if file is None or new <= 0 or self.rows < file.least:
            return
        if new * _SHARE <= self.rows and time.monotonic() - self._kept_at < _LATEST_S:
            return
        with self._lock:
            if not self._stop.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._kept_changes, self._kept_at = self.changes, time.monotonic()
                self._thread = threading.Thread(
                    target=self._write, args=(file, copy), name="skills-search-index", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Write no more. What is half written is removed. Safe to call twice."""
        self._stop.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_END_S)

    def _write(self, file: SearchFile, copy: Callable[[Path], IndexCopy | None]) -> None:
        if file.identity in (self._seen, None):  # of many processes that look at the same folder one writes
            file.save(copy, lambda: self._stop.wait(_STEP_S))
        self._seen = file.identity
