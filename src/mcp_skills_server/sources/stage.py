"""The stage of a folder of fetched skills: where a skill is made before it gets its place by a rename.

Nothing on it counts. What a process that was killed has left there is put back or deleted by the next one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import sync_path, sync_paths
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.model import printable
from mcp_skills_server.sources.files import clear, write_file, write_tree

_OLD: Final = "old-"
_GONE: Final = "gone-"
_NEW: Final = "new-"
_WRITING: Final = "writing-"
_AT_ONCE: Final = sys.platform == "win32"
"""Whether a file must be synchronized when it is written, since it cannot be afterwards."""


class ConflictError(SkillsServerError, ValueError):
    """A place in the folder is somebody else's, and nothing is put there. The message is one line for people."""


@dataclass(frozen=True, slots=True)
class Made:
    """A skill on the stage, and its record.

    Attributes:
        name: of the skill.
        tree: its directory.
        record: the file that is to be its record.
        parts: every file and directory of both.
    """

    name: str
    tree: str
    record: str
    parts: tuple[str, ...]


class Stage:
    """The stage of one folder. Every method blocks; several threads may each make a skill.

    Args:
        top: the folder of skills.
        place: the stage's own folder.
    """

    def __init__(self, top: Path, place: Path) -> None:
        self.place = place
        self._top = top

    @property
    def is_left(self) -> bool:
        """Whether something lies there: a process works on it, or was killed while it did."""
        try:
            return bool(os.listdir(self.place))
        except OSError:
            return False

    def recover(self) -> None:
        """Undo what was left half done.

        Raises:
            OSError: the folder cannot be written.
        """
        for left in list(self.place.iterdir()):
            target = self._top / left.name.removeprefix(_OLD)
            if left.name.startswith(_OLD) and not os.path.lexists(target):
                os.rename(left, target)
            else:
                clear(left)

    def make(self, name: str, files: Files, record: bytes) -> Made:
        """Write a skill and its record. They are not on the disk before `settle`.

        Raises:
            OSError: the disk is full, or the like.
        """
        tree, written = f"{self.place}/{_NEW}{name}", f"{self.place}/{_WRITING}{name}.json"
        try:
            parts = write_tree(tree, files, durable=_AT_ONCE).parts
            try:
                write_file(written, record, 0o600, durable=_AT_ONCE)
            except FileExistsError:
                clear(Path(written))
                write_file(written, record, 0o600, durable=_AT_ONCE)
        except BaseException:
            clear(Path(tree))
            clear(Path(written))
            raise
        return Made(name, tree, written, (*parts, written))

    def settle(self, made: Sequence[Made]) -> None:
        """Have these on the disk: after it they may be given their names."""
        sync_paths([path for each in made for path in each.parts])

    def swap(self, made: Made, *, occupied: bool) -> None:
        """Give a skill its place; what stood there is on the stage then, until `discard`.

        Raises:
            ConflictError: something appeared there.
            OSError: it cannot be renamed. What stood there stands there still.
        """
        place, old = f"{self._top}/{made.name}", f"{self.place}/{_OLD}{made.name}"
        if occupied:
            os.rename(place, old)
        try:
            if os.path.lexists(place):  # rename would replace an empty directory
                raise ConflictError(f"{printable(place)} appeared meanwhile")
            os.rename(made.tree, place)
        except BaseException:
            if occupied and not os.path.lexists(place):
                os.rename(old, place)
            raise

    def take(self, name: str) -> None:
        """Take a skill from its place, never to be put back. That is on the disk then.

        Raises:
            OSError: it cannot be moved.
        """
        os.rename(self._top / name, self.place / (_GONE + name))
        sync_path(self._top)

    def discard(self, name: str) -> None:
        """Delete what there is of a skill on the stage."""
        parts = (self.place / (prefix + name) for prefix in (_OLD, _GONE, _NEW))
        for left in (*parts, self._written(f"{name}.json")):
            if os.path.lexists(left):
                clear(left)

    def write(self, path: Path, raw: bytes) -> None:
        """A file of ours in its place, on the disk, readable by nobody else.

        Raises:
            OSError: the disk is full, or the like.
        """
        made = self._written(path.name)
        clear(made)
        write_file(made, raw, 0o600)
        os.replace(made, path)
        sync_path(path.parent)

    def _written(self, name: str) -> Path:
        return self.place / (_WRITING + name)
