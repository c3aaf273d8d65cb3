"""The index of a search between two processes: one file for each catalogue, beside the indexes of its roots.

A header, the image of the database, the texts of each row, and the rest as JSON. The texts are read for rows alone that
have to be taken out. A file of another version or catalogue, cut or changed is passed over and written anew. It says
which skill may be meant and never what a skill is: a row without a skill of the same path and digest is taken out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from io import BufferedReader
from mmap import mmap
from pathlib import Path
from typing import Any, BinaryIO, Final
from zlib import crc32

from mcp_skills_server.catalog.index import SHAPES_A_READING, Index, code_mark
from mcp_skills_server.catalog.index_folder import UnusableFileError
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.runtime.full_text import WEIGHTS
from mcp_skills_server.runtime.search_index import IndexCopy, SearchIndex, SearchState
from mcp_skills_server.runtime.search_text import Texts, texts_of

logger = logging.getLogger(__name__)

_FORMAT: Final = 1
_HEADER: Final = 512
"""Bytes of the header, which is filled up with blanks."""
_MOST: Final = 1 << 29
"""Bytes of a file that is read or written: of some hundred thousand skills."""
_TEXTS: Final = len(WEIGHTS) + 1
"""Of a row: those in columns, and how the body begins."""
_PART: Final = 1 << 16
_STEP: Final = 10
"""Skills whose texts are written between two pauses: some tenths of a millisecond."""
_SHAPES_A_ROW: Final = (
    "runtime/full_text.py", "runtime/ngrams.py", "runtime/search_file.py", "runtime/search_index.py",
    "runtime/search_text.py", "runtime/spelling.py",
)  # fmt: skip
"""The source that decides, with what shapes a reading, which words of a SKILL.md are indexed how."""


class SearchFile:
    """The kept index of one catalogue.

    Args:
        files: where the indexes of its roots lie.
        roots: as they were given, in their order.

    Attributes:
        least: the fewest skills that a catalogue must have for its index to be written.
        path: of the file.
    """

    def __init__(self, files: Index, roots: Sequence[str]) -> None:
        self._folder = files.folder
        self._roots = hashlib.sha256(b"\0".join(map(os.fsencode, roots))).hexdigest()
        self.least = files.least
        self.path = self._folder.path / f"{self._roots[:32]}.search"

    @property
    def identity(self) -> int | None:
        """What changes when the file is replaced; None where there is none."""
        try:
            return self.path.lstat().st_ino
        except OSError:
            return None

    def load(self, snapshot: Snapshot) -> SearchIndex | None:
        """The index of this snapshot, made of the one that an earlier process left.

        None where there is none, where too little of it still holds, or where it must not be used; of that a line says
        why.
        """
        if find_spec("_sqlite3") is None:
            return None
        try:
            with closing(self._folder.open(self.path.name)) as file:
                return self._decode(file, snapshot)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.pass_over(error.strerror or "it cannot be read")
        except UnusableFileError as error:
            self.pass_over(str(error))
        return None

    def save(self, copy: Callable[[Path], IndexCopy | None], pause: Callable[[], bool]) -> bool:
        """Leave an index to the next process; whether it was written. A folder that cannot be written is none.

        Args:
            copy: copies the index, its database into this file; None where it cannot be copied.
            pause: called now and then; returns whether to stop.
        """
        import sqlite3

        with suppress(sqlite3.Error):  # the disk is full, say
            return self._folder.replace(self.path.name, lambda file: self._encode(file, copy, pause))
        return False

    def pass_over(self, reason: str) -> None:
        """Say in a line of the log why the file is not used."""
        logger.info("the search index of an earlier start, %s, is not used: %s; it is written anew", self.path, reason)

    def _encode(self, file: BinaryIO, copy: Callable[[Path], IndexCopy | None], pause: Callable[[], bool]) -> bool:
        file.write(bytes(_HEADER))
        proved = hashlib.sha256()
        # A file of its own first: what many megabytes leave in the heap stays with the process.
        place = self.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}-image")
        try:
            with open(os.open(place, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600), "rb") as image:
                made = copy(place)
                while part := image.read(_PART):
                    proved.update(part)
                    file.write(part)
        finally:
            place.unlink(missing_ok=True)
        if made is None or len(made.skills) < self.least:
            return False
        image_length = file.tell() - _HEADER
        ends, checksums = [_HEADER + image_length], list[int]()
        for number, skill in enumerate(made.skills):
            record = _record(skill)
            file.write(record)
            ends.append(ends[-1] + len(record))
            checksums.append(crc32(record))
            if number % _STEP == 0 and pause():
                return False
        begin = ends[-1]
        for part in (*made.state, ends, checksums):
            line = json.dumps(part, separators=(",", ":")).encode("ascii") + b"\n"
            proved.update(line)
            file.write(line)
            if pause():
                return False
        length = file.tell()
        file.seek(0)
        file.write(self._header(image_length, begin, length, proved.hexdigest()))
        return length <= _MOST

    def _decode(self, file: BufferedReader, snapshot: Snapshot) -> SearchIndex | None:
        image, lines, rest = self._proved(file)
        import sqlite3

        try:
            *parts, ends, checksums = lines

            spans: list[tuple[int, int, int]] = []

            def texts_at(place: int) -> Texts:
                if not spans:  # most often no text is asked for
                    limits = json.loads(ends)
                    spans.extend(zip(limits, limits[1:], json.loads(checksums), strict=False))
                begin, end, checksum = spans[place]
                if not _HEADER <= begin <= end <= rest:  # or a file that says so has us ask for all the memory there is
                    raise ValueError
                file.seek(begin)
                return _texts(file.read(end - begin), checksum)

            state = SearchState(*map(json.loads, parts))
            return SearchIndex.restored(state, image, snapshot, texts_at)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError, sqlite3.Error):
            raise UnusableFileError("a part of it means nothing") from None

    def _proved(self, file: BufferedReader) -> tuple[mmap, list[bytes], int]:
        """The image, the lines behind the texts and where these begin, if this version wrote them for these roots."""
        size = os.fstat(file.fileno()).st_size
        if size > _MOST:
            raise UnusableFileError("it is too long")
        raw = file.read(_HEADER)
        try:
            fields: Any = json.loads(raw)
            if self._header(0, 0, 0, "") != _filled({**fields, "image": 0, "rest": 0, "length": 0, "sha256": ""}):
                raise UnusableFileError("it was written by another version")
            image_length, begin, sha256 = int(fields["image"]), int(fields["rest"]), str(fields["sha256"])
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            raise UnusableFileError("it is damaged") from None
        if fields["length"] != size or not 0 <= image_length <= begin - _HEADER <= size - _HEADER:
            raise UnusableFileError("it is damaged")
        # Not in the heap, where what is let go of stays with the process.
        image = mmap(-1, max(image_length, 1))
        file.readinto(image)
        file.seek(begin)
        rest = file.read()
        proved = hashlib.sha256(image)
        proved.update(rest)
        if proved.hexdigest() != sha256:
            raise UnusableFileError("it is damaged")
        return image, rest.splitlines(), begin

    def _header(self, image: int, rest: int, length: int, sha256: str) -> bytes:
        return _filled(
            {"format": _FORMAT, "code": _code(), "roots": self._roots, "image": image, "rest": rest, "length": length}
            | {"sha256": sha256}
        )


def _filled(header: dict[str, Any]) -> bytes:
    return json.dumps(header).encode("ascii").ljust(_HEADER - 1) + b"\n"


def _code() -> str:
    """What changes when the same skill may have other words, or SQLite another image."""
    import sqlite3

    code = f"{code_mark(*SHAPES_A_READING)} {code_mark(*_SHAPES_A_ROW)}"
    return f"{code} {unicodedata.unidata_version} {sqlite3.sqlite_version}"


def _record(skill: Skill) -> bytes:
    return json.dumps(texts_of(skill), separators=(",", ":")).encode("ascii")


def _texts(record: bytes, checksum: int) -> Texts:
    """The texts of a row.

    Raises:
        ValueError: it is not what was written.
    """
    texts: list[str] = json.loads(record)
    if crc32(record) != checksum or len(texts) != _TEXTS:
        raise ValueError
    return tuple(texts)
