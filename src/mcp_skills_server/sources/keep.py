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
import shutil
import stat
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.format.archive import Files, check_paths
from mcp_skills_server.format.ignored import OURS as OWN
from mcp_skills_server.format.ignored import ignored
from mcp_skills_server.model import printable
from mcp_skills_server.sources.caching import LONGEST_S
from mcp_skills_server.sources.urls import shown

_BY_PRODUCTS: Final = frozenset(("__pycache__", ".DS_Store", "Thumbs.db", "desktop.ini"))
"""What systems and interpreters leave behind by themselves; it makes no skill an edited one."""
_OLD: Final = "old-"
_NEW: Final = "new-"
_WRITING: Final = "writing-"
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)

_T = TypeVar("_T")


class State(Enum):
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


class ConflictError(SkillsServerError, ValueError):
    """A place in the folder is somebody else's, and nothing is put there. The message is one line for people."""


@dataclass(frozen=True, slots=True)
class Record:
    """Where a skill in the folder came from.

    Attributes:
        name: of the skill, and of its directory.
        source: the index, as `wellknown.candidates` names it first.
        url: of the artifact, or of SKILL.md in discovery 0.1.0.
        digest: of the artifact as the index says it; "" in 0.1.0.
        fetched_at: seconds of the epoch.
        files: sha256 in hex by path in the skill.
        former: the same of the files that they replace, None where there are none.
    """

    name: str
    source: str
    url: str
    digest: str
    fetched_at: float
    files: Mapping[str, str]
    former: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of an index.

    Attributes:
        source: its key: the first of `wellknown.candidates`.
        given: the URL as the operator gave it.
        asked: the candidate that answered.
        url: the address that answered, after redirects.
        body: the index, "" where its publisher does not want it kept.
        validators: headers to ask with whether it changed.
        asked_at: seconds of the epoch at which it was asked for.
        fresh_s: for how many seconds from then it may be used unasked.
        wanted: names that the operator asked for, None for all.
    """

    source: str
    given: str
    asked: str
    url: str
    body: str
    validators: Mapping[str, str] = field(default_factory=dict[str, str])
    asked_at: float = 0.0
    fresh_s: float = 0.0
    wanted: tuple[str, ...] | None = None

    def left_s(self, now: float) -> float:
        """For how many seconds from `now` (of the epoch) it may still be used unasked; 0 when it may not.

        A time that is still to come was written by a clock that was ahead, or this one is behind: no promise holds.
        """
        since = now - self.asked_at
        return max(0.0, min(self.fresh_s, LONGEST_S) - since) if since >= 0 else 0.0  # in this order NaN is 0


class Store:
    """A folder of fetched skills, opened by `opened`. Every method blocks; several threads may each have a skill."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = directory / OWN
        self._stage = self._own / "stage"
        self._records = self._own / "skills"
        self._sources = self._own / "sources"

    def look(self, name: str) -> tuple[State, Record | None]:
        """What stands in the place of this skill, and its record. Every file is read and proved.

        Raises:
            OSError: a file cannot be read.
        """
        record = read_record(self._directory, name)
        place = self._directory / name
        if not os.path.lexists(place):
            return State.ABSENT, record
        if record is None:
            return State.FOREIGN, None
        found = _hashes(place)
        if found is not None:
            for known, state in ((record.files, State.KEPT), (record.former, State.FORMER)):
                if known is not None and _same(found, known):
                    return state, record
        return State.EDITED, record

    def records(self) -> list[Record]:
        """All records, by name; also of skills that somebody deleted."""
        return records(self._directory)

    def size(self, record: Record) -> int:
        """Bytes of the files of a skill that are there, as far as the record names them."""
        total = 0
        for path in {*record.files, *(record.former or ())}:
            with suppress(OSError):
                total += os.lstat(self._directory / record.name / path).st_size
        return total

    def put(self, record: Record, files: Files, *, force: bool = False) -> bool:
        """Put these proved files into the skill's place, whole; False when the very same are there already.

        `record.files` and `record.former` are filled in here. With `force` an edited skill is replaced; what was not
        fetched never is.

        Raises:
            ConflictError: the place is somebody else's, or was edited.
            OSError: the disk is full, or the like; what was there is there still.
        """
        state, known = self.look(record.name)
        check(state, known, record.source, force=force)
        files_now = {path: hashlib.sha256(raw).hexdigest() for path, (raw, _) in files.items()}
        if state is State.KEPT and known is not None and dict(known.files) == files_now:
            if (known.digest, known.url) != (record.digest, record.url):
                self._write_record(record, files_now, None)
            return False
        former = None
        if known is not None:
            former = {State.KEPT: known.files, State.FORMER: known.former}.get(state)
        staged = self._stage / (_NEW + record.name)
        try:
            _write_tree(staged, files)
            self._write_record(record, files_now, former)
            self._swap(staged, record.name, occupied=state is not State.ABSENT)
        finally:
            if os.path.lexists(staged):
                _clear(staged)
        return True

    def remove(self, name: str, *, force: bool = False) -> None:
        """Take a skill that was fetched out of the folder, with its record.

        Raises:
            ConflictError: it was edited, or not fetched.
            OSError: it cannot be moved.
        """
        state, record = self.look(name)
        check(state, record, record.source if record else "", force=force)
        old = self._stage / (_OLD + name)
        if state is not State.ABSENT:
            os.rename(self._directory / name, old)
        with suppress(FileNotFoundError):
            (self._records / f"{name}.json").unlink()
        _settle(self._directory)
        _settle(self._records)
        _clear(old)

    def remove_ignored(self) -> list[tuple[str, list[str]]]:
        """Take out of fetched skills what earlier versions wrote and no command shows.

        Only a file goes that is what its record says, byte for byte. The record forgets the digest of the artifact, so
        that the skill is asked for anew.

        Returns:
            (name of a skill, what was removed from it).
        """
        out: list[tuple[str, list[str]]] = []
        for record in self.records():
            there = ignored({*record.files, *(record.former or ())})
            if not there:
                continue
            gone = [path for path in there if self._remove_file(record, path)]
            left, former = (
                None if known is None else {path: digest for path, digest in known.items() if path not in there}
                for known in (record.files, record.former)
            )
            self._write_record(replace(record, digest=""), left or {}, former)
            if gone:
                out.append((record.name, gone))
        return out

    def _remove_file(self, record: Record, path: str) -> bool:
        place = self._directory / record.name
        *folders, name = path.split("/")
        for folder in ("", *folders):
            place = place / folder
            if place.is_symlink() or not place.is_dir():
                return False
        known = {known.get(path) for known in (record.files, record.former or {})}
        try:
            if _hash(str(place / name)) not in known:
                return False
            (place / name).unlink()
        except OSError:
            return False
        for _ in folders:
            with suppress(OSError):  # somebody else has something there
                place.rmdir()
            place = place.parent
        return True

    def source(self, key: str) -> Source | None:
        """What is known of the index of this key."""
        return _read(self._sources / _file_of(key), _source_from)

    def put_source(self, source: Source) -> None:
        """Remember it."""
        told = {"version": 1, **asdict(source)}
        self._write(self._sources / _file_of(source.source), json.dumps(told).encode(), 0o600)

    def settle(self) -> None:
        """Have every rename survive a power cut."""
        _settle(self._directory)

    def _recover(self) -> None:
        """Undo what a process that was killed left half done."""
        for left in list(self._stage.iterdir()):
            place = self._directory / left.name.removeprefix(_OLD)
            if left.name.startswith(_OLD) and not os.path.lexists(place):
                os.rename(left, place)
            else:
                _clear(left)

    def _swap(self, staged: Path, name: str, *, occupied: bool) -> None:
        place, old = self._directory / name, self._stage / (_OLD + name)
        if occupied:
            os.rename(place, old)
        try:
            if os.path.lexists(place):  # rename would replace an empty directory
                raise ConflictError(f"{printable(str(place))} appeared meanwhile")
            os.rename(staged, place)
        except BaseException:
            if occupied and not os.path.lexists(place):
                os.rename(old, place)
            raise
        if occupied:
            _settle(self._directory)
            _clear(old)

    def _write_record(self, record: Record, files: Mapping[str, str], former: Mapping[str, str] | None) -> None:
        told = {"version": 1, **asdict(record), "files": files, "former": former}
        self._write(self._records / f"{record.name}.json", json.dumps(told, indent=1).encode(), 0o600)

    def _write(self, path: Path, raw: bytes, mode: int) -> None:
        made = self._stage / f"{_WRITING}{path.name}"
        _clear(made)
        _write_file(made, raw, mode)
        os.replace(made, path)
        _settle(path.parent)


