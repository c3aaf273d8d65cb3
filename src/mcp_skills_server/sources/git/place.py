"""Working tree that is served of a repository, with a record of it; each skill is replaced atomically.

It is the same folder for as long as the source is, and only what is different is replaced, as of a site and for the
same reason: a tree for each commit would be read all again. A skill is current where every file of it has the size,
times and inode that it was written with, so that what somebody changed, or a power cut lost, is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from mcp_skills_server.durable import sync_path
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.archive import Files, check_paths
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.sources.files import clear, write_file, write_tree

Signature: TypeAlias = list[int]
"""Size, mtime and ctime in nanoseconds, inode."""

_VERSION: Final = 2


@dataclass(frozen=True)
class Kept:
    """A skill that is there.

    Attributes:
        place: its folder below the one that is served.
        key: of what it was made of.
        files: by path in the skill.
        notes: what the operator should hear of it.
        pointers: its files that are pointers of Git LFS.
    """

    place: str
    key: str
    files: Mapping[str, Signature]
    notes: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()


@dataclass(frozen=True)
class TreeRecord:
    """What is there.

    Attributes:
        commit: its id; "" before there was one.
        name: what the commit was found by, as in `Tip`.
        skills: by their folders in the repository.
        refused: (key, reason) of those that are not taken, by their folders.
        warnings: what else the operator should hear of the commit.
    """

    commit: str = ""
    name: str = ""
    skills: Mapping[str, Kept] = field(default_factory=dict[str, Kept])
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    warnings: tuple[str, ...] = ()


class WorkingTree:
    """The folder. Every method blocks; only one process at a time may change it.

    Args:
        directory: where it lies, with its record.
    """

    def __init__(self, directory: Path) -> None:
        self.path: Final = directory / "skills"
        self._record = directory / "record.json"
        self._stage = directory / "stage"
        self._parent: Path | None = None
        self._read: tuple[Signature, TreeRecord] | None = None

    def make(self) -> None:
        """Have the folder be there.

        Raises:
            UsageError: it cannot be made.
        """
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            reason = f"the cache cannot be written ({error.strerror or error})"
            raise UsageError(f"{self.path}: {reason}; choose another --cache-dir") from None

    @property
    def is_unfinished(self) -> bool:
        """Whether a process changes it now, or was killed while it did."""
        return self._stage.exists()

    def read(self) -> TreeRecord:
        """Return the record, empty if it cannot be understood. It is read again if its stat result changed."""
        try:
            signature = _signature(os.stat(self._record))
            if self._read is None or self._read[0] != signature:
                self._read = signature, _record_of(json.loads(self._record.read_bytes()))
            return self._read[1]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return TreeRecord()

    def changed(self, record: TreeRecord) -> set[str]:
        """Return the skills of the record, by folder in the repository, that differ from what was written."""
        found: dict[str, dict[str, Signature]] = {}
        for folder, kept in record.skills.items():
            found[folder] = {}
            _walk(self.path / kept.place, "", found[folder])
        return {folder for folder, kept in record.skills.items() if found[folder] != kept.files}

    def recover(self, record: TreeRecord) -> None:
        """Put back what a process that was killed had taken away, and remove what it left behind."""
        old = self._stage / "old"
        for kept in record.skills.values():
            place = self.path / kept.place
            if (old / kept.place).is_dir() and not os.path.lexists(place):
                with suppress(OSError):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(old / kept.place, place)
        clear(self._stage)
        self._parent = None

    def stage(self, place: str, key: str, files: Files) -> Kept:
        """Write a skill aside, for `swap`, and say what it will be.

        Raises:
            OSError: the disk is full, or the like.
        """
        top = self._stage / "new" / place
        if top.parent != self._parent:
            top.parent.mkdir(parents=True, exist_ok=True)
            self._parent = top.parent
        # Not synchronized: a file that a power cut took has another size, and its skill is written again.
        written = write_tree(top, files, durable=False, umask=False)
        return Kept(place, key, {path: _signature(found) for path, found in written.files.items()})

    def swap(self, gone: Iterable[str], fresh: Iterable[str]) -> None:
        """Take skills away, then put those that were staged into their places; both are given by their places.

        Raises:
            OSError: it cannot be moved. What is there then is of both, each skill whole.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        old, new = self._stage / "old", self._stage / "new"
        for place in gone:
            self._take_away(place, old)
        moved = ""
        for place in sorted(fresh):
            if moved and place.startswith(moved):
                continue
            if os.path.lexists(self.path / place):
                self._take_away(place, old)
            # All that was staged of a folder that is not there yet comes by one rename.
            top = next(each for each in (*_parents(place), place) if not os.path.lexists(self.path / each))
            os.rename(new / top, self.path / top)
            moved = f"{top}/"

    def write(self, record: TreeRecord) -> None:
        """Remember what is there now, and forget what was there before.

        Raises:
            OSError: it cannot be written.
        """
        made = self._record.with_name("record.new")
        clear(made)
        # Written out because `asdict` copies every signature, which takes longer than all the rest.
        data = {
            **vars(record),
            "version": _VERSION,
            "skills": {folder: vars(kept) for folder, kept in record.skills.items()},
        }
        raw = json.dumps(data, separators=(",", ":")).encode()
        write_file(made, raw, 0o600)
        os.replace(made, self._record)
        sync_path(self._record.parent)
        clear(self._stage)

    def remove_others(self, record: TreeRecord) -> None:
        """Remove what the record does not know. Nobody else keeps anything in a cache."""
        known = {kept.place for kept in record.skills.values()}
        above = {parent for place in known for parent in _parents(place)}
        todo = [""]
        while todo:
            prefix = todo.pop()
            with suppress(OSError), os.scandir(self.path / prefix) as entries:
                for entry in entries:
                    where = prefix + entry.name
                    if where in above and entry.is_dir(follow_symlinks=False):
                        todo.append(f"{where}/")
                    elif where not in known:
                        clear(Path(entry.path))

    def _take_away(self, place: str, old: Path) -> None:
        aside = old / place
        clear(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            os.rename(self.path / place, aside)
        for parent in reversed(_parents(place)):
            with suppress(OSError):  # another skill lies there
                (self.path / parent).rmdir()


def _walk(top: Path, prefix: str, out: dict[str, Signature]) -> None:
    """Collect the stat signature of every served file below, by path; links have none."""
    with suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not is_ignored(entry.name):
                    _walk(Path(entry.path), f"{prefix}{entry.name}/", out)
            elif not is_ignored(entry.name):
                out[prefix + entry.name] = _signature(entry.stat(follow_symlinks=False))


def _signature(found: os.stat_result) -> Signature:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _parents(place: str) -> list[str]:
    """Return the folders above a place, the outermost first."""
    parts = place.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _record_of(data: dict[str, Any]) -> TreeRecord:
    if data["version"] != _VERSION:
        raise ValueError
    skills = {
        str(folder): Kept(
            str(each["place"]), str(each["key"]), dict(each["files"]), tuple(each["notes"]), tuple(each["pointers"])
        )
        for folder, each in data["skills"].items()
    }
    check_paths(each.place for each in skills.values())
    refused = {str(folder): (str(key), str(why)) for folder, (key, why) in data["refused"].items()}
    return TreeRecord(str(data["commit"]), str(data["name"]), skills, refused, tuple(map(str, data["warnings"])))
