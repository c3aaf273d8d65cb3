"""The record of a session for other replicas: small JSON with a version, foreign text where it is read. Pure.

It names skills by path and holds nothing of them: a replica serves what it has itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, cast

from mcp_skills_server.errors import SkillsServerError

VERSION: Final = 1
_MOST_SKILLS: Final = 1000
_LONGEST: Final = 4096


class SessionRecordError(SkillsServerError, ValueError):
    """A text is no record of a session, or one of another version. The message says which."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as replicas hand it on.

    Attributes:
        owner: the hash of whose it is.
        since: when the model was shown the catalogue, in seconds of the wall clock.
        skills: path and digest of each loaded skill, the latest last.
        scripts_at: the process in which a script ran last; "" where none did. Its files are on that machine only.
    """

    owner: str
    since: float
    skills: tuple[tuple[str, str], ...] = ()
    scripts_at: str = ""

    def text(self) -> str:
        """Return the record as it is written."""
        out: dict[str, Any] = {"version": VERSION, "owner": self.owner, "since": self.since}
        out["skills"] = [{"path": path, "digest": digest} for path, digest in self.skills]
        if self.scripts_at:
            out["scripts_at"] = self.scripts_at
        return json.dumps(out, separators=(",", ":"))


def parsed(text: str) -> SessionRecord:
    """Return the record that a text is. Fields that this version does not know are passed over.

    Raises:
        SessionRecordError: it is none.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise SessionRecordError("no JSON") from None
    if not isinstance(found, dict):
        raise SessionRecordError("no JSON object")
    fields = cast("dict[str, object]", found)
    version, since = fields.get("version"), fields.get("since")
    if isinstance(version, bool) or version != VERSION:
        raise SessionRecordError(f"of version {ascii(version)[:20]}")
    if isinstance(since, bool) or not isinstance(since, int | float) or not _is_time(since):
        raise SessionRecordError("without a time")
    return SessionRecord(
        _text(fields, "owner"), float(since), _skills(fields.get("skills")), _text(fields, "scripts_at", "")
    )


def _is_time(value: float) -> bool:
    try:
        return isfinite(float(value))
    except OverflowError:
        return False


def _text(fields: dict[str, object], key: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise SessionRecordError(f"without {key!r}")
    return value


def _skills(found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, list) or len(cast("list[object]", found)) > _MOST_SKILLS:
        raise SessionRecordError("without skills")
    out: dict[str, str] = {}
    for each in cast("list[object]", found):
        if not isinstance(each, dict):
            raise SessionRecordError("with a skill that is none")
        entry = cast("dict[str, object]", each)
        out[_text(entry, "path")] = _text(entry, "digest")
    return tuple(out.items())
