"""The registry of a supervisor: whatever it looks at, the workers look at after it.

After it, because the watch is armed by then: what a worker could not see yet comes as another event.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.root_index import Arm
from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.model import Changes, Problem
from mcp_skills_server.web.ui.changes import Scan, Scans
from mcp_skills_server.web.workers.channel import line


class LeadingRegistry(Registry):
    """A registry that says where it looked.

    Args:
        roots: as for `Registry`, and so are the others.

    Attributes:
        folders: the roots as they were given: path, and the origin where there is one.
        tell: takes a message to all workers, in any thread.
        notes: by folder the last message of its source.
        scans: what was found since the start, for people to read; None where nobody does.
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str] | MirroredRoot], *others: Any, **more: Any) -> None:
        super().__init__(roots, *others, **more)
        self.folders = [
            (each.path, each.origin) if isinstance(each, MirroredRoot) else (os.fspath(each), None) for each in roots
        ]
        self.tell: Callable[[bytes], object] = len
        self.notes: dict[str, bytes] = {}
        self.scans: Scans | None = None
        self._noting = threading.Lock()

    def _look(self, paths: Iterable[str] | None, arm: Arm | None) -> Changes:
        paths = None if paths is None else [*paths]
        was_loaded, before, places = self.loaded.is_set(), self.snapshot, [root.path for root in self.roots]
        changes = super()._look(paths, arm)
        # A look at everything without a watch is one of many polls, and is passed on where it found something.
        found = changes or self.snapshot is not before or places != [root.path for root in self.roots]
        if was_loaded and (paths is not None or arm is not None or found):
            self.tell(line("look", paths=paths, at=monotonic()))
        if was_loaded and changes and self.scans is not None:
            with self._noting:
                scan = self.scans.note(changes, self.snapshot)
                if scan is not None:
                    self.tell(self._changes(self.scans, [scan]))
        return changes

    def changes(self) -> bytes:
        """All that was found since the start as a message, which is nothing where nobody reads it."""
        if self.scans is None:
            return b""
        with self._noting:
            return self._changes(self.scans, self.scans.latest())

    @staticmethod
    def _changes(scans: Scans, found: Sequence[Scan]) -> bytes:
        return line("changes", since=scans.since, scans=found)

    def note(self, folder: str, revision: str, problems: Sequence[Problem]) -> None:
        """The same, and the workers note it too."""
        super().note(folder, revision, problems)
        self.notes[folder] = line(
            "note", folder=folder, revision=revision, problems=[each._asdict() for each in problems]
        )
        self.tell(self.notes[folder])
