"""The indexes of roots between two processes: one file for each root.

A file of another version, of another root, cut or changed is passed over and written anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast
from weakref import finalize

import mcp_skills_server
from mcp_skills_server.catalog.index_folder import IndexFolder, UnusableFileError
from mcp_skills_server.catalog.stored_root import Reread, StoredRoot, encode
from mcp_skills_server.model import Skill

logger = logging.getLogger(__name__)

LEAST_SKILLS: Final = 200
"""From so many skills up a root has an index where nobody asked for one; below, a scan takes a tenth of a second."""
Mark: TypeAlias = Callable[[Skill], bytes]
_FORMAT: Final = 3
_STEP: Final = 10
"""Skills that are encoded between two pauses: some tenths of a millisecond."""
SHAPES_A_READING: Final = ("format", "validation", "model", "catalog", "codes.py")
"""The source that decides what a SKILL.md says and what is wrong with it."""


class IndexFiles:
    """The index files of one user.

    Args:
        folder: where they lie; it is made when the first is written.
        least: the fewest skills that a root must have for its index to be written.
    """

    def __init__(self, folder: Path, least: int = LEAST_SKILLS) -> None:
        self.folder = IndexFolder(folder)
        self.least = least

    def path(self, root_path: str) -> Path:
        """The file of this root."""
        return self.folder.path / f"{hashlib.sha256(os.fsencode(root_path)).hexdigest()[:32]}.jsonl"

    def load(self, root_path: str, shown: str) -> StoredRoot | None:
        """What an earlier process left of a root, None where that is nothing or must not be used; a line says why.

        Args:
            root_path: the root, absolute and resolved.
            shown: the root as the operator knows it.
        """
        path = self.path(root_path)
        try:
            raw, reread = self._read(path.name)
            return _decode(raw, root_path, lambda: _passed_over(path, shown, "a part of it means nothing"), reread)
        except FileNotFoundError:
            return None
        except OSError as error:
            _passed_over(path, shown, error.strerror or "it cannot be read")
        except UnusableFileError as error:
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
        if len(skills) < self.least:
            return False
        name = self.path(root_path).name
        return self.folder.replace(name, lambda file: _encode(file, root_path, skills, mark, pause))

    def _read(self, name: str) -> tuple[bytes, Reread | None]:
        with self.folder.open(name) as file:
            reread = _Descriptor(os.dup(file.fileno())).read if hasattr(os, "pread") else None
            return file.read(), reread


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
            raise UnusableFileError("it is damaged")
        fields = cast("dict[str, Any]", header)
        if {**fields, "sha256": None} != {**_header(root_path), "sha256": None}:
            raise UnusableFileError("it was written by another version")
        if fields.get("sha256") != hashlib.sha256(body).hexdigest():
            raise UnusableFileError("it is damaged")
        end = raw.rindex(b"\n", 0, -1) + 1
        directories: list[str] = json.loads(raw[end:])
        return StoredRoot(raw, begin, end, directories, complain=complain, reread=reread)
    except (ValueError, TypeError, RecursionError):
        raise UnusableFileError("it is damaged") from None


def _header(root_path: str) -> dict[str, Any]:
    """What must be equal for a file to be used."""
    return {"format": _FORMAT, "code": code_mark(*SHAPES_A_READING), "root": root_path}


@cache
def code_mark(*names: str) -> str:
    """What changes with the code in these packages and modules: the version, and the time stamps of the source.

    Looked at once, near the start: a process goes on with the code that it began with.
    """
    top = Path(mcp_skills_server.__file__).parent
    marks: list[tuple[str, int, int]] = []
    for name in names:
        place = top / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            with suppress(OSError):  # in an archive of Python code the version alone counts
                found = path.stat()
                marks.append((path.relative_to(top).as_posix(), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(repr((mcp_skills_server.__version__, marks)).encode()).hexdigest()[:32]


def _passed_over(path: Path, shown: str, reason: str) -> None:
    logger.info("%s: the index of an earlier start, %s, is not used: %s; it is written anew", shown, path, reason)
