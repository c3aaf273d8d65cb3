"""What a worker keeps for the others to read: records in a file, each in a slot of its own, in the folder of all.

One process writes a file and any may read it. Nothing is locked: a record that is read while it is written does not fit
its checksum, and is read again. What is written is no mapped memory, which a full disk would kill its writer for.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast
from zlib import crc32

from mcp_skills_server.errors import REPEATS

logger = logging.getLogger(__name__)

Fields: TypeAlias = Sequence[object]
"""Text, numbers, None, and sequences of these."""

_SLOT: Final = 2048
_HEAD: Final = struct.Struct("!II")
"""The checksum of what follows, and its bytes."""
_SHORT: Final = 40
"""Characters of each text of a record that is too long for a slot."""
_TRIES: Final = 3


class Records:
    """The file of one process.

    Args:
        path: of the file. What was in it is gone.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), 0o600)

    def put(self, slot: int, fields: Fields) -> None:
        """Write a record in place of what was in a slot. Where the disk is full a line of the log says so."""
        raw = _encoded(fields)
        if len(raw) > _SLOT - _HEAD.size:
            raw = _encoded(_shortened(fields))
        try:
            os.pwrite(self._descriptor, _HEAD.pack(crc32(raw), len(raw)) + raw, slot * _SLOT)
        except OSError as error:
            logger.warning("%s: cannot be written (%s); make space there", self._path, error.strerror, extra=REPEATS)


def read_records(path: str) -> Iterator[list[Any]]:
    """The fields of each record of a file; nothing where there is no file."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        for slot in range(-(-os.fstat(file.fileno()).st_size // _SLOT)):
            for _ in range(_TRIES):
                found = _decoded(os.pread(file.fileno(), _SLOT, slot * _SLOT))
                if found is not None:
                    yield found
                    break


def _encoded(fields: Fields) -> bytes:
    # Paths may hold bytes that are no UTF-8.
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _shortened(fields: Fields) -> list[object]:
    return [
        each[:_SHORT] + "…" if isinstance(each, str) and len(each) > _SHORT
        else _shortened(cast("Fields", each)) if isinstance(each, tuple | list)
        else each
        for each in fields
    ]  # fmt: skip


def _decoded(raw: bytes) -> list[Any] | None:
    if len(raw) < _HEAD.size:
        return None
    checksum, size = _HEAD.unpack_from(raw)
    text = raw[_HEAD.size : _HEAD.size + size]
    return json.loads(text) if size and len(text) == size and crc32(text) == checksum else None
