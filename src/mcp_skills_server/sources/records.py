"""Records of a folder of fetched skills: where each skill came from, each index, and the history of each index.

They lie as JSON below `.mcp-skills/` in the folder. A record that cannot be understood counts as absent. Reading needs
no lock; only `folder` writes.

The history detects a rollback. An impostor of a site, or a replica that was left behind, can repeat what the site said
once, with all digests right.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from mcp_skills_server.catalog.fetched import RECORDS
from mcp_skills_server.format.archive import check_paths
from mcp_skills_server.format.ignored import OURS
from mcp_skills_server.sources.caching import LONGEST_S
from mcp_skills_server.sources.source import RollbackError

INDEXES: Final = f"{OURS}/sources"
"""The directory of index records in a folder of fetched skills."""

HISTORIES: Final = f"{OURS}/history"
"""The directory of index histories in a folder of fetched skills."""
MOST_INDEXES: Final = 1000
"""So many indexes are remembered of each place, the newest."""
_HISTORY_BYTES: Final = MOST_INDEXES * 80
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SkillRecord:
    """The origin of a skill in the folder.

    Attributes:
        name: the place of the skill below the folder.
        source: the key of the source: of a site `wellknown.candidates(url)[0]`, of any other its origin.
        url: the place of the skill at the source.
        digest: the fingerprint of what the skill was made of; "" where the source has none.
        fetched_at: seconds of the epoch.
        files: sha256 in hex by path in the skill.
        former: the same of the files that they replace, None where there are none.
        stats: stat signatures of the files as they were written, by path; empty where they prove nothing.
    """

    name: str
    source: str
    url: str
    digest: str
    fetched_at: float
    files: Mapping[str, str]
    former: Mapping[str, str] | None = None
    stats: Mapping[str, list[int]] = field(default_factory=dict[str, list[int]])

    def encode(self) -> bytes:
        """Encode the record for its file."""
        return _encoded(self)


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """The part of a unit (`reconcile.Unit`) that cannot be seen in the skills that it brought.

    Attributes:
        names: the skills that it brought.
        refused: why others of it are not taken, by name.
        warnings: what the operator should hear of it, one line each.
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
        validators: headers to ask with whether it changed.
        asked_at: seconds of the epoch at which it was asked for.
        fresh_s: for how many seconds from then it may be used unasked.
        wanted: names that the operator asked for, None for all.
        revision: the revision of which all is there that is taken, "" where that is not so.
        refused: why skills of that revision are not taken, by name.
        warnings: what the operator should hear of that revision, one line each.
        units: by fingerprint, those of which more is known than the records of skills tell.
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

    @property
    def raw(self) -> bytes:
        """The very bytes of the index as they came."""
        return self.body.encode("utf-8", "surrogateescape")

    def encode(self) -> bytes:
        """Encode the record for its file."""
        return _encoded(self)

    def left_s(self, now: float) -> float:
        """Return for how many seconds from `now` (of the epoch) the index stays fresh; 0 if it is stale.

        A time that is still to come was written by a clock that was ahead, or this one is behind: no promise holds.
        """
        since = now - self.asked_at
        return max(0.0, min(self.fresh_s, LONGEST_S) - since) if since >= 0 else 0.0  # in this order NaN is 0


def read_record(directory: str | os.PathLike[str], name: str) -> SkillRecord | None:
    """Read the record of one skill in a folder, or return None. Needs no lock."""
    return _read(os.path.join(directory, RECORDS), f"{record_key(name)}.json", _record_from)


def read_records(directory: str | os.PathLike[str]) -> list[SkillRecord]:
    """Return the records of a folder by name. Needs no lock."""
    return sorted(_all(os.path.join(directory, RECORDS), _record_from), key=lambda record: record.name)


def read_index(directory: str | os.PathLike[str], key: str) -> IndexRecord | None:
    """Read the record of the index with this key, or return None. Needs no lock."""
    return _read(os.path.join(directory, INDEXES), index_file_name(key), _index_from)


def read_indexes(directory: str | os.PathLike[str]) -> list[IndexRecord]:
    """Read the records of all indexes that a folder was fetched from. Needs no lock."""
    return _all(os.path.join(directory, INDEXES), _index_from)


def record_key(name: str) -> str:
    """Return the name, without its ending, of the file with the record of a skill; the stage uses it too."""
    if "/" not in name:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _all(folder: str, make: Callable[[dict[str, Any], str], _T]) -> list[_T]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    return [found for name in names if (found := _read(folder, name, make)) is not None]


