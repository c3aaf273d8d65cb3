"""MCP prompts: each skill as a prompt that a user starts by name, a slash command in most hosts.

Pure functions. Prompts are for users, so `disable-model-invocation` does not hide a skill here,
while `user-invocable: false` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from mcp_skills_server.dialects.dialect import cacheable
from mcp_skills_server.format import fields, hidden, identity
from mcp_skills_server.format.markup import contained, element
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import SKILL_MD, Json, Skill, Standing, printable

LIST_CHANGED: Final = "notifications/prompts/list_changed"
MIN_STANDING: Final = Standing.LENIENT
"""The lowest standing of a prompt: users may start skills that break a rule, by their names."""
FREE_ARGUMENT: Final = "arguments"
"""The name of the single argument of a skill that declares none but has an `argument-hint`."""
MAX_LINKS: Final = 20
_VALUES: Final = ("enum", "choices", "examples", "default")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
"""Names that contain no syntax of any template language."""
_ICON_SCHEMES: Final = ("https:", "http:", "data:")


def is_offered(skill: Skill, chosen: Sequence[str]) -> bool:
    """Return whether the skill is offered as a prompt.

    `chosen` are shell patterns; one must match the name or the skill path (`*` also matches
    slashes). If empty, all skills match.
    """
    not_for_users = fields.hides(skill.frontmatter, "user-invocable")
    shown = bool(hidden.strip(skill.description).strip()) and not hidden.count_in_name(skill.path)
    if skill.standing < MIN_STANDING or not shown or not_for_users:
        return False
    return not chosen or any(
        fnmatchcase(text, pattern) for pattern in chosen for text in (skill.name, skill.path)
    )


def free_argument(skill: Skill) -> dict[str, Json] | None:
    """Return the argument that `argument-hint` stands for, or None.

    Callers use it only if no arguments are declared.
    """
    hint = skill.frontmatter.get("argument-hint")
    if isinstance(hint, list) and hint and all(isinstance(item, str) for item in hint):
        hint = f"[{', '.join(map(str, hint))}]"  # YAML parses a hint in brackets as a list
    if not isinstance(hint, str) or not hint.strip():
        return None
    return {"name": FREE_ARGUMENT, "description": hidden.strip(hint)}


def descriptor(skill: Skill, entry: Mapping[str, Json]) -> dict[str, Json]:
    """Return the `prompts/list` entry of a skill from its SEP-2076 entry.

    Icons are kept if their source is an http, https or image data URL. Fields that MCP forbids in
    an icon are dropped, because one bad icon makes some clients reject the whole list.
    """
    out = {key: entry[key] for key in ("name", "title", "description", "arguments") if key in entry}
    free = free_argument(skill)
    if "arguments" not in out and free is not None:
        out["arguments"] = [free | {"required": False}]
    icons = _icons(entry.get("icons"))
    if icons:
        out["icons"] = icons
    return out


def listing(descriptors: list[Json], next_cursor: str | None, ttl_ms: int) -> dict[str, Json]:
    """Return the result of `prompts/list`."""
    return cacheable({"prompts": descriptors}, ttl_ms, next_cursor)


def instructions(
    skill: Skill, name: str, body: str, words: str, root_dir: str | None = None
) -> str:
    """Return the user message of a started prompt.

    The filled-in body is wrapped in a `<skill>` element with the skill's name, SKILL.md and
    directory. Our own tags in the body are escaped as `&lt;`, so that no body can close its element
    early or open another one. A count of hidden characters follows the element. So do the user's
    words to a skill without declared arguments, because the skill's author did not write them.
    """
    attributes = {"name": name, "location": uri(skill.path, SKILL_MD)}
    attributes["root_dir"] = root_dir or uri(skill.path)
    if (origin := identity.origin(skill)) is not None:
        attributes["origin"] = origin  # S40-48
    lines = [
        f'Use the skill "{printable(name)}" for what I ask next.',
        element("skill", attributes, body),
    ]
    if remark := hidden.hidden_warning(body):
        lines.append(f"The skill contains {remark}.")
    if words.strip():
        lines.append(f"Arguments: {words}")
    return "\n\n".join(lines)


def load_prompt(skill: Skill, name: str, given: Mapping[str, str]) -> str:
    """Return a prompt that makes the model load the skill, without any text of the skill.

    Some hosts turn prompts into templates, and some skills are not the operator's own. There,
    template syntax in a skill's text could run commands and read files on the user's machine before
    any model sees it. `given` are the user's arguments.
    """
    known = next((text for text in (name, skill.path) if _PLAIN.fullmatch(text)), None)
    if known is None:
        return (
            "This skill has a name that cannot be put into a command. Find it with "
            "skills_search, and load it."
        )
    how = f'Load it with the tool skills_load and the names ["{known}"]'
    if _PLAIN.fullmatch(skill.path):
        how += f", or read the resource {uri(skill.path, SKILL_MD)}"
    lines = [f'Use the skill "{known}" for what I ask next. {how}, and follow its instructions.']
    words = {key: value for key, value in given.items() if value.strip() and _PLAIN.fullmatch(key)}
    lines += [f"{key}: {value}" for key, value in words.items()]
    return "\n\n".join(lines)


def prompt_result(
    skill: Skill, text: str, linked: Iterable[Mapping[str, Json]], *, readable: bool
) -> dict[str, Json]:
    """Return the result of `prompts/get`: the instructions, and the URIs of files they link to.

    All content is text: some clients reject a prompt with a resource link, and others drop it.

    Args:
        linked: files as from `sep2076.files`; those after the first twenty are only counted.
        readable: whether `resources/read` serves the skill; if not, no URIs are given.
    """
    files = list(linked)
    shown, where = files[:MAX_LINKS], f"they are under {uri(skill.path)}/"
    if not readable:
        shown, where = [], "the skill breaks a rule, so it is not a resource here"
    lines = [_linked_line(file) for file in shown]
    left = len(files) - len(shown)
    if left:
        lines.append(f"Linked files that are not shown: {left}; {where}.")
    messages: list[Json] = [_message(text)]
    if lines:
        messages.append(_message("\n".join(("Files that it refers to:", *lines))))
    description = hidden.strip(skill.description)
    return {"resultType": "complete", "description": description, "messages": messages}


def suggestions(argument: Mapping[str, Json], begun: str) -> list[str]:
    """Return the suggested text values of an argument that start with `begun`, ignoring case.

    Suggestions come from `enum`, `choices`, `examples` and `default`.
    """
    values: dict[str, None] = {}
    for key in _VALUES:
        value = argument.get(key)
        several = [value]
        if isinstance(value, list):
            several = value
        values |= dict.fromkeys(value for value in several if isinstance(value, str))
    return [value for value in values if value and value.casefold().startswith(begun.casefold())]


def changed(
    before: Mapping[str, Skill],
    after: Mapping[str, Skill],
    chosen: Sequence[str],
    describe: Callable[[Skill], Mapping[str, Json]],
) -> bool:
    """Return whether `prompts/list` may change when skills `before` become `after`, by skill path.

    Skills that are not prompts count by name only, because a name shared by two skills names no
    prompt.
    """

    def shown(skills: Mapping[str, Skill]) -> dict[str, object]:
        return {
            path: (skill.name, is_offered(skill, chosen) and describe(skill))
            for path, skill in skills.items()
            if skill.standing >= MIN_STANDING
        }

    return shown(before) != shown(after)


def _message(text: str) -> Json:
    return {"role": "user", "content": {"type": "text", "text": text}}


def _linked_line(file: Mapping[str, Json]) -> str:
    title = file.get("title")
    if isinstance(title, str):
        return f"- {file['uri']} ({contained(printable(title))})"
    return f"- {file['uri']}"


def _icons(value: Json) -> list[Json]:
    out: list[Json] = []
    for icon in map(fields.mapping, fields.items(value)):
        source = str(icon.get("src"))
        if not source.lower().startswith(_ICON_SCHEMES) or not fields.is_allowed_icon(source):
            continue
        kept: dict[str, Json] = {"src": icon["src"]}
        sizes: Json = icon.get("sizes")
        if isinstance(icon.get("mimeType"), str):
            kept["mimeType"] = icon["mimeType"]
        if isinstance(sizes, list) and all(isinstance(size, str) for size in sizes):
            kept["sizes"] = sizes
        if icon.get("theme") in ("light", "dark"):
            kept["theme"] = icon["theme"]
        out.append(kept)
    return out
