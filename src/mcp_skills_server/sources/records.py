"""Records of a folder of fetched skills: where each skill came from, and the last state of each
source.

They lie as JSON below `.mcp-skills/` in the folder. A record that cannot be understood counts as
absent. Reading needs no lock; only `folder` writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from mcp_skills_server.catalog.fetched import RECORDS
from mcp_skills_server.format.archive import check_paths
from mcp_skills_server.format.ignored import OURS

INDEXES: Final = f"{OURS}/sources"
"""The directory of index records in a folder of fetched skills."""


@dataclass(frozen=True, slots=True)
class SkillRecord:
    """The origin of a skill in the folder.

    Attributes:
        source: the key of the source: of a site `wellknown.candidates(url)[0]`, of any other its
            origin.
        url: the place of the skill at the source.
        digest: the fingerprint of what the skill was made of; "" where the source has none.
        files: sha256 in hex by path in the skill.
        former: the same of the files that they replace, None where there are none.
        stats: `disk.signature` of each file as it was written; empty where they prove nothing.
    """

    name: str
    source: str
    url: str
    digest: str
    files: Mapping[str, str]
    former: Mapping[str, str] | None = None
    stats: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """The part of a unit (`reconcile.Unit`) that cannot be seen in the skills that it brought.

    Attributes:
        pointers: its files that are Git LFS pointers, from the folder of all skills.
    """

    names: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """The last state of an index, or of another source.

    Attributes:
        source: its key: the first of `wellknown.candidates`.
        given: the URL as the operator gave it.
        asked: the candidate that answered; the full name of a branch or tag.
        url: the address that answered, after redirects; "" where the source has no index.
        body: the index, "" where its publisher does not want it kept; of git the commit.
        asked_at: seconds of the epoch of the last request.
        fresh_s: for how many seconds from then it may be used unasked.
        revision: the revision of which everything acceptable is there, or "".
        refused: why skills of that revision are refused, by name.
        units: by fingerprint, those of which more is known than the records of skills tell.
        history: sha256 in hex of the indexes by place (`asked`), in the order in which they were
            first seen.
    """

    source: str
    given: str
    asked: str = ""
    url: str = ""
    body: str = ""
    validators: Mapping[str, str] = field(default_factory=dict[str, str])
    asked_at: float = 0.0
    fresh_s: float = 0.0
    wanted: tuple[str, ...] | None = None
    revision: str = ""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    units: Mapping[str, UnitRecord] = field(default_factory=dict[str, UnitRecord])
    history: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def raw(self) -> bytes:
        """The very bytes of the index as they came."""
        return self.body.encode("utf-8", "surrogateescape")


_Record: TypeAlias = SkillRecord | IndexRecord | UnitRecord
_T = TypeVar("_T", bound=_Record)


def encode(record: _Record) -> bytes:
    """Encode a record for its file."""
    return json.dumps({"version": 1, **asdict(record)}).encode()


def read_record(directory: str | os.PathLike[str], name: str) -> SkillRecord | None:
    """Read the record of one skill in a folder, or return None."""
    return _read(os.path.join(directory, RECORDS), f"{record_key(name)}.json", SkillRecord)


def read_records(directory: str | os.PathLike[str]) -> list[SkillRecord]:
    """Return the records of a folder by name. Deleted skills may have one."""
    return sorted(
        _all(os.path.join(directory, RECORDS), SkillRecord), key=lambda record: record.name
    )


def read_index(directory: str | os.PathLike[str], key: str) -> IndexRecord | None:
    """Read the record of the index with this key, or return None."""
    return _read(os.path.join(directory, INDEXES), index_file_name(key), IndexRecord)


def read_indexes(directory: str | os.PathLike[str]) -> list[IndexRecord]:
    """Read the records of all indexes that a folder was fetched from."""
    return _all(os.path.join(directory, INDEXES), IndexRecord)


def record_key(name: str) -> str:
    """Return the name, without ending, of the file of a skill's record; the stage uses it."""
    if "/" not in name:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def index_file_name(key: str) -> str:
    """Return the file name for the index with this key."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def epoch_s() -> float:
    """Return the time in whole seconds since the epoch."""
    return float(int(time.time()))


def wanted_since(known: IndexRecord, wanted: frozenset[str] | None) -> tuple[str, ...] | None:
    """Return the names that an update brings: all that were ever asked for, or None for all."""
    if wanted is None or known.wanted is None:
        return None
    return tuple(sorted(wanted.union(known.wanted)))


def _all(folder: str, kind: type[_T]) -> list[_T]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    return [found for name in names if (found := _read(folder, name, kind)) is not None]


def _read(folder: str, name: str, kind: type[_T]) -> _T | None:
    """Read a file of ours, or return None if it is missing or cannot be understood."""
    try:
        with open(f"{folder}/{name}", "rb", buffering=0) as file:
            record = _decoded(kind, json.loads(file.read()))
        # A folder may come from elsewhere with its records, and what these name is moved and
        # removed.
        if isinstance(record, SkillRecord):
            if name != f"{record_key(record.name)}.json":
                return None
            for paths in ([record.name], record.files, record.former or {}):
                check_paths(paths)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # ArchiveRefusedError is a ValueError
    return record


def _decoded(kind: type[_T], data: dict[str, Any]) -> _T:
    """Make a record of its fields, decoded by type; a field without default must be there."""
    there = [each for each in fields(kind) if each.name in data]
    return kind(**{each.name: _DECODERS[str(each.type)](data[each.name]) for each in there})


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(map(str, found))


def _by_name(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: {name: decode(each) for name, each in found.items()}


def _optional(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: None if found is None else decode(found)


_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str": str,
    "float": float,
    "tuple[str, ...]": _texts,
    "tuple[str, ...] | None": _optional(_texts),
    "Mapping[str, str]": _by_name(str),
    "Mapping[str, str] | None": _optional(_by_name(str)),
    "Mapping[str, tuple[str, ...]]": _by_name(_texts),
    "Mapping[str, UnitRecord]": _by_name(partial(_decoded, UnitRecord)),
}
"""By the annotation of a field."""
