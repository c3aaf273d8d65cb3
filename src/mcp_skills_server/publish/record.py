"""Record of `publish`: which files of a folder are ours, and what the next run need not read again.

The record lies beside the tree and is as public as the tree is: the same skills give the same bytes. It proves what is
ours by digest, so a false one costs nobody a file. The memory has stat results of this machine, lies in the user's
cache, and may be lost at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server import __version__
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import signature
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import Artifact
from mcp_skills_server.durable import leave_in_cache, why_untrusted
from mcp_skills_server.model import Skill

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


class Memory:
    """Which stat results stand for which digests: of the skills when they were packed, and of the tree's files.

    Args:
        cache: the folder where memories are kept, None for none.
        output: the folder that is published to, with links resolved.
    """

    def __init__(self, cache: Path | None, output: str) -> None:
        name = f"{hashlib.sha256(os.fsencode(output)).hexdigest()[:32]}.json"
        self._place = None if cache is None else cache / name
        self._skills: dict[str, tuple[str, str, list[str]]] = {}
        self._files: dict[str, tuple[str, str]] = {}
        self._marks: dict[Skill, str] = {}
        self._loaded = cache is None

    def _load(self) -> None:
        """Read what was kept, when it is asked for: it is many megabytes."""
        if self._loaded or self._place is None:
            return
        self._loaded = True
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError), self._place.open("rb") as file:
            if not why_untrusted(os.fstat(file.fileno())):
                self._read(file.read())

    def _read(self, raw: bytes) -> None:
        fields = _decode(raw, ("skills", "files"))
        if fields["version"] != __version__:
            return  # another version may pack in another way
        self._skills = {
            path: (str(mark), str(place), _strings(rest)) for path, (mark, place, rest) in fields["skills"].items()
        }
        self._files = {path: (str(digest), str(mark)) for path, (digest, mark) in fields["files"].items()}

    def artifact(self, skill: Skill) -> Artifact | None:
        """Return what this skill was packed to, or None if unknown. Its files get their digests."""
        self._load()
        mark, place, digests = self._skills.get(skill.path, ("", "", []))
        if mark != self._mark(skill) or len(digests) != len(skill.files) or not mark:
            return None
        parts = place.split("/")
        try:
            suffix = parts[5].removeprefix(skill.name) if wellknown.kind(skill) == "archive" else ""
            artifact = wellknown.artifact(skill.name, f"sha256:{parts[4]}", suffix)
        except LookupError:  # a place of another shape, or an ending that no archive has
            return None
        if artifact.path != place:
            return None
        for file, digest in zip(skill.files.values(), digests, strict=True):
            file.digest = file.digest or digest
        return artifact

    def digest(self, path: str, mark: str) -> str | None:
        """Return the digest in hex of a file of the tree with this stat signature, or None if unknown."""
        self._load()
        digest, known = self._files.get(path, ("", ""))
        return digest if known == mark and digest else None

    def put(self, skills: Iterable[tuple[Skill, Artifact]], files: Mapping[str, tuple[str, str]]) -> None:
        """Remember this and nothing else. A cache that cannot be written is none."""
        if self._place is None:
            return
        self._load()
        known: dict[str, tuple[str, str, list[str]]] = {}
        for skill, artifact in skills:
            digests = [file.digest or "" for file in skill.files.values()]
            if (mark := self._mark(skill)) and all(digests):
                known[skill.path] = (mark, artifact.path, digests)
        if (known, files) == (self._skills, self._files):
            return
        self._skills, self._files = known, dict(files)
        fields = {
            "format": _FORMAT,
            "version": __version__,
            "skills": known,
            "files": files,
        }
        raw = json.dumps(fields, separators=(",", ":")).encode()
        leave_in_cache(self._place, raw)

    def _mark(self, skill: Skill) -> str:
        if skill not in self._marks:
            self._marks[skill] = _mark_of(skill)
        return self._marks[skill]


def settled(path: str) -> str | None:
    """Return the stat signature of a regular file if it proves the bytes, else None."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return signature(found) if is_settled(found) else None


def is_settled(found: os.stat_result) -> bool:
    """Tell whether a file was old enough at this stat result, of this moment, for a later write to leave another
    one.
    """
    return disk.is_settled(found, time.time_ns())


def _mark_of(skill: Skill) -> str:
    """Return a signature over the files of a skill, or "" while one is too young to prove its bytes."""
    if not all(file.mtime_reliable and file.signature for file in skill.files.values()):
        return ""
    marks = [(path, file.signature, file.executable) for path, file in skill.files.items()]
    return hashlib.sha256(repr((skill.name, marks)).encode("utf-8", "surrogateescape")).hexdigest()


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


def _strings(values: Iterable[Any]) -> list[str]:
    return [str(each) for each in values]
