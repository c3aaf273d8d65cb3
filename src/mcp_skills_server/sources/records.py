"""Records of fetched skills: the provenance of each skill, and the last state of each source.

They are JSON files below `.mcp-skills/` in the folder. An unreadable record counts as absent.
Reading needs no lock; only `folder` writes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from mcp_skills_server.catalog.fetched import RECORDS
from mcp_skills_server.format.archive import check_paths
from mcp_skills_server.format.ignored import STATE_DIR
from mcp_skills_server.model.decoding import load_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

INDEXES: Final = f"{STATE_DIR}/sources"
"""Directory of index records in a folder of fetched skills."""


@dataclass(frozen=True, slots=True)
class SkillRecord:
    """Provenance of a fetched skill. `files` and `former` have sha256 in hex by path."""

    name: str
    source: str  # `Source.key`
    url: str  # location of the skill at the source
    digest: str  # fingerprint of the published skill; "" if the source has none
    files: Mapping[str, str]
    former: Mapping[str, str] | None = None  # `files` of the version that this one replaces
    stats: Mapping[str, str] = field(default_factory=dict[str, str])
    """`disk.signature` of each written file; empty if signatures prove nothing."""


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """Results of a `source.Unit` besides skills; the fields are those of `UnitContents`."""

    names: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()


class Extent(NamedTuple):
    """Files and bytes of skills on disk, and the last change of any of them (`st_ctime`)."""

    files: int = 0
    bytes: int = 0
    changed_ns: int = 0

    def covers(self, extent: Extent | None) -> bool:
        """Tell whether files found now have this extent, and no later change."""
        return extent is not None and extent[:2] == self[:2] and extent[2] <= self[2]


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """Last state of a site's index, or of another source."""

    source: str  # `Source.key`
    given: str  # the URL as the operator gave it
    asked: str = ""  # the candidate that answered; of git the full name of a branch or tag
    url: str = ""  # the address that answered, after redirects; "" if the source has no index
    body: str = ""  # the index, "" if its publisher forbids storing it; of git the commit
    validators: Mapping[str, str] = field(default_factory=dict[str, str])
    asked_at: float = 0.0  # time of the last request, in seconds since the epoch
    fresh_s: float = 0.0  # seconds of freshness from then on
    wanted: tuple[str, ...] | None = None
    revision: str = ""  # the revision whose acceptable skills are all present, or ""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """The reason for each refused skill of that revision, by name."""
    skills: int = 0  # the number of its skill records; one that is lost shows
    extent: Extent = field(default_factory=Extent)
    """That of all skills when they last were complete; no files before that."""
    warnings: tuple[str, ...] = ()
    units: Mapping[str, UnitRecord] = field(default_factory=dict[str, UnitRecord])
    """By fingerprint, the units whose state the skill records do not show."""
    history: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """sha256 in hex of the indexes by `asked`, in the order of their first appearance."""

    @property
    def raw(self) -> bytes:
        """The bytes of the index as received."""
        return self.body.encode("utf-8", "surrogateescape")


_Record: TypeAlias = SkillRecord | IndexRecord
_T = TypeVar("_T", bound=_Record)


def encode(record: _Record) -> bytes:
    """Encode a record as JSON."""
    return json.dumps({"version": 1, **asdict(record)}).encode()


def read_record(directory: str | os.PathLike[str], name: str) -> SkillRecord | None:
    """Read the record of one skill in a folder, or return None."""
    return _read(os.path.join(directory, RECORDS), f"{record_key(name)}.json", SkillRecord)


def read_records(
    directory: str | os.PathLike[str], names: Iterable[str] | None = None
) -> list[SkillRecord]:
    """Return the records of a folder, or of these skills, sorted by name, also of deleted ones."""
    files = None if names is None else [f"{record_key(name)}.json" for name in names]
    records = _all(os.path.join(directory, RECORDS), SkillRecord, files)
    return sorted(records, key=lambda record: record.name)


def read_index(directory: str | os.PathLike[str], key: str) -> IndexRecord | None:
    """Read the record of the index with this key, or return None."""
    return _read(os.path.join(directory, INDEXES), index_file_name(key), IndexRecord)


def read_indexes(directory: str | os.PathLike[str]) -> list[IndexRecord]:
    """Read the records of all indexes that a folder was fetched from."""
    return _all(os.path.join(directory, INDEXES), IndexRecord)


def record_key(name: str) -> str:
    """Return the stem of the file name of a skill's record, also used by the stage."""
    if "/" not in name:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def index_file_name(key: str) -> str:
    """Return the file name for the index with this key."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _all(folder: str, kind: type[_T], names: Sequence[str] | None = None) -> list[_T]:
    try:
        if names is None:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    return [record for name in names if (record := _read(folder, name, kind)) is not None]


def _read(folder: str, name: str, kind: type[_T]) -> _T | None:
    """Read a record file, or return None if it is missing or malformed."""
    try:
        with open(f"{folder}/{name}", "rb", buffering=0) as file:
            record: _T = _adapter(kind).validate_python(load_json(file.read()))
        # Untrusted: the folder may be a foreign copy, and paths in records are moved and removed.
        if isinstance(record, SkillRecord):
            if name != f"{record_key(record.name)}.json":
                return None
            for paths in ([record.name], record.files, record.former or {}):
                check_paths(paths)
    except (OSError, ValueError):
        return None  # the errors of pydantic and of `check_paths` are ValueErrors
    return record


@cache
def _adapter(kind: type[_Record]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # imported on first use: a server of local folders needs none

    return TypeAdapter(kind)
