"""A folder of fetched skills: a skill appears in it whole or not at all, and what others put there stays.

Everything of ours but the skills lies in `.mcp-skills/`, which no scan looks into: a record beside each skill, what is
known of each index, and the stage where skills are made before they are renamed into their place. A record is written
before the rename and names the files before and after it, so that a process that is killed at any moment leaves a
folder in which every file is accounted for.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from mcp_skills_server.catalog.fetched import RECORDS
from mcp_skills_server.durable import sync_path, sync_paths
from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.format.ignored import OURS
from mcp_skills_server.model import printable
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.files import (
    clear,
    stat_signature,
    tree_digests,
    tree_signatures,
    write_file,
    write_tree,
)
from mcp_skills_server.sources.records import (
    HISTORIES,
    INDEXES,
    IndexRecord,
    SkillRecord,
    enter_index,
    index_file_name,
    read_index,
    read_record,
    read_records,
    record_key,
)

_BY_PRODUCTS: Final = frozenset(("__pycache__", ".DS_Store", "Thumbs.db", "desktop.ini"))
"""By-products of systems and interpreters, which make no skill an edited one."""
_OLD: Final = "old-"
_GONE: Final = "gone-"
_NEW: Final = "new-"
_WRITING: Final = "writing-"


class ConflictError(SkillsServerError, ValueError):
    """A place in the folder is taken, and nothing is put there. The message is one line for people."""


class SkillState(Enum):
    """The state of the place of a skill."""

    ABSENT = "absent"
    """Nothing."""
    KEPT = "kept"
    """The files that its record names."""
    FORMER = "former"
    """The files of before; a process was killed before it could put the new ones into their place."""
    EDITED = "edited"
    """A skill that was fetched, and has other files since."""
    FOREIGN = "foreign"
    """Something that was not fetched."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A skill on the stage, ready to be put into its place.

    Attributes:
        name: the name of the skill.
        state: what stood in its place when it was made.
        tree: its directory.
        record: the file that becomes its record.
        parts: every file and directory of both.
    """

    name: str
    state: SkillState
    tree: str
    record: str
    parts: tuple[str, ...]


class FetchedFolder:
    """A folder of fetched skills. Every method blocks; several threads may each have a skill.

    A disk that is full, or the like, is an OSError; what stood in the place of a skill stands there still. Get a folder
    from `opened`, which holds its lock. A name may have `/` in it: the skill then lies that deep.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stage = directory / OURS / "stage"
        self._records = directory / RECORDS
        self._indexes = directory / INDEXES
        self._histories = directory / HISTORIES

    @classmethod
    @contextmanager
    def opened(cls, directory: str | os.PathLike[str]) -> Generator[FetchedFolder]:
        """Open the folder, made where it is not there, and ours alone until the end of the `with`.

        What a killed process left half done is undone first.

        Raises:
            UsageError: it is no folder, cannot be written, or another process fetches into it.
        """
        named = printable(str(directory))
        folder = cls(Path(os.path.abspath(directory)))
        lock = FileLock(folder._stage.parent / "lock", timeout=0, thread_local=False)
        try:
            folder._make()
            lock.acquire()
        except Timeout:
            raise UsageError(f"another process fetches into {named}; wait for it to end") from None
        except OSError as error:
            raise UsageError(f"{named} cannot be written: {error.strerror or error}; choose another --output") from None
        try:
            try:
                folder._recover()
            except OSError as error:
                raise UsageError(f"{named} cannot be put in order: {error.strerror or error}") from None
            try:
                yield folder
            finally:
                with suppress(OSError):  # what was made and not put there, when this is cancelled
                    folder._recover()
                sync_path(folder._directory)
        finally:
            lock.release()

    @classmethod
    def recover(cls, directory: str | os.PathLike[str]) -> None:
        """Put back what a killed process had taken away, so that what is there is whole before its source answers.

        Where another process has the folder, that process does it.
        """
        folder = cls(Path(directory))
        with suppress(OSError, UsageError):
            if os.listdir(folder._stage):
                with cls.opened(directory):
                    pass

    def look(
        self, name: str, recorded: Mapping[str, SkillRecord] | None = None
    ) -> tuple[SkillState, SkillRecord | None]:
        """Return what is in the place of a skill, and its record.

        Files with the stat results that they were written with are not read; all others are read and verified.

        Args:
            name: of the skill.
            recorded: all records by name, where they were read already.
        """
        place = f"{self._directory}/{name}"
        if not os.path.lexists(place):
            return SkillState.ABSENT, None
        record = read_record(self._directory, name) if recorded is None else recorded.get(name)
        if record is None:
            return SkillState.FOREIGN, None
        if record.stats and tree_signatures(place) == record.stats:
            return SkillState.KEPT, record
        found = tree_digests(place)
        if found is not None:
            for known, state in ((record.files, SkillState.KEPT), (record.former, SkillState.FORMER)):
                if known is not None and _same(found, known):
                    return state, record
        return SkillState.EDITED, record

    def records(self) -> list[SkillRecord]:
        """Return the records by name. Deleted skills may have one."""
        return read_records(self._directory)

    def size(self, record: SkillRecord) -> int:
        """Return the bytes of the files of a skill that its record names."""
        total = 0
        for path in {*record.files, *(record.former or ())}:
            with suppress(OSError):
                total += os.lstat(f"{self._directory}/{record.name}/{path}").st_size
        return total

    def stage(self, record: SkillRecord, files: Files, *, force: bool = False) -> Staged | None:
        """Make a skill of these proved files, for `commit`; None when the very same are there already.

        `record.files`, `record.former` and `record.stats` are filled in here. With `force` an edited skill is replaced;
        what was not fetched never is.

        Raises:
            ConflictError: the place is taken, or was edited.
        """
        state, known = self.look(record.name)
        check(state, known, record.source, force=force)
        now = {path: hashlib.sha256(raw).hexdigest() for path, (raw, _) in files.items()}
        if (
            state is SkillState.KEPT
            and known is not None
            and dict(known.files) == now
            and self._has_modes(known, files)
        ):
            if (known.digest, known.url) != (record.digest, record.url):
                self._write_record(replace(record, files=now, stats=known.stats))
            return None
        former = None
        if known is not None:
            former = {SkillState.KEPT: known.files, SkillState.FORMER: known.former}.get(state)
        key = record_key(record.name)
        tree, written = f"{self._stage}/{_NEW}{key}", f"{self._stage}/{_WRITING}{key}.json"
        try:
            made = write_tree(tree, files)
            stats = {path: stat_signature(found) for path, found in made.files.items()}
            clear(Path(written))
            raw = replace(record, files=now, former=former, stats=stats).encode()
            write_file(written, raw, 0o600)
        except BaseException:
            self.discard(record.name)
            raise
        return Staged(record.name, state, tree, written, (*made.parts, written))

    def _has_modes(self, record: SkillRecord, files: Files) -> bool:
        """Tell whether just those files of a skill may be executed that may be executed in `files`."""
        top = self._directory / record.name
        return sys.platform == "win32" or all(
            bool(os.lstat(top / path).st_mode & stat.S_IXUSR) == executable for path, (_, executable) in files.items()
        )

    def commit(self, staged: Sequence[Staged]) -> dict[str, ConflictError | OSError]:
        """Put these skills into their places, each whole; they are synchronized together, which takes as long as one.

        Returns:
            By name, why a skill could not be put there; what was there is there still.
        """
        failed: dict[str, ConflictError | OSError] = {}
        left = {each.name: each for each in staged}

        def attempt(step: Callable[[Staged], None]) -> None:
            for each in list(left.values()):
                try:
                    step(each)
                except (ConflictError, OSError) as error:
                    failed[each.name] = error
                    del left[each.name]

        attempt(self._check_still)
        sync_paths([path for each in left.values() for path in each.parts])
        # A skill without a record would count as foreign: no skill has its place before all records do.
        attempt(lambda each: os.replace(each.record, self._record_path(each.name)))
        sync_path(self._records)
        attempt(self.swap)
        sync_path(self._directory)
        for each in staged:
            if each.name in failed or each.state is not SkillState.ABSENT:  # else nothing of it is left there
                self.discard(each.name)
        return failed

    def _check_still(self, staged: Staged) -> None:
        if staged.state is not SkillState.ABSENT and self.look(staged.name)[0] is not staged.state:
            raise ConflictError("it was edited meanwhile, and stays")

    def swap(self, staged: Staged) -> None:
        """Give a staged skill its place; what stood there is on the stage then, until `discard`.

        Raises:
            ConflictError: something appeared there.
        """
        place, old = f"{self._directory}/{staged.name}", f"{self._stage}/{_OLD}{record_key(staged.name)}"
        occupied = staged.state is not SkillState.ABSENT
        if occupied:
            os.rename(place, old)
        elif "/" in staged.name:
            os.makedirs(os.path.dirname(place), exist_ok=True)
        try:
            if os.path.lexists(place):  # rename would replace an empty directory
                raise ConflictError(f"{printable(place)} appeared meanwhile")
            os.rename(staged.tree, place)
        except BaseException:
            if occupied and not os.path.lexists(place):
                os.rename(old, place)
            raise

    def discard(self, name: str) -> None:
        """Delete what there is of a skill on the stage."""
        key = record_key(name)
        for left in (f"{_OLD}{key}", f"{_GONE}{key}", f"{_NEW}{key}", f"{_WRITING}{key}.json"):
            if os.path.lexists(self._stage / left):
                clear(self._stage / left)

    def remove(self, name: str, *, force: bool = False) -> None:
        """Take a skill that was fetched out of the folder, with its record.

        Raises:
            ConflictError: it was edited, or not fetched.
        """
        state, record = self.look(name)
        check(state, record, record.source if record else "", force=force)
        # The record goes last: a skill without one would count as foreign.
        if state is not SkillState.ABSENT:
            os.rename(self._directory / name, self._stage / (_GONE + record_key(name)))
            sync_path(self._directory)
        with suppress(FileNotFoundError):
            Path(self._record_path(name)).unlink()
        sync_path(self._records)
        self.discard(name)
        with suppress(OSError):  # another skill lies there
            for parent in [*Path(name).parents][:-1]:
                (self._directory / parent).rmdir()

    def remove_others(self, names: Collection[str]) -> None:
        """Remove everything but these skills."""
        above = {parent.as_posix() for name in names for parent in Path(name).parents}
        todo = [""]
        while todo:
            prefix = todo.pop()
            with suppress(OSError), os.scandir(self._directory / prefix) as entries:
                for entry in entries:
                    place = prefix + entry.name
                    if place in above and entry.is_dir(follow_symlinks=False):
                        todo.append(f"{place}/")
                    elif place not in names and place != OURS:
                        clear(Path(entry.path))

    def index(self, key: str) -> IndexRecord | None:
        """Return the record of the index with this key."""
        return read_index(self._directory, key)

    def put_index(self, index: IndexRecord) -> None:
        """Remember what is known of an index."""
        self._write(self._indexes / index_file_name(index.source), index.encode())

    def enter(self, index: IndexRecord, *, allow_rollback: bool) -> Sequence[str]:
        """Enter this index into the history of its place: `records.enter_index`."""
        return enter_index(self._directory, index, self._write, allow_rollback=allow_rollback)

    def _make(self) -> None:
        """Make what is missing of the folder."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for each in (self._stage.parent, self._stage, self._records, self._indexes, self._histories):
            with suppress(FileExistsError):
                each.mkdir()
            if not stat.S_ISDIR(os.lstat(each).st_mode):
                raise UsageError(f"{printable(str(each))} is no folder; move it away or choose another --output")
        for each in (self._records, self._indexes, self._histories):
            with suppress(OSError):  # some file systems have no modes
                os.chmod(each, 0o700)  # a URL may hold a secret

    def _recover(self) -> None:
        """Undo what a killed process left half done."""
        left = list(self._stage.iterdir())
        names: dict[str, str] = {}
        if any(each.name.startswith(_OLD) for each in left):
            names = {record_key(record.name): record.name for record in self.records()}
        for each in left:
            key = each.name.removeprefix(_OLD)
            target = self._directory / names.get(key, key)
            if each.name.startswith(_OLD) and not os.path.lexists(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(each, target)
            else:
                clear(each)

    def _record_path(self, name: str) -> str:
        return f"{self._records}/{record_key(name)}.json"

    def _write_record(self, record: SkillRecord) -> None:
        self._write(Path(self._record_path(record.name)), record.encode())

    def _write(self, path: Path, raw: bytes) -> None:
        """Replace a file of ours, on the disk, readable by its owner alone."""
        made = self._stage / (_WRITING + path.name)
        clear(made)
        write_file(made, raw, 0o600)
        sync_paths([str(made)])
        os.replace(made, path)
        sync_path(path.parent)


def folder_stamp(directory: Path) -> Sequence[object]:
    """Return what is another once a process has brought something into the folder or a skill is gone; () for none."""
    try:
        with os.scandir(directory / INDEXES) as entries:
            indexes = sorted((each.name, stat_signature(each.stat(follow_symlinks=False))) for each in entries)
        return *stat_signature(os.stat(directory)), *indexes
    except OSError:
        return ()


def check(state: SkillState, record: SkillRecord | None, source: str, *, force: bool) -> None:
    """Prove that a skill of this source may be put where `state` and `record` were found.

    Raises:
        ConflictError: it may not.
    """
    if state is SkillState.ABSENT:
        return
    if record is None:
        raise ConflictError("something that was not fetched has its name there, and stays; move it away")
    if record.source != source:
        raise ConflictError(f"the one there was fetched from {shown(record.source)}, and stays; delete it first")
    if state is SkillState.EDITED and not force:
        raise ConflictError("it was edited there, and stays; --force replaces it")


def _same(found: Mapping[str, str], known: Mapping[str, str]) -> bool:
    extra = found.keys() - known.keys()
    return (
        all(found.get(path) == digest for path, digest in known.items())
        and all(_BY_PRODUCTS & {*path.split("/")} for path in extra)
    )  # fmt: skip