@contextmanager
def opened(directory: str | os.PathLike[str]) -> Generator[Store]:
    """The folder, made where it is not there, and ours alone until the end of the `with`.

    What a killed process left half done is undone first.

    Raises:
        UsageError: it is no folder, cannot be written, or another process fetches into it.
    """
    place = Path(os.path.abspath(directory))
    shown = printable(str(directory))
    store = Store(place)
    own = place / OWN
    try:
        place.mkdir(parents=True, exist_ok=True)
        for each in (own, store._stage, store._records, store._sources):  # pyright: ignore[reportPrivateUsage]
            with suppress(FileExistsError):
                each.mkdir()
            if not stat.S_ISDIR(os.lstat(each).st_mode):
                raise UsageError(f"{printable(str(each))} is no folder; move it away or choose another --output")
        for each in (store._records, store._sources):  # pyright: ignore[reportPrivateUsage]
            with suppress(OSError):  # some file systems have no modes
                os.chmod(each, 0o700)  # a URL may hold a secret, and records were once for everybody to read
        lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | _BINARY | _NOFOLLOW, 0o644)
    except OSError as error:
        raise UsageError(f"{shown} cannot be written: {error.strerror or error}; choose another --output") from None
    try:
        if not _lock(lock):
            raise UsageError(f"another process fetches into {shown}; wait for it to end")
        try:
            store._recover()  # pyright: ignore[reportPrivateUsage]
        except OSError as error:
            raise UsageError(f"{shown} cannot be put in order: {error.strerror or error}") from None
        try:
            yield store
        finally:
            store.settle()
    finally:
        os.close(lock)


