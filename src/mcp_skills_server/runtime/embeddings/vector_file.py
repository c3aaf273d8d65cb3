"""The cache of one model's vectors on disk, by the digests of the texts that they were made from.

Records are appended whole and each has a checksum, so two processes may write at once, and a process that dies leaves
at most one record that means nothing. From there on the file is not believed, and it is written anew. It may be deleted
at any time.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final
from zlib import crc32

from mcp_skills_server.catalog.index_folder import IndexFolder, UnusableFileError

logger = logging.getLogger(__name__)

DIGEST: Final = 32
"""Bytes of a text's digest."""
_CHECKSUM: Final = 4
_FORMAT: Final = 1
_APPEND: Final[int] = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_MOST: Final = 1 << 30
"""Bytes of a file that is read."""


class VectorFile:
    """The vectors of one model. For one thread.

    Args:
        folder: where such files lie; it is made when something is written. A folder that cannot be written is none.
        key: of the model.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = IndexFolder(folder)
        self._key = key
        self.path = folder / f"{key[:32]}.vectors"
        self._whole = False
        """Whether the file is there and all of it can be used, so that more may be appended."""

    def load(self) -> dict[bytes, bytes]:
        """The vectors by the digest of their text, as 32 bit floats; what must not be used is passed over."""
        try:
            raw = self._read()
        except FileNotFoundError:
            return {}
        except (OSError, UnusableFileError) as error:
            raw, reason = b"", getattr(error, "strerror", None) or str(error)
        else:
            reason = "it is of another version or damaged"
        head, _, body = raw.partition(b"\n")
        found: dict[bytes, bytes] = {}
        try:
            header: Any = json.loads(head)
            size = DIGEST + 4 * int(header["dimensions"])
            self._whole = header == _header(self._key, int(header["dimensions"])) and size > DIGEST
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            size = 0
        step = size + _CHECKSUM
        for start in range(0, len(body), step) if self._whole else ():
            record = body[start : start + size]
            if body[start + size : start + step] != _checksum(record):
                self._whole = False
                break
            found[record[:DIGEST]] = record[DIGEST:]
        if not self._whole:
            logger.info("%s: the vectors of earlier texts are not all used: %s; it is written anew", self.path, reason)
        return found

    def replace(self, vectors: Mapping[bytes, bytes]) -> None:
        """Keep these and no others."""
        self._whole = False
        self.add(vectors, {})

    def add(self, new: Mapping[bytes, bytes], known: Mapping[bytes, bytes]) -> None:
        """Keep more vectors, all of one size; `known` are those that are written again where the file is not whole."""
        records = _records(new)
        try:
            if self._whole and new:
                with open(os.open(self.path, _APPEND), "ab", buffering=0) as file:
                    file.write(records)
            elif new:
                whole = _records(known) + records
                self._whole = self._write(whole, len(next(iter(new.values()))) // 4)
        except OSError:
            self._whole = False  # the next start makes them again, and that is all

    def _write(self, records: bytes, dimensions: int) -> bool:
        def put(file: BinaryIO) -> bool:
            file.write(json.dumps(_header(self._key, dimensions)).encode("ascii") + b"\n")
            file.write(records)
            return True

        return self._folder.replace(self.path.name, put)

    def _read(self) -> bytes:
        with self._folder.open(self.path.name) as file:
            if os.fstat(file.fileno()).st_size > _MOST:
                raise UnusableFileError("it is too long")
            return file.read()


def _header(key: str, dimensions: int) -> dict[str, Any]:
    return {"format": _FORMAT, "key": key, "dimensions": dimensions}


def _records(vectors: Mapping[bytes, bytes]) -> bytes:
    records = (digest + vector for digest, vector in vectors.items())
    return b"".join(record + _checksum(record) for record in records)


def _checksum(record: bytes) -> bytes:
    return crc32(record).to_bytes(_CHECKSUM, "big")
