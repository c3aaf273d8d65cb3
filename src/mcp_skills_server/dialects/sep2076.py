"""SEP-2076: skills as a first-class primitive, asked for by name.

Snapshot in, plain dicts out. The proposal was closed and never released; requirements S76 keep what it says.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcp_skills_server.errors import RequestError, clipped, listed
from mcp_skills_server.format import hidden, icons, uris
from mcp_skills_server.format.media import media_type
from mcp_skills_server.format.placeholders import replaced
from mcp_skills_server.format.tags import tags_of
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import LONGEST_PATH, ORIGIN, SKILL_MD, Json, Skill, Snapshot, Standing

NAME: Final = "sep-2076"
CAPABILITY: Final = {"skills": {"listChanged": True}}
LIST_CHANGED: Final = "notifications/skills/list_changed"


@dataclass(frozen=True, slots=True)
class Served:
    """What else the same server serves, for `dependencies` to resolve against (S76-9...11).

    Attributes:
        tools: names of its tools.
        prompts: names of its prompts.
        resources: URIs and URI templates of its resources other than skills.
    """

    tools: Container[str] = ()
    prompts: Container[str] = ()
    resources: Container[str] = ()


def name_of(skill: Skill, snapshot: Snapshot, least: Standing) -> str:
    """What the skill is called here: its name while no other has it, as name or as path, else its skill path.

    A name that is longer than any that can be asked for, or that holds what nobody sees, is none.
    """
    if len(skill.name) > LONGEST_PATH or hidden.count(skill.name):
        return skill.path
    holder = snapshot.skills.get(skill.name)
    taken = holder is not None and holder is not skill and holder.standing >= least
    return skill.path if taken or len(snapshot.named(skill.name, least)) > 1 else skill.name


def known(snapshot: Snapshot, name: str, least: Standing) -> Skill | None:
    """The skill of this name or skill path, None where there is none or several share the name."""
    if len(name) > LONGEST_PATH:
        return None
    skill = snapshot.skills.get(name)
    if skill is not None and skill.standing >= least:
        return skill
    named = snapshot.named(name, least)
    return snapshot.skills[named[0]] if len(named) == 1 else None


def find(snapshot: Snapshot, name: str, least: Standing) -> Skill:
    """The skill of this name or skill path (S76-8).

    Raises:
        RequestError: there is none, or several share the name.
    """
    skill = known(snapshot, name, least)
    if skill is not None:
        return skill
    named = snapshot.named(name, least) if len(name) <= LONGEST_PATH else ()
    if named:
        raise RequestError(f"Several skills are named {_shown(name)}; ask for one of: {listed(named)}")
    raise RequestError(f"Unknown skill: {_shown(name)}")


def entry(skill: Skill, snapshot: Snapshot, served: Served, least: Standing) -> dict[str, Json]:
    """A skill as `skills/list` shows it (S76-4, S76-19). Hidden characters are left out: nobody asked for this text."""
    fields = skill.frontmatter
    out: dict[str, Json] = {"name": name_of(skill, snapshot, least)}
    _put(out, "title", title(skill))
    _put(out, "description", hidden.without(skill.description))
    _put(out, "version", version(fields))
    _put(out, "tags", tags_of(fields))
    _put(out, "icons", _icons(skill))
    _put(out, "arguments", [_argument(each) for each in arguments(fields)])
    _put(out, "dependencies", dependencies(skill, snapshot, served, least)[0])
    if skill.origin is not None:
        out["_meta"] = {ORIGIN: skill.origin}
    return out


def definition(
    skill: Skill,
    snapshot: Snapshot,
    served: Served,
    least: Standing,
    *,
    instructions: str,
    linked: Mapping[str, str],
) -> dict[str, Json]:
    """A skill as `skills/get` answers it, once its instructions are filled in (S76-6, S76-7)."""
    out: dict[str, Json] = {}
    _put(out, "description", skill.description)
    out["instructions"] = instructions
    _put(out, "dependencies", dependencies(skill, snapshot, served, least)[0])
    out["files"] = files(skill, linked)
    return out


def listing(entries: list[Json], next_cursor: str | None) -> dict[str, Json]:
    """The answer of `skills/list` (S76-5)."""
    out: dict[str, Json] = {"skills": entries}
    _put(out, "nextCursor", next_cursor)
    return out


def title(skill: Skill) -> str | None:
    """`title`, else `metadata.title`, else the body's first level-1 heading, without hidden characters."""
    fields = skill.frontmatter
    said = _text(fields.get("title")) or _text(_metadata(fields, "title")) or skill.reading.heading
    return None if said is None else hidden.without(said) or None


