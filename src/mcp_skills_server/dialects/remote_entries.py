"""Strict parsing of other servers' `skills/list` and `skills/get` entries (SEP-2640, host side)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

from mcp_skills_server.errors import SkillsServerError, quoted
from mcp_skills_server.format.archive import ArchiveRefusedError, check_paths
from mcp_skills_server.model import SKILL_MD, Json
from mcp_skills_server.model.digests import is_digest

MAX_FILES: Final = 512
MAX_BYTES: Final = 16 << 20
"""The limits of files and bytes per skill, which SEP-2640 makes every host accept (S40-39)."""
MAX_URI: Final = 2048


class EntryRefusedError(SkillsServerError, ValueError):
    """An entry breaks the specification. The message is one line for people."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A remote skill's file. One that only `resources/list` names has no digest and no size."""

    uri: str
    digest: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class ListedSkill:
    """A remote skill, identified on its server by the URI of its SKILL.md, not by its name.

    `files` are by path; None if the server lists none in advance.
    """

    name: str
    description: str
    uri: str
    files: Mapping[str, ListedFile] | None
    frontmatter: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_proved(self) -> bool:
        """Return whether all files are listed with a digest, so that they can be verified."""
        return self.files is not None and all(file.digest for file in self.files.values())


def parse_entry(raw: object) -> ListedSkill:
    """Parse and validate an entry.

    Raises:
        EntryRefusedError: it lacks a field, names a file outside of its skill, or exceeds a size
            limit.
    """
    entry = _mapping(raw, "the entry")
    uri = entry.get("uri")
    if not isinstance(uri, str) or not uri.endswith(f"/{SKILL_MD}") or len(uri) > MAX_URI:
        raise EntryRefusedError(f"its uri is not the URI of a {SKILL_MD}: {quoted(str(uri))}")
    frontmatter = _mapping(entry.get("frontmatter"), f"{quoted(uri)}: frontmatter")
    name, description = frontmatter.get("name"), frontmatter.get("description")
    if not isinstance(name, str) or not isinstance(description, str):
        raise EntryRefusedError(f"{quoted(uri)}: its frontmatter has no name, or no description")
    if uri.split("/")[-2] != name:  # S40-14
        reason = f"its folder does not have the skill's name, {quoted(name)}"
        raise EntryRefusedError(f"{quoted(uri)}: {reason}")
    files = _files(entry.get("resources"), uri)
    return ListedSkill(name, description, uri, files, frontmatter)


def is_same(one: Json, other: Json) -> bool:
    """Tell whether two JSON values are the same. To Python's `==`, 1 is also true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def path_below(base: str, uri: str) -> str:
    """Return a file's path within its skill, from its URI and the skill's folder URI `base`.

    `base` ends with a slash.

    Raises:
        EntryRefusedError: the URI is outside `base`, or the path is not portable.
    """
    if not uri.startswith(base):  # S40-17
        raise EntryRefusedError(f"{quoted(uri)} is outside of its skill, {quoted(base)}")
    try:
        parts = uri.removeprefix(base).split("/")
        segments = [unquote_to_bytes(part).decode() for part in parts]
        if any("/" in segment for segment in segments):
            raise EntryRefusedError(f"{quoted(uri)}: a name in it contains a slash")
        path = "/".join(segments)
        check_paths([path])
    except (UnicodeDecodeError, ArchiveRefusedError) as error:
        raise EntryRefusedError(f"{quoted(uri)} does not name a file: {error}") from None
    return path


def _files(raw: object, skill_uri: str) -> dict[str, ListedFile] | None:
    if raw == "dynamic":
        return None
    if not isinstance(raw, Sequence) or isinstance(raw, str):  # S40-38
        raise EntryRefusedError(f"{quoted(skill_uri)}: its resources are not a list of files")
    given = cast("Sequence[object]", raw)
    if len(given) > MAX_FILES:
        reason = f"it has {len(given):,} files; a skill has at most {MAX_FILES}"
        raise EntryRefusedError(f"{quoted(skill_uri)}: {reason}")
    base = skill_uri.removesuffix(SKILL_MD)
    files: dict[str, ListedFile] = {}
    for entry in given:
        file = _mapping(entry, f"{quoted(skill_uri)}: a file")
        uri, digest, size = file.get("uri"), file.get("digest"), file.get("size")
        # S40-18
        if not isinstance(uri, str) or not is_digest(digest):
            raise EntryRefusedError(f"{quoted(skill_uri)}: a file has no uri, or no digest")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise EntryRefusedError(f"{quoted(uri)}: its size is not a number of bytes")
        path = path_below(base, uri)
        if path in files:
            raise EntryRefusedError(f"{quoted(uri)} is listed twice")
        files[path] = ListedFile(uri, digest, size)
    if SKILL_MD not in files:
        raise EntryRefusedError(f"{quoted(skill_uri)}: its list of files lacks {SKILL_MD}")
    if sum(file.size or 0 for file in files.values()) > MAX_BYTES:
        raise EntryRefusedError(f"{quoted(skill_uri)}: it has more than {MAX_BYTES >> 20} MiB")
    try:
        check_paths(files)
    except ArchiveRefusedError as error:
        raise EntryRefusedError(f"{quoted(skill_uri)}: {error}") from None
    return files


def _mapping(raw: object, what: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise EntryRefusedError(f"{what} is not an object")
    return cast("Mapping[str, Any]", raw)
