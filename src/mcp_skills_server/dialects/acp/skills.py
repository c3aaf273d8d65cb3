"""AvailableSkill, a skill as ACP shows it: written of a skill, judged, and read of what a peer sent.

The flat form of the draft's example is read, never written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict, cast

from mcp_skills_server.dialects.acp.fields import SKILLS_UPDATE, as_dict, list_in
from mcp_skills_server.format import hidden, identity
from mcp_skills_server.model import ORIGIN, Json, Skill, Snapshot, Standing
from mcp_skills_server.validation import rules

_NAME: Final = re.compile(r"[a-z0-9]++(?:-[a-z0-9]++)*")
_FIELDS: Final = frozenset(("name", "description", "license", "compatibility", "allowedTools", "_meta"))


class AvailableSkill(TypedDict):
    """A skill as ACP shows it. The client shows it to the user; the agent uses it."""

    name: str
    description: str
    license: NotRequired[str]
    compatibility: NotRequired[str]
    allowedTools: NotRequired[list[str]]
    _meta: NotRequired[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Available:
    """The skills that ACP can show.

    Attributes:
        skills: by name, no name twice.
        left_out: (skill path, reason) of the other valid ones.
    """

    skills: tuple[AvailableSkill, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def split_tools(value: Json) -> list[str]:
    """The tools of `allowed-tools`, a text with blanks or commas between them or a list of texts.

    Nothing is split within parentheses. One that is never closed is a character like another.
    """
    if isinstance(value, list):
        return [each.strip() for each in value if isinstance(each, str) and each.strip()]
    return list(_tools(value)) if isinstance(value, str) else []


def _tools(text: str) -> Iterator[str]:
    start = place = 0
    while place < len(text):
        if text[place] == "(":
            place = _closing(text, place)
        elif text[place] == "," or text[place].isspace():
            if start < place:
                yield text[start:place]
            start = place + 1
        place += 1
    if start < len(text):
        yield text[start:]


def _closing(text: str, opening: int) -> int:
    depth = 0
    for match in re.finditer(r"[()]", text[opening:]):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return opening + match.start()
    return opening


def entry(skill: Skill) -> AvailableSkill:
    """A skill as an AvailableSkill; `metadata` travels in `_meta`, and so does the origin of a skill from elsewhere.

    Empty fields are left out, and so are hidden characters, except in `_meta`.
    """
    fields = skill.frontmatter
    out: dict[str, Any] = {"name": skill.name, "description": hidden.without(skill.description)}
    for key in ("license", "compatibility"):
        value = fields.get(key)
        if value:
            out[key] = hidden.without(value) if isinstance(value, str) else value
    tools = split_tools(fields.get("allowed-tools"))
    if tools:
        out["allowedTools"] = tools
    metadata = fields.get("metadata")
    origin = identity.origin(skill)
    meta = {**(metadata if isinstance(metadata, dict) else {}), **({ORIGIN: origin} if origin else {})}
    if meta:
        out["_meta"] = meta
    return cast("AvailableSkill", out)


def refusal(value: object) -> str | None:
    """Why this is no AvailableSkill, in one line, or None where it is one."""
    if not isinstance(value, dict):
        return "it is no object"
    fields = cast("dict[str, object]", value)
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > rules.MAX_NAME:
        return f"its name is not 1 to {rules.MAX_NAME} lower-case letters, digits and single hyphens"
    if not isinstance(description, str) or not 1 <= len(description) <= rules.MAX_DESCRIPTION:
        return f"its description is not a text of 1 to {rules.MAX_DESCRIPTION} characters"
    if not isinstance(fields.get("license", ""), str):
        return "its license is no text"
    compatibility = fields.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > rules.MAX_COMPATIBILITY:
        return f"its compatibility is not a text of at most {rules.MAX_COMPATIBILITY} characters"
    tools = fields.get("allowedTools", [])
    if not isinstance(tools, list) or not all(isinstance(each, str) for each in cast("list[object]", tools)):
        return "its allowedTools is no list of texts"
    if not isinstance(fields.get("_meta", {}), dict):
        return "its _meta is no object"
    unknown = sorted(fields.keys() - _FIELDS)
    return f"it has the unknown field {unknown[0]}" if unknown else None


def available(snapshot: Snapshot) -> Available:
    """The skills of a snapshot that ACP can show: valid ones, one of each name.

    ACP knows a skill by its name alone. Of several the one of the earlier root is shown, then that of the first path.
    """
    chosen: dict[str, Skill] = {}
    left_out: list[tuple[str, str]] = []
    valid = [snapshot.skills[path] for path in snapshot.paths(Standing.VALID)]
    # ACPX-14: the earlier root first
    for skill in sorted(valid, key=lambda each: (each.root, each.path)):
        reason = refusal(entry(skill))
        if reason is None and skill.name in chosen:
            reason = f"the name {skill.name} is also that of {chosen[skill.name].path}"
        if reason is None:
            chosen[skill.name] = skill
        else:
            left_out.append((skill.path, reason))
    return Available(tuple(entry(chosen[name]) for name in sorted(chosen)), tuple(left_out))


def read_skills(params: object) -> Available | None:
    """What a client reads out of the params of `session/update` or of the extension notification.

    Both forms are taken, `metadata` beside `_meta`, and tools as one text; fields that are not known are passed over.
    What still is no AvailableSkill is left out, by its place in the list. None where the params carry no skills.
    """
    outer = as_dict(params)
    update = as_dict(outer.get("update", outer))
    if update.get("sessionUpdate", SKILLS_UPDATE) != SKILLS_UPDATE or not isinstance(
        update.get("availableSkills"), list
    ):
        return None
    skills: dict[str, AvailableSkill] = {}
    left_out: list[tuple[str, str]] = []
    for position, item in enumerate(list_in(update, "availableSkills"), 1):
        read = _lenient(item)
        reason = refusal(read)
        if reason is None:
            skills.setdefault(read["name"], cast("AvailableSkill", read))
        else:
            left_out.append((f"entry {position}", reason))
    return Available(tuple(skills.values()), tuple(left_out))


def _lenient(item: object) -> dict[str, Any]:
    fields = as_dict(item)
    out = {key: fields[key] for key in fields if key in _FIELDS and fields[key] is not None}
    if isinstance(out.get("allowedTools"), str):
        out["allowedTools"] = split_tools(out["allowedTools"])
    metadata = as_dict(fields.get("metadata"))
    if metadata:
        out["_meta"] = {**metadata, **as_dict(out.get("_meta"))}
    return out
