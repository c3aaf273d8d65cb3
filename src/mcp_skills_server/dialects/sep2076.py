"""The SEP-2076 dialect: skills as a first-class primitive, identified by name.

Pure functions of a snapshot. The proposal was closed and never released; requirements S76 record
its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_skills_server.dialects.dialect import Dialect, EntryContext, InstructionsResult
from mcp_skills_server.format import fields, hidden, identity
from mcp_skills_server.format.arguments import declared
from mcp_skills_server.format.dependencies import FIELD, resolve
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.format.media import media_type
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import ORIGIN, SKILL_MD, Json, Skill, Standing

_RARE: Final = frozenset(("icons", "arguments", FIELD))
"""Fields that few skills have, so that the common case is fast."""
LIST_CHANGED: Final = "notifications/skills/list_changed"


def entry(context: EntryContext) -> dict[str, Json]:
    """Return the `skills/list` entry of a skill.

    Hidden characters are removed, because a list reaches the model without a request for the skill.
    """
    skill = context.skill
    given = skill.frontmatter
    out: dict[str, Json] = {"name": identity.name_of(skill, context.snapshot, context.least)}
    _put(out, "title", identity.title(skill))
    _put(out, "description", hidden.strip(skill.description))
    _put(out, "version", identity.version(given))
    _put(out, "tags", tags_of(given))
    if not given.keys().isdisjoint(_RARE):
        _put(out, "icons", _icons(skill))
        _put(out, "arguments", [_argument(argument) for argument in declared(given)])
        _put(out, "dependencies", _dependencies(context))
    if (origin := identity.origin(skill)) is not None:
        out["_meta"] = {ORIGIN: origin}
    return out


def definition(
    context: EntryContext, instructions: str, linked: Mapping[str, str]
) -> dict[str, Json]:
    """Return the result of `skills/get` for a skill, from its filled-in instructions."""
    out: dict[str, Json] = {}
    _put(out, "description", context.skill.description)
    out["instructions"] = instructions
    _put(out, "dependencies", _dependencies(context))
    out["files"] = files(context.skill, linked)
    return out


def files(skill: Skill, linked: Mapping[str, str]) -> list[Json]:
    """Return the skill's files except SKILL.md, those that the body links to first."""
    entries = fields.entries(skill.frontmatter.get("files"), "path")
    declared = {str(entry["path"]): entry for entry in entries}
    out: list[Json] = []
    others = [path for path in skill.files if path not in linked and path != SKILL_MD]
    for path in (*linked, *others):
        entry = declared.get(path, {})
        item: dict[str, Json] = {"name": path}
        _put(item, "title", fields.text(entry.get("title")) or linked.get(path))
        item["uri"] = uri(skill.path, path)
        _put(item, "description", fields.text(entry.get("description")))
        _put(item, "mimeType", media_type(path))
        item["required"] = entry.get("required") is True
        out.append(item)
    return out


def _dependencies(context: EntryContext) -> dict[str, Json]:
    resolution = resolve(context.skill, context.snapshot, context.served, context.least)
    out: dict[str, Json] = {}
    _put(out, "tools", list(resolution.tools))
    _put(out, "prompts", [{"type": "ref/prompt", "name": name} for name in resolution.prompts])
    _put(out, "resources", [{"type": "ref/resource", "uri": uri} for uri in resolution.resources])
    return out


def _argument(argument: Mapping[str, Json]) -> Json:
    out: dict[str, Json] = {"name": argument["name"]}
    for key in ("title", "description"):
        _put(out, key, hidden.strip(fields.text(argument.get(key)) or ""))
    if isinstance(argument.get("required"), bool):
        out["required"] = argument["required"]
    return out


def _icons(skill: Skill) -> list[Json]:
    out: list[Json] = []
    for icon in fields.entries(skill.frontmatter.get("icons"), "src"):
        item: dict[str, Json] = dict(icon)
        src = str(icon["src"])
        if src in skill.files:
            item["src"] = uri(skill.path, src)
            item.setdefault("mimeType", media_type(src) or "application/octet-stream")
        elif not fields.is_allowed_icon(src):
            continue
        out.append(item)
    return out


def _put(out: dict[str, Json], key: str, value: Json) -> None:
    """Set a key unless the value is empty."""
    if value:
        out[key] = value


DIALECT: Final = Dialect(
    name="sep-2076",
    least=Standing.LENIENT,
    capabilities={"skills": {"listChanged": True}},  # S76-1
    entry=entry,
    needs_served=lambda skill: FIELD in skill.frontmatter,
    parameter="name",
    find=identity.require,
    result=InstructionsResult(definition),
    # X-12; the other protocol has no such notification (S40-33)
    notifications={"skillsListChanged": LIST_CHANGED},
)
