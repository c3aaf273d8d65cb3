"""Plan of a `publish` run: the files to write and delete, and the record of published files.

The record lies beside the tree, is as public, and is reproducible. It proves by digest which files
are ours, so a forged record deletes no foreign file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.publish.artifacts import Item
from mcp_skills_server.publish.folder import OutputFolder, parent_folders

RECORD: Final = ".mcp-skills-server.json"
_FORMAT: Final = 2
_SEPARATORS: Final = (",\n", ": ")
"""One line for each file, for readable diffs of records."""
HEADERS: Final = "_headers"
OUTPUT_FOLDERS: Final = (DIRECTORY[1:], DIRECTORY_0_1[1:])
"""Folders of all published files except the headers."""
INDEXES: Final = frozenset(folder + INDEX for folder in OUTPUT_FOLDERS)
_ARTIFACT: Final = re.compile(re.escape(DIRECTORY[1:]) + r"[^/]+/[0-9a-f]{64}/[^/]+")


@dataclass(frozen=True, slots=True)
class OutdatedFile:
    """A file whose state differs from the publication: "missing", "different" or "left over"."""

    path: str
    state: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.state}")


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """Record of a published tree, stored beside it."""

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """sha256 in hex of every file that this program wrote, by its path in the folder."""
    retired: Mapping[str, int] = field(default_factory=dict[str, int])
    """Artifacts that the index no longer names, with the epoch seconds when that was noticed."""
    begun: Mapping[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Digests that a run may write, by path: a write-ahead log, empty once the run has ended."""

    def encode(self) -> bytes:
        """Encode the record; equal records give equal bytes."""
        retired, files = dict(sorted(self.retired.items())), dict(sorted(self.files.items()))
        written: dict[str, Any] = {"format": _FORMAT, "retired": retired, "files": files}
        if self.begun:
            written["begun"] = {path: sorted(self.begun[path]) for path in sorted(self.begun)}
        return json.dumps(written, ensure_ascii=False, separators=_SEPARATORS).encode() + b"\n"


@dataclass(slots=True)
class PublishPlan:
    """The changes that a publish run will make."""

    differences: list[OutdatedFile] = field(default_factory=list["OutdatedFile"])
    """All files that are outdated, by path."""
    put: list[Item] = field(default_factory=list[Item])
    """Files to write, the indexes last."""
    stale: list[str] = field(default_factory=list[str])
    """Our files to delete once no index names them."""
    early: list[str] = field(default_factory=list[str])
    """Our files to delete first, because a folder replaces a file, or a file a folder."""
    record: PublishRecord = field(default_factory=PublishRecord)
    """The record to write afterwards."""

    def write(self, item: Item, path: str, *, is_missing: bool) -> None:
        """Plan to write a file."""
        self.differences.append(OutdatedFile(path, "missing" if is_missing else "different"))
        self.put.append(item)

    def drop(self, path: str) -> None:
        """Plan to delete a file of ours; an artifact that no index names is no difference."""
        self.stale.append(path)
        if not _ARTIFACT.fullmatch(path):
            self.differences.append(OutdatedFile(path, "left over"))


def make_plan(
    folder: OutputFolder,
    expected: Iterable[Item],
    claims: Mapping[str, set[str]],
    kept: PublishRecord,
    *,
    now: int,
    keep_s: float,
) -> PublishPlan:
    """Compare the expected files of a folder with its current ones, and with the claimed ones.

    Nothing is written, so a conflict raises before any change.

    Args:
        folder: its `replaced` is set here, because its `digest` and its writes depend on it.
        claims: by path, the digests that a file of ours can have.
        now: seconds since the epoch.
        keep_s: retention of an artifact that no index names.

    Raises:
        UsageError: a foreign file is in the way.
    """
    plan, folder.replaced = PublishPlan(), frozenset()
    items = {item.path.lstrip("/"): item for item in expected}
    ours = {path: hex_of(item.digest) for path, item in items.items()}
    dropped = {path: folder.digest_of_ours(path) for path in claims.keys() - ours.keys()}
    # any other file is not ours (any more)
    proved = {path for path, digest in dropped.items() if digest in claims[path]}
    plan.early, folder.replaced = _in_the_way(proved, ours)
    for path, item in items.items():
        digest, on_disk = ours[path], folder.digest(path)
        if on_disk == digest:
            continue
        if on_disk is not None:
            _check_ours(folder, path, on_disk, claims)
        plan.write(item, path, is_missing=on_disk is None)
    retired: dict[str, int] = {}
    for path in proved:
        # a future time comes from a clock that was ahead
        since = min(now, kept.retired.get(path, now))
        if _ARTIFACT.fullmatch(path) and now - since < keep_s:
            retired[path] = since
        else:
            plan.drop(path)
    # deleting a file that is gone already removes its empty folders
    plan.stale += [path for path, digest in dropped.items() if digest is None]
    plan.put.sort(key=lambda item: item.path.lstrip("/") in INDEXES)
    plan.differences.sort(key=lambda difference: difference.path)
    kept_files = {path: dropped[path] or "" for path in retired}
    plan.record = PublishRecord(ours | kept_files, retired)
    return plan


def _check_ours(
    folder: OutputFolder, path: str, digest: str, claims: Mapping[str, set[str]]
) -> None:
    """Refuse to overwrite a foreign file. One of ours may be modified, in our own folders only."""
    if path not in claims or (path == HEADERS and digest not in claims[path]):
        fault = f"{printable(path)} was not written by this program; move it away"
        raise UsageError(f"{folder.shown}: {fault}")


def is_output_path(path: str) -> bool:
    """Tell whether this program writes files at such a path; a record is not trusted for that."""
    if not path.startswith(OUTPUT_FOLDERS):
        return path == HEADERS
    return not {"", ".", ".."} & {*path.split("/")}


def _in_the_way(proved: set[str], ours: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Return the files to delete before `ours` can be put, and the paths that change kind.

    `proved` are our files that are not expected any more.
    """
    files = frozenset(ours)
    folders = {folder for path in files for folder in parent_folders(path)}
    early: list[str] = []
    changed: set[str] = set()
    for path in proved:
        blocked = files.intersection(parent_folders(path))  # a file is to be where a folder is
        if path in folders:
            blocked |= {path}
        changed |= blocked
        if blocked:
            early.append(path)
    return early, frozenset(changed)


def hex_of(digest: str) -> str:
    """Return the 64 hex digits of a digest."""
    return digest.removeprefix("sha256:")


def decode_record(raw: bytes | None) -> PublishRecord:
    """Decode a record, empty for None, or raise ValueError."""
    if raw is None:
        return PublishRecord()
    try:
        fields: Any = load_json(raw)
        if fields["format"] != _FORMAT:
            raise ValueError
        return PublishRecord(
            {str(path): str(digest) for path, digest in fields["files"].items()},
            {str(path): int(since) for path, since in fields["retired"].items()},
            {str(path): {*map(str, digests)} for path, digests in fields.get("begun", {}).items()},
        )
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(error) from None