def arguments(fields: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The declared arguments that have a name; what else is wrong with them is a Problem (`field-type`)."""
    return _named(fields.get("arguments"), "name")


_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]++)\}\}")
"""One pattern for all names: an alternative for each would be tried at each place, names times places."""


def fill_in(instructions: str, declared: Sequence[Mapping[str, Json]], given: Mapping[str, Any], skill: str) -> str:
    """Replace `{{name}}` of every declared argument, in one pass, and nothing else. A name with a brace has no place.

    Raises:
        RequestError: an argument is unknown or not text, or a required one is missing (S76-8), or the result would be
            longer than the instructions by more than `placeholders.MOST_ADDED`.
    """
    values: dict[str, str] = {}
    for argument in declared:
        name = str(argument["name"])
        if name in given:
            if not isinstance(given[name], str):
                raise RequestError(f"Argument {_shown(name)} of skill {_shown(skill)} must be a string")
            values[name] = given[name]
        elif argument.get("required") is True:
            raise RequestError(f"Missing required argument {_shown(name)} of skill {_shown(skill)}")
        else:
            values[name] = _text(argument.get("default")) or ""
    unknown = [name for name in given if name not in values]
    if unknown:
        told = listed(values)
        raise RequestError(f"Skill {_shown(skill)} has no argument {_shown(unknown[0])}; it declares: {told}")
    return (
        replaced(instructions, _PLACEHOLDER, lambda found: values.get(found[1], found[0]), skill)
        if values
        else instructions
    )


def files(skill: Skill, linked: Mapping[str, str]) -> list[Json]:
    """The bundle's files without SKILL.md: those that the body links to, in order, then the others by path."""
    said = {str(each["path"]): each for each in _named(skill.frontmatter.get("files"), "path")}
    out: list[Json] = []
    for path in (*linked, *(path for path in skill.files if path not in linked and path != SKILL_MD)):
        own = said.get(path, {})
        item: dict[str, Json] = {"name": path}
        _put(item, "title", _text(own.get("title")) or linked.get(path))
        item["uri"] = uri(skill.path, path)
        _put(item, "description", _text(own.get("description")))
        _put(item, "mimeType", media_type(path))
        item["required"] = own.get("required") is True
        out.append(item)
    return out


def dependencies(
    skill: Skill, snapshot: Snapshot, served: Served, least: Standing
) -> tuple[dict[str, Json], list[str]]:
    """What the skill depends on and this server really serves, and words for what it does not (S76-9...11)."""
    declared = skill.frontmatter.get("dependencies")
    if not isinstance(declared, dict):
        return {}, []
    missing: list[str] = []
    tools: list[Json] = []
    for name in _texts(declared.get("tools")):
        tools.append(name) if name in served.tools else missing.append(f"tool {name}")
    prompts: list[Json] = []
    for name in _references(declared.get("prompts"), "name"):
        prompts.append({"type": "ref/prompt", "name": name}) if name in served.prompts else missing.append(
            f"prompt {name}"
        )
    resources: list[Json] = []
    for target in _references(declared.get("resources"), "uri"):
        if target in served.resources or uris.find(snapshot, target, least):
            resources.append({"type": "ref/resource", "uri": target})
        else:
            missing.append(f"resource {target}")
    out: dict[str, Json] = {}
    _put(out, "tools", tools)
    _put(out, "prompts", prompts)
    _put(out, "resources", resources)
    return out, missing


def _argument(declared: Mapping[str, Json]) -> Json:
    out: dict[str, Json] = {"name": declared["name"]}
    for key in ("title", "description"):
        _put(out, key, hidden.without(_text(declared.get(key)) or ""))
    if isinstance(declared.get("required"), bool):
        out["required"] = declared["required"]
    return out


def version(fields: Mapping[str, Json]) -> str | None:
    """`version` from the top level, else from `metadata` (S76-19, X-14). A number is written out.

    Hidden characters are left out.
    """
    for value in (fields.get("version"), _metadata(fields, "version")):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value:
            return hidden.without(value) or None
    return None


def _icons(skill: Skill) -> list[Json]:
    out: list[Json] = []
    for icon in _named(skill.frontmatter.get("icons"), "src"):
        item: dict[str, Json] = dict(icon)
        src = str(icon["src"])
        if src in skill.files:
            item["src"] = uri(skill.path, src)
            item.setdefault("mimeType", media_type(src) or "application/octet-stream")
        elif not icons.is_allowed(src):
            continue
        out.append(item)
    return out


def _named(value: Json, key: str) -> list[dict[str, Json]]:
    """The mappings of a list that have text under `key`, the first of each text."""
    out: dict[str, dict[str, Json]] = {}
    for each in value if isinstance(value, list) else []:
        name = each.get(key) if isinstance(each, dict) else None
        if isinstance(each, dict) and isinstance(name, str) and name:
            out.setdefault(name, each)
    return list(out.values())


def _references(value: Json, key: str) -> list[str]:
    """Names out of a list of references or of plain texts."""
    out: list[str] = []
    for each in value if isinstance(value, list) else []:
        name = each.get(key) if isinstance(each, dict) else each
        if isinstance(name, str) and name:
            out.append(name)
    return out


def _texts(value: Json) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _metadata(fields: Mapping[str, Json], key: str) -> Json:
    metadata = fields.get("metadata")
    return metadata.get(key) if isinstance(metadata, dict) else None


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None


def _put(out: dict[str, Json], key: str, value: Json) -> None:
    """Set what is there; an absent value leaves no key behind."""
    if value:
        out[key] = value


def _shown(name: str) -> str:
    return repr(clipped(name))
