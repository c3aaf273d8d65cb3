"""In which order a run reached the disk: what was synchronized when a name was given to it.

A power cut keeps what was synchronized, and of all else any part. So bytes must be synchronized before the rename that
gives them their name, and the folder after it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Mark = tuple[int, int]


@dataclass
class Order:
    """What was seen.

    Attributes:
        names: each new name below the watched folder, in order, with what of it was not synchronized at that moment.
        open: the new names whose folder was not synchronized since.
    """

    top: Path
    names: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    open: dict[str, Mark] = field(default_factory=dict[str, Mark])
    _synced: set[Mark] = field(default_factory=set[Mark])

    def torn(self) -> list[str]:
        """The names that a power cut could leave with half of their content."""
        return [name for name, missing in self.names if missing]

    def synchronized(self, found: os.stat_result) -> None:
        """A file or folder is on the disk."""
        mark = (found.st_dev, found.st_ino)
        self._synced.add(mark)
        self.open = {name: folder for name, folder in self.open.items() if folder != mark}

    def everything(self) -> None:
        """The whole disk is."""
        self._synced |= {_mark(path) for path in _below(self.top)}
        self.open.clear()

    def is_safe(self, path: Path) -> bool:
        """Whether a file or folder was synchronized."""
        return _mark(path) in self._synced

    def named(self, source: Path, target: Path) -> None:
        """Something is about to be given this name."""
        if target.is_relative_to(self.top):
            missing = [str(path) for path in _below(source) if not self.is_safe(path)]
            self.names.append((target.relative_to(self.top).as_posix(), missing))

    def done(self, target: Path) -> None:
        """It has the name."""
        if target.is_relative_to(self.top):
            self.open[target.relative_to(self.top).as_posix()] = _mark(target.parent)


def _mark(path: Path) -> Mark:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _below(path: Path) -> Iterator[Path]:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        yield path
    if stat.S_ISDIR(mode):
        yield from (each for each in path.rglob("*") if not each.is_symlink())


def recorded(top: Path, patch: pytest.MonkeyPatch) -> Order:
    """Note every synchronization and every rename of this process from now on."""
    order = Order(Path(os.path.realpath(top)))
    fsync, sync = os.fsync, os.sync

    def synchronize(descriptor: int) -> None:
        fsync(descriptor)
        order.synchronized(os.fstat(descriptor))

    def synchronize_all() -> None:
        sync()
        order.everything()

    def renaming(rename: Any) -> Any:
        def noted(source: Any, target: Any, **options: Any) -> None:
            place = Path(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
            order.named(Path(source), place)
            rename(source, target, **options)
            order.done(place)

        return noted

    patch.setattr(os, "fsync", synchronize)
    patch.setattr(os, "sync", synchronize_all)
    patch.setattr(os, "rename", renaming(os.rename))
    patch.setattr(os, "replace", renaming(os.replace))
    return order