def _read(folder: str, name: str, make: Callable[[dict[str, Any], str], _T]) -> _T | None:
    """Read a file of ours, or return None if it is missing or cannot be understood."""
    try:
        with open(f"{folder}/{name}", "rb", buffering=0) as file:
            return make(json.loads(file.read()), name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # ArchiveRefusedError is a ValueError
        return None


def _encoded(record: SkillRecord | IndexRecord) -> bytes:
    return json.dumps({"version": 1, **_values(record)}, default=_values).encode()


def _values(record: SkillRecord | IndexRecord | UnitRecord) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _record_from(data: dict[str, Any], file: str) -> SkillRecord:
    former = data["former"]
    record = SkillRecord(
        **{key: str(data[key]) for key in ("name", "source", "url", "digest")},
        fetched_at=float(data["fetched_at"]),
        files=dict(data["files"]),
        former=None if former is None else dict(former),
        stats=dict(data.get("stats", {})),
    )
    # A folder may come from elsewhere with its records, and what these name is moved and removed.
    if file != f"{record_key(record.name)}.json":
        raise ValueError(file)
    check_paths([record.name])
    for paths in (record.files, record.former or {}):
        check_paths(paths)
    return record


def _index_from(data: dict[str, Any], _: str) -> IndexRecord:
    wanted = data["wanted"]
    return IndexRecord(
        **{key: str(data[key]) for key in ("source", "given", "asked", "url", "body")},
        validators=dict(data["validators"]),
        asked_at=float(data["asked_at"]),
        fresh_s=float(data["fresh_s"]),
        wanted=None if wanted is None else tuple(map(str, wanted)),
        revision=str(data.get("revision", "")),
        refused=dict(data.get("refused", {})),
        warnings=tuple(map(str, data.get("warnings", ()))),
        units={key: _unit_from(each) for key, each in data.get("units", {}).items()},
    )


def _unit_from(data: dict[str, Any]) -> UnitRecord:
    names, warnings, pointers = (tuple(map(str, data[key])) for key in ("names", "warnings", "pointers"))
    return UnitRecord(names, dict(data["refused"]), warnings, pointers)


def read_history(directory: str | os.PathLike[str], place: str) -> Sequence[str] | None:
    """Read which indexes there were at a place; return None if the file with them cannot be understood.

    Args:
        directory: a folder of fetched skills.
        place: where the index was asked for. A site may have one of each version, and one of them be away for a while.

    Returns:
        The sha256 in hex of each, in the order in which they were first seen; the last is the one that is there.
    """
    try:
        with open(os.path.join(directory, HISTORIES, index_file_name(place)), "rb") as file:
            data: Any = json.loads(file.read(_HISTORY_BYTES))
        digests = cast("list[str]", list(data["digests"]))
        if data["version"] != 1 or not all(map(_SHA256.fullmatch, digests)):
            return None
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return digests[-MOST_INDEXES:]


def enter_index(
    directory: str | os.PathLike[str],
    index: IndexRecord,
    write: Callable[[Path, bytes], object],
    *,
    allow_rollback: bool,
) -> Sequence[str]:
    """Remember that this index was there. That comes before anything is brought of it: a process that is killed then
    has not forgotten what it serves.

    Args:
        directory: a folder of fetched skills.
        index: as it came.
        write: replaces a file whole, for its owner alone to read.
        allow_rollback: whether it may be one that was there before.

    Returns:
        What the operator should hear, one line each.

    Raises:
        RollbackError: it was there before, and another one since.
    """
    warnings: list[str] = []
    digest, known = hashlib.sha256(index.raw).hexdigest(), read_history(directory, index.asked)
    if known is None:
        warnings.append("which indexes it had before cannot be read; an older one is not noticed this time")
        known = ()
    if digest in known[:-1] and not allow_rollback:
        raise RollbackError("it went back to an index that it had before; --allow-rollback takes it")
    if digest not in known[-1:]:
        digests = [*(each for each in known if each != digest), digest][-MOST_INDEXES:]
        try:
            path = Path(directory, HISTORIES, index_file_name(index.asked))
            write(path, json.dumps({"version": 1, "digests": digests}).encode())
        except OSError as error:
            reason = error.strerror or error
            warnings.append(f"its index cannot be remembered ({reason}); that it comes back one day is not noticed")
    return warnings


def wanted_since(known: IndexRecord | None, wanted: frozenset[str] | None) -> tuple[str, ...] | None:
    """Return the names that an update is to bring: all that were ever asked for, or None for all."""
    if wanted is None:
        return None
    if known is None:
        return tuple(sorted(wanted))
    if known.wanted is None:
        return None
    return tuple(sorted(wanted.union(known.wanted)))


def index_file_name(key: str) -> str:
    """Return the file name for the index with this key."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def epoch_s() -> float:
    """Return the time in whole seconds since the epoch."""
    return float(int(time.time()))
