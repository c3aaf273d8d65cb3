"""Record of `publish`: which files of a folder are ours.

The record lies beside the tree and is as public as the tree is: the same skills give the same bytes. It proves what is
ours by digest, so a false one deletes no foreign file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

RECORD: Final = ".mcp-skills-server.json"
JOURNAL: Final = ".mcp-skills-server.next"
_FORMAT: Final = 2
_LINES: Final = (",\n", ": ")
"""A line for each file, for people who compare records."""


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """What the file beside the tree says.

    Attributes:
        files: sha256 in hex of every file that this program wrote, by its path in the folder.
        retired: artifacts that the index no longer names, with the time (seconds since 1970) when that was noticed.
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    retired: Mapping[str, int] = field(default_factory=dict[str, int])

    def encode(self) -> bytes:
        """Encode the record; equal records give equal bytes."""
        fields = {
            "format": _FORMAT,
            "retired": dict(sorted(self.retired.items())),
            "files": dict(sorted(self.files.items())),
        }
        return json.dumps(fields, ensure_ascii=False, separators=_LINES).encode() + b"\n"


def decode_record(raw: bytes) -> PublishRecord:
    """Decode these bytes.

    Raises:
        ValueError: they are no record of this version.
    """
    fields = _decode(raw, ("files", "retired"))
    try:
        return PublishRecord(
            _texts(fields["files"]), {str(path): int(since) for path, since in fields["retired"].items()}
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(error) from None


def encode_journal(files: Mapping[str, Iterable[str]]) -> bytes:
    """Encode the digests that a run is about to write, by path, so that the next run knows them after a crash."""
    fields = {"format": _FORMAT, "files": {path: sorted(digests) for path, digests in sorted(files.items())}}
    return json.dumps(fields, ensure_ascii=False, separators=_LINES).encode() + b"\n"


def decode_journal(raw: bytes) -> dict[str, set[str]]:
    """Decode these bytes.

    Raises:
        ValueError: they are no journal of this version.
    """
    fields = _decode(raw, ("files",))
    try:
        return {str(path): set(map(str, digests)) for path, digests in fields["files"].items()}
    except TypeError as error:
        raise ValueError(error) from None


def _decode(raw: bytes, objects: Iterable[str]) -> dict[str, Any]:
    try:
        fields: Any = json.loads(raw)
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(fields, dict) or cast("dict[str, Any]", fields).get("format") != _FORMAT:
        raise ValueError
    found = cast("dict[str, Any]", fields)
    if not all(isinstance(found.get(name), dict) for name in objects):
        raise ValueError
    return found


def _texts(values: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}