def check(state: State, record: Record | None, source: str, *, force: bool) -> None:
    """Whether a skill of this source may be put where `state` and `record` were found.

    Raises:
        ConflictError: it may not.
    """
    if state is State.ABSENT:
        return
    if record is None:
        raise ConflictError("something that was not fetched has its name there, and stays; move it away")
    if record.source != source:
        raise ConflictError(f"the one there was fetched from {shown(record.source)}, and stays; delete it first")
    if state is State.EDITED and not force:
        raise ConflictError("it was edited there, and stays; --force replaces it")


def read_record(directory: str | os.PathLike[str], name: str) -> Record | None:
    """The record of one skill in a folder, None where there is none. Needs no lock."""
    return _read(Path(directory, OWN, "skills", f"{name}.json"), _record_from)


def records(directory: str | os.PathLike[str]) -> list[Record]:
    """The records of a folder by name; none where nothing was ever fetched into it. Needs no lock."""
    return _all(Path(directory, OWN, "skills"), _record_from)


def sources(directory: str | os.PathLike[str]) -> list[Source]:
    """What a folder was fetched from. Needs no lock."""
    return _all(Path(directory, OWN, "sources"), _source_from)


def _all(folder: Path, make: Callable[[dict[str, Any]], _T]) -> list[_T]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    return [found for name in names if (found := _read(folder / name, make)) is not None]


def _read(path: Path, make: Callable[[dict[str, Any]], _T]) -> _T | None:
    """What a file of ours says; None where it is missing or says nothing that is understood."""
    try:
        told = json.loads(path.read_bytes())
        return make(told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # ArchiveRefusedError is a ValueError
        return None


def _record_from(told: dict[str, Any]) -> Record:
    former = told["former"]
    record = Record(
        **{key: str(told[key]) for key in ("name", "source", "url", "digest")},
        fetched_at=float(told["fetched_at"]),
        files=dict(told["files"]),
        former=None if former is None else dict(former),
    )
    # A folder may come from elsewhere with its records, and what these name is moved and removed.
    if "/" in record.name:
        raise ValueError(record.name)
    check_paths([record.name])
    for paths in (record.files, record.former or {}):
        check_paths(paths)
    return record


def _source_from(told: dict[str, Any]) -> Source:
    wanted = told["wanted"]
    return Source(
        **{key: str(told[key]) for key in ("source", "given", "asked", "url", "body")},
        validators=dict(told["validators"]),
        asked_at=float(told.get("asked_at", 0)),
        fresh_s=float(told.get("fresh_s", 0)),
        wanted=None if wanted is None else tuple(map(str, wanted)),
    )


def _file_of(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _same(found: Mapping[str, str], known: Mapping[str, str]) -> bool:
    extra = found.keys() - known.keys()
    return (
        all(found.get(path) == digest for path, digest in known.items())
        and all(_BY_PRODUCTS & {*path.split("/")} for path in extra)
    )  # fmt: skip


def _hashes(place: Path) -> dict[str, str] | None:
    """sha256 of every file below, by path; None when there is anything but directories and regular files."""
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        return None
    out: dict[str, str] = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        with os.scandir(place / prefix) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path + "/")
                elif entry.is_file(follow_symlinks=False):
                    out[path] = _hash(entry.path)
                else:
                    return None
    return out


def _hash(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | _NOFOLLOW | _BINARY)
    with open(descriptor, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_tree(staged: Path, files: Files) -> None:
    """These files below a new directory, all of it on the disk when this returns."""
    _clear(staged)
    folders = {""}
    for path in files:
        while (path := path.rpartition("/")[0]) not in folders:
            folders.add(path)
    top = str(staged)
    for folder in sorted(folders):  # those above come first
        os.mkdir(f"{top}/{folder}")
    for path, (raw, executable) in files.items():
        _write_file(f"{top}/{path}", raw, 0o755 if executable else 0o644)
    for folder in folders:
        _settle(f"{top}/{folder}")


def _write_file(path: str | Path, raw: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY, mode)
    with open(descriptor, "wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fsync(descriptor)


def _clear(path: Path) -> None:
    """Delete what is ours; what resists is left to the next process."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _settle(folder: str | Path) -> None:
    """Have the names in a folder survive a power cut, where folders can be synchronized."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock, which the system takes back when the process ends in whichever way; False if it is taken."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def now() -> float:
    """Seconds of the epoch, whole ones."""
    return float(int(time.time()))
