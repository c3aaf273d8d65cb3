"""Folder of fetched skills with atomic replacement; other content in it is kept.

All bookkeeping lies in `.mcp-skills/`, which no scan enters: a record for each skill and each
source, and the stage where skills are written before they are renamed into place. A record is
written before the rename and names the files before and after it, like a write-ahead log. So a
process killed at any moment leaves no file unaccounted for. Links are never followed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from mcp_skills_server.catalog.disk import signature
from mcp_skills_server.catalog.fetched import RECORDS
from mcp_skills_server.catalog.path_map import outermost
from mcp_skills_server.durable import replace_file, sync_path, sync_paths
from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.format.ignored import STATE_DIR
from mcp_skills_server.model import printable
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.records import (
    INDEXES,
    Extent,
    IndexRecord,
    SkillRecord,
    encode,
    index_file_name,
    read_record,
    read_records,
    record_key,
)

_BY_PRODUCTS: Final = frozenset(("__pycache__", ".DS_Store", "Thumbs.db", "desktop.ini"))
"""Files and folders that systems and interpreters create; they do not count as edits."""
# Prefixes on the stage: predecessors until the swap is complete, removed skills, new trees, their
# records, and what cannot be deleted now.
_OLD: Final = "old-"
_GONE: Final = "gone-"
_NEW: Final = "new-"
_WRITING: Final = "writing-"
_LEFT: Final = "left-"
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)


class ConflictError(SkillsServerError, ValueError):
    """A path in the folder is taken, so nothing is put there. The message is one line."""


class BusyError(UsageError):
    """Another process fetches into the folder."""


class SkillState(Enum):
    """State of a skill's path in the folder."""

    ABSENT = "absent"
    KEPT = "kept"
    """The files that its record names, unmodified."""
    FORMER = "former"
    """The replaced files: a process was killed before the rename."""
    EDITED = "edited"
    FOREIGN = "foreign"
    """Content that was not fetched."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged skill: its tree, its record file, and the state of its path when staged."""

    name: str
    state: SkillState
    tree: str
    record: str


