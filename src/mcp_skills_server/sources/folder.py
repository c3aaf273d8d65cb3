"""A folder of fetched skills: a skill appears in it whole or not at all, and what somebody else put there stays.

Everything of ours but the skills lies in `.mcp-skills/`, which no scan looks into: a record beside each skill, what is
known of each index, and the stage where skills are made before they are renamed into their place. A record is written
before the rename and names the files before and after it, so that a process that is killed at any moment leaves a
folder in which every file is accounted for.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Final

from mcp_skills_server.catalog.fetched import RECORDS
from mcp_skills_server.durable import sync_path
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.archive import Files
from mcp_skills_server.format.ignored import OURS, ignored
from mcp_skills_server.model import printable
from mcp_skills_server.sources.files import BINARY, NOFOLLOW, file_digest, take_lock, tree_digests
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
)
from mcp_skills_server.sources.stage import ConflictError, Made, Stage
from mcp_skills_server.sources.urls import shown

_BY_PRODUCTS: Final = frozenset(("__pycache__", ".DS_Store", "Thumbs.db", "desktop.ini"))
"""What systems and interpreters leave behind by themselves; it makes no skill an edited one."""


class SkillState(Enum):
    """What stands in the place of a skill."""

    ABSENT = "absent"
    """Nothing."""
    KEPT = "kept"
    """What its record says."""
    FORMER = "former"
    """What stood there before; a process was killed before it could put the new files into their place."""
    EDITED = "edited"
    """A skill that was fetched, and has other files since."""
    FOREIGN = "foreign"
    """Something that was not fetched."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A skill that is ready to be put into its place.

    Attributes:
        made: where it lies.
        state: what stood in its place when it was made.
    """

    made: Made
    state: SkillState

    @property
    def name(self) -> str:
        """Of the skill."""
        return self.made.name


class FetchedFolder:
    """A folder of fetched skills. Every method blocks; several threads may each have a skill.

    Get one from `opened`, which holds the folder's lock.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stage = Stage(directory, directory / OURS / "stage")
        self._records = directory / RECORDS
        self._indexes = directory / INDEXES
        self._histories = directory / HISTORIES

    @classmethod
    @contextmanager
    def opened(cls, directory: str | os.PathLike[str]) -> Generator[FetchedFolder]:
        """The folder, made where it is not there, and ours alone until the end of the `with`.

        What a killed process left half done is undone first.

        Raises:
            UsageError: it is no folder, cannot be written, or another process fetches into it.
        """
        named = printable(str(directory))
        folder = cls(Path(os.path.abspath(directory)))
        try:
            lock = folder._make()
        except OSError as error:
            raise UsageError(f"{named} cannot be written: {error.strerror or error}; choose another --output") from None
        try:
            if not take_lock(lock):
                raise UsageError(f"another process fetches into {named}; wait for it to end")
            try:
                folder._stage.recover()
            except OSError as error:
                raise UsageError(f"{named} cannot be put in order: {error.strerror or error}") from None
            try:
                yield folder
            finally:
                with suppress(OSError):  # what was made and not put there, when this is cancelled
                    folder._stage.recover()
                sync_path(folder._directory)
        finally:
            os.close(lock)

    @classmethod
    def recover(cls, directory: str | os.PathLike[str]) -> None:
        """Put back what a killed process had taken away, so that what is there is whole before its source answers.

        Where another process has the folder, that is its matter.
        """
        folder = cls(Path(directory))
        if folder._stage.is_left:
            with suppress(UsageError), cls.opened(directory):
                pass

    def look(
        self, name: str, recorded: Mapping[str, SkillRecord] | None = None
    ) -> tuple[SkillState, SkillRecord | None]:
        """Return what is in the place of a skill, and its record. Every file is read and verified.

        Args:
            name: of the skill.
            recorded: all records by name, where they were read already.

        Raises:
            OSError: a file cannot be read.
        """
        place = f"{self._directory}/{name}"
        if not os.path.lexists(place):
            return SkillState.ABSENT, None
        record = read_record(self._directory, name) if recorded is None else recorded.get(name)
        if record is None:
            return SkillState.FOREIGN, None
        found = tree_digests(place)
        if found is not None:
            for known, state in ((record.files, SkillState.KEPT), (record.former, SkillState.FORMER)):
                if known is not None and _same(found, known):
                    return state, record
        return SkillState.EDITED, record

    def records(self, *, but: Collection[str] = ()) -> list[SkillRecord]:
        """Return the records by name, without those of some skills. Deleted skills may have one."""
        return read_records(self._directory, but=but)

    def size(self, record: SkillRecord) -> int:
        """Return the bytes of the files of a skill that its record names."""
        total = 0
        for path in {*record.files, *(record.former or ())}:
            with suppress(OSError):
                total += os.lstat(f"{self._directory}/{record.name}/{path}").st_size
        return total

    def stage(self, record: SkillRecord, files: Files, *, force: bool = False) -> Staged | None:
        """Make a skill of these proved files, for `commit`; None when the very same are there already.

        `record.files` and `record.former` are filled in here. With `force` an edited skill is replaced; what was not
        fetched never is.

        Raises:
            ConflictError: the place is somebody else's, or was edited.
            OSError: the disk is full, or the like.
        """
        state, known = self.look(record.name)
        check(state, known, record.source, force=force)
        files_now = {path: hashlib.sha256(raw).hexdigest() for path, (raw, _) in files.items()}
        if state is SkillState.KEPT and known is not None and dict(known.files) == files_now:
            if (known.digest, known.url) != (record.digest, record.url):
                self._write_record(record, files_now, None)
            return None
        former = None
        if known is not None:
            former = {SkillState.KEPT: known.files, SkillState.FORMER: known.former}.get(state)
        return Staged(self._stage.make(record.name, files, _encoded(record, files_now, former)), state)

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
        self._stage.settle([each.made for each in left.values()])
        # A skill without a record would count as somebody else's: no skill has its place before all records do.
        attempt(lambda each: os.replace(each.made.record, f"{self._records}/{each.name}.json"))
        sync_path(self._records)
        attempt(lambda each: self._stage.swap(each.made, occupied=each.state is not SkillState.ABSENT))
        sync_path(self._directory)
        for each in staged:
            if each.name in failed or each.state is not SkillState.ABSENT:  # else nothing of it is left there
                self._stage.discard(each.name)
        return failed

    def _check_still(self, staged: Staged) -> None:
        if staged.state is not SkillState.ABSENT and self.look(staged.name)[0] is not staged.state:
            raise ConflictError("it was edited meanwhile, and stays")

    def remove(self, name: str, *, force: bool = False) -> None:
        """Take a skill that was fetched out of the folder, with its record.

        Raises:
            ConflictError: it was edited, or not fetched.
            OSError: it cannot be moved.
        """
        state, record = self.look(name)
        check(state, record, record.source if record else "", force=force)
        # The record goes last: a skill without one would count as somebody else's.
        if state is not SkillState.ABSENT:
            self._stage.take(name)
        with suppress(FileNotFoundError):
            (self._records / f"{name}.json").unlink()
        sync_path(self._records)
        self._stage.discard(name)

    def remove_ignored(self, among: Iterable[SkillRecord]) -> list[tuple[SkillRecord, list[str]]]:
        """Take out of the skills of these records what earlier versions wrote and no command shows.

        Only a file goes that is what its record says, byte for byte. The record forgets the digest of the artifact, so
        that the skill is asked for anew.

        Returns:
            (the record as it is now, what was removed from the skill) of each that had such a file.
        """
        out: list[tuple[SkillRecord, list[str]]] = []
        for record in list(among):
            there = ignored({*record.files, *(record.former or ())})
            if not there:
                continue
            gone = [path for path in there if self._remove_file(record, path)]
            left, former = (
                None if known is None else {path: digest for path, digest in known.items() if path not in there}
                for known in (record.files, record.former)
            )
            renewed = replace(record, digest="", files=left or {}, former=former)
            self._write_record(renewed, renewed.files, former)
            out.append((renewed, gone))
        return out

    def _remove_file(self, record: SkillRecord, path: str) -> bool:
        place = self._directory / record.name
        *folders, name = path.split("/")
        for folder in ("", *folders):
            place = place / folder
            if place.is_symlink() or not place.is_dir():
                return False
        known = {known.get(path) for known in (record.files, record.former or {})}
        try:
            if file_digest(str(place / name)) not in known:
                return False
            (place / name).unlink()
        except OSError:
            return False
        for _ in folders:
            with suppress(OSError):  # somebody else has something there
                place.rmdir()
            place = place.parent
        return True

    def index(self, key: str) -> IndexRecord | None:
        """Return the record of the index with this key."""
        return read_index(self._directory, key)

    def put_index(self, index: IndexRecord) -> None:
        """Remember it."""
        data = {"version": 1, **asdict(index)}
        self._stage.write(self._indexes / index_file_name(index.source), json.dumps(data).encode())

    def enter(self, index: IndexRecord, *, allow_rollback: bool) -> Sequence[str]:
        """Enter this index into the history of its place: `records.enter_index`."""
        return enter_index(self._directory, index, self._stage.write, allow_rollback=allow_rollback)

    def _make(self) -> int:
        """Make what is missing of the folder; a descriptor of its lock file."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for each in (self._stage.place.parent, self._stage.place, self._records, self._indexes, self._histories):
            with suppress(FileExistsError):
                each.mkdir()
            if not stat.S_ISDIR(os.lstat(each).st_mode):
                raise UsageError(f"{printable(str(each))} is no folder; move it away or choose another --output")
        for each in (self._records, self._indexes, self._histories):
            with suppress(OSError):  # some file systems have no modes
                os.chmod(each, 0o700)  # a URL may hold a secret, and records were once for everybody to read
        return os.open(self._stage.place.parent / "lock", os.O_RDWR | os.O_CREAT | BINARY | NOFOLLOW, 0o644)

    def _write_record(self, record: SkillRecord, files: Mapping[str, str], former: Mapping[str, str] | None) -> None:
        self._stage.write(self._records / f"{record.name}.json", _encoded(record, files, former))


def _encoded(record: SkillRecord, files: Mapping[str, str], former: Mapping[str, str] | None) -> bytes:
    known = {field.name: getattr(record, field.name) for field in fields(record)}
    return json.dumps({"version": 1, **known, "files": files, "former": former}).encode()


def check(state: SkillState, record: SkillRecord | None, source: str, *, force: bool) -> None:
    """Whether a skill of this source may be put where `state` and `record` were found.

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
