"""Identity of a skill: its unique name, look-up by it, and its title, version and shown origin.

All dialects present the same values and differ in their encoding alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mcp_skills_server.errors import RequestError, listed, quoted
from mcp_skills_server.format import fields, hidden
from mcp_skills_server.model import MAX_PATH, Json, Skill, Snapshot, Standing

MARKUP: Final = re.compile(r"[<>\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that no name may have, because models read names as part of our own text."""
_ELSEWHERE: Final = re.compile(
    r"(?:https?|oci(?:\+http)?|git\+[a-z]+|mcp\+https?)://", re.IGNORECASE
)
"""URL schemes of remote origins; a path may hold `://` as well."""
_ON_DISK: Final = re.compile(r"git\+file:", re.IGNORECASE)
_BEHIND_PATH: Final = re.compile("(?=[@#])")
"""The start of a repository's branch (`@`) or folder (`#`)."""
_SEPARATORS: Final = re.compile(r"[/\\]")


def name_of(skill: Skill, snapshot: Snapshot, least: Standing) -> str:
    """Return the unique name of a skill: its own name, or its path if the name is ambiguous.

    A name is ambiguous if another skill has it as name or path. The path also replaces a name that
    is too long for a request, or that holds hidden characters.
    """
    name = skill.name
    if len(name) > MAX_PATH or hidden.count_in_name(name):
        return skill.path
    holder = snapshot.skills.get(name)
    taken = holder is not None and holder is not skill and holder.standing >= least
    if taken or len(snapshot.named(name, least)) > 1:
        return skill.path
    return name


def lookup(snapshot: Snapshot, name: str, least: Standing) -> Skill | None:
    """Return the skill of this path or unambiguous name, or None."""
    if len(name) > MAX_PATH:
        return None
    skill = snapshot.skills.get(name)
    if skill is not None and skill.standing >= least:
        return skill
    named = snapshot.named(name, least)
    if len(named) == 1:
        return snapshot.skills[named[0]]
    return None


def require(snapshot: Snapshot, name: str, least: Standing) -> Skill:
    """Return the skill of this name or skill path.

    Raises:
        RequestError: no skill matches, or several share the name.
    """
    skill = lookup(snapshot, name, least)
    if skill is not None:
        return skill
    named = ()
    if len(name) <= MAX_PATH:
        named = snapshot.named(name, least)
    if named:
        raise RequestError(
            f"Several skills are named {quoted(name)}; ask for one of: {listed(named)}"
        )
    raise RequestError(f"Unknown skill: {quoted(name)}")


def origin(skill: Skill) -> str | None:
    """Return the origin of a skill as clients and models see it; None for the operator's own."""
    if skill.origin is None:
        return None
    return shown_origin(skill.origin)


def shown_origin(given: str) -> str:
    """Return an origin as clients see it: a remote URL, or the last name of a local path."""
    if _ON_DISK.match(given):
        path, *more = _BEHIND_PATH.split(given, maxsplit=1)
        return f"{_last(path)}{''.join(more)}"
    if _ELSEWHERE.match(given):
        return given
    return _last(given)


def _last(path: str) -> str:
    return _SEPARATORS.split(path.rstrip("/\\"))[-1] or "archive"


def title(skill: Skill) -> str | None:
    """Return `title`, `metadata.title` or the first level-1 heading, without hidden characters."""
    given = skill.frontmatter
    name = (
        fields.text(given.get("title"))
        or fields.text(fields.metadata(given, "title"))
        or skill.reading.heading
    )
    if name is None:
        return None
    return hidden.strip(name) or None


def version(frontmatter: Mapping[str, Json]) -> str | None:
    """Return `version`, else `metadata.version`, as text without hidden characters, or None."""
    for value in (frontmatter.get("version"), fields.metadata(frontmatter, "version")):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value:
            return hidden.strip(value) or None
    return None
