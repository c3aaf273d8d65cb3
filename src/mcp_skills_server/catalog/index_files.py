"""The folder where indexes of roots lie between two processes: one file for each root, written aside and moved.

What is in a file is only as good as who may write it, so the folder and the file must be this user's and nobody else's
to write. A file of another version, of another root, cut or changed is passed over and written anew. Everything here
may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast
from weakref import finalize

import mcp_skills_server
from mcp_skills_server.catalog.stored_root import Reread, StoredRoot, encode
from mcp_skills_server.durable import why_untrusted
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import Skill

logger = logging.getLogger(__name__)

LEAST_SKILLS: Final = 200
"""From so many skills up a root has an index where nobody asked for one; below, a scan takes a tenth of a second."""
Mark: TypeAlias = Callable[[Skill], bytes]
_FORMAT: Final = 3
_READ: Final[int] = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
_ABANDONED_S: Final = 3600.0
_UNUSED_S: Final = 30 * 86400.0
_STEP: Final = 10
"""Skills that are encoded between two pauses: some tenths of a millisecond."""
_SHAPES_A_READING: Final = ("format", "validation", "model", "catalog", "codes.py")
"""The source that decides what a SKILL.md says and what is wrong with it."""


class _UnusableError(SkillsServerError):
    """An index file that must not be used. The message says why."""


class IndexFiles:
    """The index files of one user.

    Args:
        folder: where they lie; it is made when the first is written.
        least: the fewest skills that a root must have for its index to be written.
    """

    def __init__(self, folder: Path, least: int = LEAST_SKILLS) -> None:
        self._folder = folder
        self._least = least

    def path(self, root_path: str) -> Path:
        """The file of this root."""
        return self._folder / f"{hashlib.sha256(os.fsencode(root_path)).hexdigest()[:32]}.jsonl"

    def load(self, root_path: str, shown: str) -> StoredRoot | None:
        """What an earlier process left of a root, None where that is nothing or must not be used; a line says why.

        Args:
            root_path: the root, absolute and resolved.
            shown: the root as the operator knows it.
        """
        path = self.path(root_path)
        try:
            raw, reread = self._read(path)
            return _decode(raw, root_path, lambda: _passed_over(path, shown, "a part of it means nothing"), reread)
        except FileNotFoundError:
            return None
        except OSError as error:
            _passed_over(path, shown, error.strerror or "it cannot be read")
        except _UnusableError as error:
            _passed_over(path, shown, str(error))
        return None

    def save(self, root_path: str, skills: Sequence[Skill], mark: Mark, pause: Callable[[], bool]) -> bool:
        """Leave what is known of these skills, all of a root, to the next process. Whether it was written.

        A folder that cannot be written is none.

        Args:
            root_path: the root, absolute and resolved.
            skills: all of its skills.
            mark: of the folder of each, as `encode` takes it.
            pause: called now and then; returns whether to stop.
        """
        if len(skills) < self._least or not self._has_folder():
            return False
        with suppress(OSError):
            return self._write(self.path(root_path), lambda file: _encode(file, root_path, skills, mark, pause))
        return False

    def _read(self, path: Path) -> tuple[bytes, Reread | None]:
        self._check_folder()
        descriptor = os.open(path, _READ)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _UnusableError("it is no regular file")
            _check_owner(found, "it")
            with suppress(OSError):
                os.utime(path)  # it is in use
            return file.read(), _Descriptor(os.dup(descriptor)).read if hasattr(os, "pread") else None

    def _write(self, path: Path, put: Callable[[BinaryIO], bool]) -> bool:
        """Whether `put` wrote all of it."""
        aside = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        for left in self._folder.glob(f"{path.stem}.*-*"):
            if left == aside or _age_s(left) > _ABANDONED_S:
                left.unlink(missing_ok=True)  # by a process that was killed while it wrote
        for other in self._folder.glob(f"*{path.suffix}"):
            if _age_s(other) > _UNUSED_S:
                other.unlink(missing_ok=True)  # of a root that nobody serves any more
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if not put(file):
                    return False
            os.replace(aside, path)
            return True
        finally:
            aside.unlink(missing_ok=True)

    def _has_folder(self) -> bool:
        """Make the folder where it is missing; whether it may be used."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_folder()
        except (OSError, _UnusableError):
            return False
        return os.access(self._folder, os.W_OK)

    def _check_folder(self) -> None:
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode):
            raise _UnusableError("its folder is a link or no folder")
        _check_owner(found, "its folder")


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _check_owner(found: os.stat_result, what: str) -> None:
    reason = why_untrusted(found)
    if reason:
        raise _UnusableError(f"{what} {reason}")


class _Descriptor:
    """An open index file, which stays what it was when another is put in its place; closed when nobody has this."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        finalize(self, os.close, descriptor)

    def read(self, begin: int, length: int) -> bytes:
        """A part of the file."""
        return os.pread(self._descriptor, length, begin)


def _encode(file: BinaryIO, root_path: str, skills: Sequence[Skill], mark: Mark, pause: Callable[[], bool]) -> bool:
    """Write the file: a header, a line for each skill, and the list of their directories. False if it was to stop.

    Each line is written when it is made, for all of them together are many megabytes.
    """
    digest = hashlib.sha256()
    header = _header(root_path)
    file.write(_line_of({**header, "sha256": digest.hexdigest()}))
    directories: list[str] = []
    rest = iter(skills)
    while step := list(islice(rest, _STEP)):
        for skill in step:
            line = encode(skill, mark(skill))
            if line is not None:
                directories.append(skill.directory)
                digest.update(line)
                file.write(line)
        if pause():
            return False
    last = _line_of(directories)
    digest.update(last)
    file.write(last)
    file.seek(0)
    file.write(_line_of({**header, "sha256": digest.hexdigest()}))
    return True


def _line_of(value: object) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def _decode(raw: bytes, root_path: str, complain: Callable[[], None], reread: Reread | None) -> StoredRoot:
    begin = raw.find(b"\n") + 1
    head, body = raw[:begin], memoryview(raw)[begin:]
    try:
        header: Any = json.loads(head)
        if not isinstance(header, dict):
            raise _UnusableError("it is damaged")
        fields = cast("dict[str, Any]", header)
        if {**fields, "sha256": None} != {**_header(root_path), "sha256": None}:
            raise _UnusableError("it was written by another version")
        if fields.get("sha256") != hashlib.sha256(body).hexdigest():
            raise _UnusableError("it is damaged")
        end = raw.rindex(b"\n", 0, -1) + 1
        directories: list[str] = json.loads(raw[end:])
        return StoredRoot(raw, begin, end, directories, complain=complain, reread=reread)
    except (ValueError, TypeError, RecursionError):
        raise _UnusableError("it is damaged") from None


def _header(root_path: str) -> dict[str, Any]:
    """What must be equal for a file to be used."""
    return {"format": _FORMAT, "code": _code(), "root": root_path}


@cache
def _code() -> str:
    """What changes when a SKILL.md may be read in another way: the version, and the time stamps of the source.

    Looked at once, near the start: a process goes on with the code that it began with.
    """
    top = Path(mcp_skills_server.__file__).parent
    marks: list[tuple[str, int, int]] = []
    for name in _SHAPES_A_READING:
        place = top / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            with suppress(OSError):  # in an archive of Python code the version alone counts
                found = path.stat()
                marks.append((path.relative_to(top).as_posix(), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(repr((mcp_skills_server.__version__, marks)).encode()).hexdigest()[:32]


def _passed_over(path: Path, shown: str, reason: str) -> None:
    logger.info("%s: the index of an earlier start, %s, is not used: %s; it is written anew", shown, path, reason)