class FetchedFolder:
    """Folder of fetched skills. Every method blocks; threads may work on different skills.

    A full disk is an OSError, and leaves the previous skill in place. `opened` locks the folder. A
    name may contain `/`: the skill then lies that deep. `changed` receives the path of each skill
    that is replaced or removed.
    """

    def __init__(self, directory: Path, changed: set[str] | None = None) -> None:
        self.directory = directory
        self._changed: set[str] = set() if changed is None else changed
        self._stage = directory / STATE_DIR / "stage"
        self._records = directory / RECORDS
        self._indexes = directory / INDEXES

    @classmethod
    @contextmanager
    def opened(
        cls, directory: str | os.PathLike[str], changed: set[str] | None = None
    ) -> Generator[FetchedFolder]:
        """Create and lock the folder, and undo what a killed process left; may raise UsageError."""
        named = printable(str(directory))
        folder = cls(Path(os.path.abspath(directory)), changed)
        lock = FileLock(folder._stage.parent / "lock", timeout=0, thread_local=False)
        with ExitStack() as held:
            try:
                folder._make()
                held.enter_context(lock)
                folder._recover()
            except Timeout:
                raise BusyError(f"another process fetches into {named}; wait for it") from None
            except OSError as error:
                raise UsageError(
                    f"{named} cannot be written: {error.strerror or error}; choose another --output"
                ) from None
            try:
                yield folder
            finally:
                with suppress(OSError):  # after a cancellation, roll back what is staged
                    folder._recover()
                sync_path(folder.directory)

    @classmethod
    def recover(cls, directory: str | os.PathLike[str]) -> None:
        """Roll back what a killed process left, unless another process holds the lock."""
        folder = cls(Path(directory))
        with suppress(OSError, UsageError):
            if os.listdir(folder._stage):
                with cls.opened(directory):
                    pass

    def state_of(
        self, name: str, recorded: Mapping[str, SkillRecord] | None = None
    ) -> tuple[SkillState, SkillRecord | None]:
        """Return the state of a skill's path, and its record (from `recorded` if given).

        Files with the recorded stat signatures are not read; otherwise all are hashed.
        """
        tree_path = f"{self.directory}/{name}"
        if not os.path.lexists(tree_path):
            return SkillState.ABSENT, None
        record = read_record(self.directory, name) if recorded is None else recorded.get(name)
        if record is None:
            return SkillState.FOREIGN, None
        tree = _tree(tree_path)
        if tree is None:
            return SkillState.EDITED, record
        stats = {path: signature(status) for path, status in tree.items()}
        if record.stats and stats == record.stats:
            return SkillState.KEPT, record
        digests = {path: _file_digest(f"{tree_path}/{path}") for path in tree}
        for known, state in ((record.files, SkillState.KEPT), (record.former, SkillState.FORMER)):
            if known is not None and _same(digests, known):
                return state, record
        return SkillState.EDITED, record

    def size(self, record: SkillRecord) -> int:
        """Return the bytes of a skill's recorded files on disk."""
        total = 0
        for path in {*record.files, *(record.former or ())}:
            with suppress(OSError):
                total += os.lstat(f"{self.directory}/{record.name}/{path}").st_size
        return total

    def measure(self, names: Collection[str] | None = None) -> Extent | None:
        """Measure these paths, or all skills; None if there is what no source writes.

        Raises:
            OSError: a folder cannot be read, or changes.
        """
        if names is None:
            names = {*os.listdir(self.directory)} - {STATE_DIR}
        statuses: list[os.stat_result] = []
        for path in (f"{self.directory}/{name}" for name in outermost(names)):
            if os.path.lexists(path):
                tree = _tree(path)
                if not tree:  # empty, or no folder
                    return None
                statuses += tree.values()
        changed = max((max(it.st_mtime_ns, it.st_ctime_ns) for it in statuses), default=0)
        return Extent(len(statuses), sum(it.st_size for it in statuses), changed)

    def stage(self, record: SkillRecord, files: Files, *, force: bool = False) -> Staged | None:
        """Write verified files to the stage, for `commit`; return None if already in place.

        Fills in `record.files`, `record.former` and `record.stats`. With `force` an edited skill is
        replaced; foreign content never is.

        Raises:
            ConflictError: the path is taken, or its skill was edited.
        """
        state, known = self.state_of(record.name)
        check(state, known, record.source, force=force)
        now = {path: hashlib.sha256(raw).hexdigest() for path, (raw, _) in files.items()}
        former = None
        if known is not None and state is SkillState.FORMER:
            former = known.former
        elif known is not None and state is SkillState.KEPT:
            former = known.files
            if dict(former) == now and self._has_modes(known, files):
                if (known.digest, known.url) != (record.digest, record.url):
                    path = Path(self._record_path(record.name))
                    replace_file(path, encode(replace(record, files=now, stats=known.stats)), 0o600)
                return None
        key = record_key(record.name)
        tree, written = f"{self._stage}/{_NEW}{key}", f"{self._stage}/{_WRITING}{key}.json"
        try:
            stats = {path: signature(status) for path, status in write_tree(tree, files).items()}
            clear(Path(written))
            record = replace(record, files=now, former=former, stats=stats)
            _write_file(written, encode(record), 0o600)
        except BaseException:
            self._discard(record.name)
            raise
        return Staged(record.name, state, tree, written)

    def _has_modes(self, record: SkillRecord, files: Files) -> bool:
        """Tell whether exactly the executable files of `files` are executable on disk."""
        top = self.directory / record.name
        return sys.platform == "win32" or all(
            bool(os.lstat(top / path).st_mode & stat.S_IXUSR) == executable
            for path, (_, executable) in files.items()
        )

    def commit(self, staged: Sequence[Staged]) -> dict[str, ConflictError | OSError]:
        """Rename staged skills into place, each atomically; one disk sync serves all of them.

        Return the error of each skill that failed, by name; its path is unchanged.
        """
        failed: dict[str, ConflictError | OSError] = {}
        left = {unit.name: unit for unit in staged}

        def attempt(step: Callable[[Staged], None]) -> None:
            for unit in list(left.values()):
                try:
                    step(unit)
                except (ConflictError, OSError) as error:
                    failed[unit.name] = error
                    del left[unit.name]

        attempt(self._check_still)
        sync_paths([path for unit in left.values() for path in (unit.record, *_parts(unit.tree))])
        # Records first: a skill without one would count as local or foreign.
        attempt(lambda unit: os.replace(unit.record, self._record_path(unit.name)))
        sync_path(self._records)
        attempt(self._swap)
        sync_path(self.directory)
        for unit in staged:
            # otherwise nothing of it is left on the stage
            if unit.name in failed or unit.state is not SkillState.ABSENT:
                self._discard(unit.name)
        return failed

    def _check_still(self, staged: Staged) -> None:
        if (
            staged.state is not SkillState.ABSENT
            and self.state_of(staged.name)[0] is not staged.state
        ):
            raise ConflictError("it was edited meanwhile, and stays")

    def _swap(self, staged: Staged) -> None:
        """Rename a staged skill into place, and its predecessor to the stage, until `_discard`."""
        path = f"{self.directory}/{staged.name}"
        old = f"{self._stage}/{_OLD}{record_key(staged.name)}"
        occupied = staged.state is not SkillState.ABSENT
        self._changed.add(staged.name)
        if occupied:
            os.rename(path, old)
        elif "/" in staged.name:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            if os.path.lexists(path):  # rename would replace an empty directory
                raise ConflictError(f"{printable(path)} appeared meanwhile")
            os.rename(staged.tree, path)
        except BaseException:
            if occupied and not os.path.lexists(path):
                os.rename(old, path)
            raise

    def _discard(self, name: str) -> None:
        """Delete all files of a skill on the stage."""
        key = record_key(name)
        for left in (f"{_OLD}{key}", f"{_GONE}{key}", f"{_NEW}{key}", f"{_WRITING}{key}.json"):
            self._clear(self._stage / left)

    def _clear(self, path: Path) -> None:
        """Delete a path; move what cannot be deleted to an unused name on the stage."""
        clear(path)
        if os.path.lexists(path):
            with suppress(OSError):
                os.rename(path, self._stage / f"{_LEFT}{uuid.uuid4().hex}")

    def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a fetched skill and its record; raise ConflictError if edited or foreign."""
        state, record = self.state_of(name)
        check(state, record, record.source if record else "", force=force)
        # The record goes last: a skill without one would count as foreign.
        if state is not SkillState.ABSENT:
            self._changed.add(name)
            os.rename(self.directory / name, self._stage / (_GONE + record_key(name)))
            sync_path(self.directory)
        with suppress(FileNotFoundError):
            Path(self._record_path(name)).unlink()
        sync_path(self._records)
        self._discard(name)
        with suppress(OSError):  # another skill lies in it
            for parent in [*Path(name).parents][:-1]:
                (self.directory / parent).rmdir()

    def others(self, names: Collection[str]) -> Generator[Path]:
        """Yield the paths of everything but these skills."""
        above = {parent.as_posix() for name in names for parent in Path(name).parents}
        todo = [""]
        while todo:
            prefix = todo.pop()
            with suppress(OSError), os.scandir(self.directory / prefix) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if name in above and entry.is_dir(follow_symlinks=False):
                        todo.append(f"{name}/")
                    elif name not in names and name != STATE_DIR:
                        yield Path(entry.path)

    def remove_others(self, names: Collection[str]) -> None:
        """Remove everything but these skills."""
        for path in self.others(names):
            self._changed.add(path.relative_to(self.directory).as_posix())
            self._clear(path)

    def put_index(self, index: IndexRecord) -> None:
        """Write the record of a source."""
        replace_file(self._indexes / index_file_name(index.source), encode(index), 0o600)

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for folder in (self._stage.parent, self._stage, self._records, self._indexes):
            with suppress(FileExistsError):
                folder.mkdir()
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                raise UsageError(f"{printable(str(folder))} is no folder; move it away")
        for folder in (self._records, self._indexes):
            with suppress(OSError):  # some file systems have no modes
                os.chmod(folder, 0o700)  # a URL may hold a secret

    def _recover(self) -> None:
        """Roll back what a killed process left."""
        left = list(self._stage.iterdir())
        names: dict[str, str] = {}
        if any(entry.name.startswith(_OLD) for entry in left):
            names = {
                record_key(record.name): record.name for record in read_records(self.directory)
            }
        for entry in left:  # a predecessor without a successor goes back, the rest is deleted
            key = entry.name.removeprefix(_OLD)
            target = self.directory / names.get(key, key)
            if entry.name.startswith(_OLD) and not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(entry, target)
            else:
                self._clear(entry)

    def _record_path(self, name: str) -> str:
        return f"{self._records}/{record_key(name)}.json"


def folder_stamp(directory: Path) -> Sequence[str]:
    """Return a stamp that changes when a process fetches into the folder; () if it is missing."""
    try:
        with os.scandir(directory / INDEXES) as entries:
            indexes = [f"{entry.name} {signature(os.lstat(entry))}" for entry in entries]
        return signature(os.stat(directory)), *sorted(indexes)
    except OSError:
        return ()


def check(state: SkillState, record: SkillRecord | None, source: str, *, force: bool) -> None:
    """Raise ConflictError unless a skill of this source may replace `state` and `record`."""
    if state is SkillState.ABSENT:
        return
    if record is None:
        raise ConflictError("something not fetched has its name there, and stays; move it away")
    if record.source != source:
        raise ConflictError(f"the one there was fetched from {shown(record.source)}; delete it")
    if state is SkillState.EDITED and not force:
        raise ConflictError("it was edited there, and stays; --force replaces it")


def _same(digests: Mapping[str, str], known: Mapping[str, str]) -> bool:
    """Tell whether the files on disk are the known ones, apart from by-products."""
    if any(digests.get(path) != digest for path, digest in known.items()):
        return False
    return all(_BY_PRODUCTS & {*path.split("/")} for path in digests.keys() - known.keys())


# Trees of files


def _tree(top: str) -> dict[str, os.stat_result] | None:
    """Return each file's stat result by path, or None if there is a link or special file."""
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        return None
    out: dict[str, os.stat_result] = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        with os.scandir(f"{top}/{prefix}") as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path + "/")
                elif entry.is_file(follow_symlinks=False):
                    out[path] = entry.stat(follow_symlinks=False)
                else:
                    return None
    return out


