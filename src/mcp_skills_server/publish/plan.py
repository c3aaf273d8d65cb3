"""Plan of a run of `publish`: what to write and delete, and the record of the files that are ours.

The record lies beside the tree and is as public as the tree is: the same skills give the same
bytes. It proves what is ours by digest, so a false one deletes no foreign file.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.publish.artifacts import Item
from mcp_skills_server.publish.folder import OutputFolder, parent_folders

RECORD: Final = ".mcp-skills-server.json"
JOURNAL: Final = ".mcp-skills-server.next"
_FORMAT: Final = 2
_LINES: Final = (",\n", ": ")
"""A line for each file, for people who compare records."""
HEADERS: Final = "_headers"
PLACES: Final = (DIRECTORY[1:], DIRECTORY_0_1[1:])
"""The folders in which every file of ours lies, but for the headers."""
INDEXES: Final = frozenset(place + INDEX for place in PLACES)
_ARTIFACT: Final = re.compile(re.escape(DIRECTORY[1:]) + r"[^/]+/[0-9a-f]{64}/[^/]+")


@dataclass(frozen=True, slots=True)
class OutdatedFile:
    """One file that is not as it would be published: "missing", "different" or "left over"."""

    path: str
    state: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.state}")


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """The record file beside the published tree.

    Attributes:
        files: sha256 in hex of every file that this program wrote, by its path in the folder.
        retired: artifacts that the index no longer names, with the time (seconds of the epoch) when
            that was noticed.
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


@dataclass(slots=True)
class PublishPlan:
    """The changes that publish will make.

    Attributes:
        differences: all that is not as it should be.
        put: files to write, the indexes last.
        stale: files of ours to delete once no index names them.
        early: the same, where a folder must be in the place of a file, or a file in that of a
            folder.
        record: what to write down afterwards.
    """

    differences: list[OutdatedFile] = field(default_factory=list["OutdatedFile"])
    put: list[Item] = field(default_factory=list[Item])
    stale: list[str] = field(default_factory=list[str])
    early: list[str] = field(default_factory=list[str])
    record: PublishRecord = field(default_factory=PublishRecord)


def make_plan(
    folder: OutputFolder,
    expected: Iterable[Item],
    claims: Mapping[str, set[str]],
    kept: PublishRecord,
    *,
    now: int,
    keep_s: float,
) -> PublishPlan:
    """Compare file by file what should be in a folder with what is, there and where these claims
    name it.

    Nothing is changed yet, so that whatever is refused is refused in time.

    Args:
        folder: it learns which paths change between file and folder.
        expected: what should be there.
        claims: by path, the digests that a file of ours can have.
        kept: the record that lies there.
        now: seconds of the epoch.
        keep_s: how long an artifact stays that no index names.

    Raises:
        UsageError: something is in the way that is not ours.
    """
    plan = PublishPlan()
    items = {item.path.lstrip("/"): item for item in expected}
    ours = {path: hex_of(item.digest) for path, item in items.items()}
    gone = {path: folder.digest_of_ours(path) for path in claims.keys() - ours.keys()}
    # all else is not ours any more
    proved = {path for path, found in gone.items() if found in claims[path]}
    plan.early, folder.replaced = _in_the_way(proved, ours)
    for path, item in items.items():
        digest, found = ours[path], folder.digest(path)
        if found == digest:
            continue
        # A file of ours that was changed is set right in our own folders, and nowhere else.
        if found is not None and (
            path not in claims or (path == HEADERS and found not in claims[path])
        ):
            raise UsageError(
                f"{folder.shown}: {printable(path)} is not of this program's making; move it away"
            )
        plan.differences.append(OutdatedFile(path, "missing" if found is None else "different"))
        plan.put.append(item)
    retired: dict[str, int] = {}
    for path in proved:
        # a time to come is from a clock that was ahead
        since = min(now, kept.retired.get(path, now))
        if _ARTIFACT.fullmatch(path) and now - since < keep_s:
            retired[path] = since
            continue
        plan.stale.append(path)
        if not _ARTIFACT.fullmatch(path):
            plan.differences.append(OutdatedFile(path, "left over"))
    plan.stale += [path for path, found in gone.items() if found is None]  # its folder may be left
    plan.put.sort(key=lambda item: item.path.lstrip("/") in INDEXES)
    plan.record = PublishRecord(
        {**ours, **{path: folder.digest(path) or "" for path in retired}}, retired
    )
    return plan


def is_place(path: str) -> bool:
    """Tell whether this program could have written a file there, whatever a record says."""
    if not path.startswith(PLACES):
        return path == HEADERS
    # as good as all: no need to take it apart
    if "/." not in path and "//" not in path and path[-1] != "/":
        return True
    return not {"", ".", ".."} & {*path.split("/")}


def _in_the_way(gone: set[str], ours: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Return the files of `gone` that must go before those of `ours` can be put, and the paths that
    change between file and folder.
    """
    if not gone:
        return [], frozenset()
    files = frozenset(ours)
    ordered = sorted(files)
    early: list[str] = []
    changed: set[str] = set()
    for path in gone:
        found = files.intersection(parent_folders(path))
        position = bisect_left(ordered, f"{path}/")
        if position < len(ordered) and ordered[position].startswith(f"{path}/"):
            found |= {path}
        changed |= found
        if found:
            early.append(path)
    return early, frozenset(changed)


def hex_of(digest: str) -> str:
    """Return the 64 hex digits of a digest."""
    return digest.removeprefix("sha256:")


def decode_record(raw: bytes | None) -> PublishRecord:
    """Decode these bytes, None for no record, or raise ValueError."""
    files, retired = _decode(raw, "files", "retired")
    try:
        return PublishRecord(
            {str(path): str(digest) for path, digest in files.items()},
            {str(path): int(since) for path, since in retired.items()},
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(error) from None


def encode_journal(files: Mapping[str, Iterable[str]]) -> bytes:
    """Encode the digests that a run is about to write, by path, so that the next run knows them
    after a crash."""
    fields = {
        "format": _FORMAT,
        "files": {path: sorted(digests) for path, digests in sorted(files.items())},
    }
    return json.dumps(fields, ensure_ascii=False, separators=_LINES).encode() + b"\n"


def decode_journal(raw: bytes | None) -> dict[str, set[str]]:
    """Decode these bytes, None for no journal, or raise ValueError."""
    (files,) = _decode(raw, "files")
    try:
        return {str(path): set(map(str, digests)) for path, digests in files.items()}
    except TypeError as error:
        raise ValueError(error) from None


def _decode(raw: bytes | None, *names: str) -> list[dict[str, Any]]:
    """Return the objects of these names, empty ones where there are no bytes."""
    if raw is None:
        return [{} for _ in names]
    try:
        fields: Any = json.loads(raw)
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(fields, dict):
        raise ValueError
    found = cast("dict[str, Any]", fields)
    if found.get("format") != _FORMAT or not all(
        isinstance(found.get(name), dict) for name in names
    ):
        raise ValueError
    return [found[name] for name in names]