def _parts(tree: str) -> list[str]:
    """Return every file and folder of a tree, itself included."""
    return [
        path
        for top, _, names in os.walk(tree)
        for path in (top, *(f"{top}/{name}" for name in names))
    ]


def _file_digest(path: str) -> str:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NOFOLLOW)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_tree(top: str, files: Files) -> dict[str, os.stat_result]:
    """Write files below a new directory, replacing an old one; return each one's stat result.

    Modes are 0755 and 0644, less the process's umask.
    """
    clear(Path(top))
    os.mkdir(top)
    out: dict[str, os.stat_result] = {}
    for path, (raw, executable) in files.items():
        os.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
        out[path] = _write_file(f"{top}/{path}", raw, 0o755 if executable else 0o644)
    return out


def _write_file(path: str | Path, raw: bytes, mode: int) -> os.stat_result:
    """Write a new file and return its stat result; on Windows also sync it to disk."""
    with open(path, "xb", opener=partial(os.open, mode=mode)) as file:
        file.write(raw)
        file.flush()
        if sys.platform == "win32":  # where a file cannot be synchronized afterwards
            os.fsync(file.fileno())
        return os.fstat(file.fileno())


def clear(path: Path) -> None:
    """Delete a file or a tree if it exists; errors are ignored, and left to the next process."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
