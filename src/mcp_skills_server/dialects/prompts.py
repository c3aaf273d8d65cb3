"""MCP's own prompts: each skill as one that a user starts by its name, a slash command in most
hosts.

Plain values in, plain dicts out. A prompt is for the person, so what an author keeps from the model
(`disable-model-invocation`) is offered and what an author keeps from the user (`user-invocable:
false`) is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from mcp_skills_server.format import fields, hidden, identity
from mcp_skills_server.format.arguments import replaced
from mcp_skills_server.format.markup import contained, element
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import SKILL_MD, Json, Skill, Standing, printable

LIST_CHANGED: Final = "notifications/prompts/list_changed"
LEAST: Final = Standing.LENIENT
"""The standing that a prompt needs: a user who asks for it by name gets a skill that breaks a rule,
too."""
ARGUMENTS: Final = "arguments"
"""The one argument of a skill that declares none but says in `argument-hint` what may follow its
name."""
MOST_LINKS: Final = 20
_ALL_ARGUMENTS: Final = re.compile(r"\$ARGUMENTS(?![\w\[])")
"""Not `$ARGUMENTS[0]`: how a host splits words is the host's matter."""
_VALUES: Final = ("enum", "choices", "examples", "default")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
"""A name that means nothing to any template."""
_ICON_SCHEMES: Final = ("https:", "http:", "data:")


def is_offered(skill: Skill, chosen: Sequence[str]) -> bool:
    """Tell whether the skill is a prompt.

    `chosen` are shell patterns, of which one must fit its name or its skill path (`*` also fits
    slashes); none for all.
    """
    withheld = skill.frontmatter.get("user-invocable", True)
    shown = bool(hidden.without(skill.description).strip()) and not hidden.count(skill.path)
    if skill.standing < LEAST or not shown or _is_false(withheld):
        return False
    return not chosen or any(
        fnmatchcase(text, each) for each in chosen for text in (skill.name, skill.path)
    )


def free_argument(skill: Skill) -> dict[str, Json] | None:
    """Return the argument that `argument-hint` stands for, or None. It counts only where no
    arguments are declared."""
    hint = skill.frontmatter.get("argument-hint")
    if isinstance(hint, list) and hint and all(isinstance(each, str) for each in hint):
        hint = f"[{', '.join(map(str, hint))}]"  # a hint in brackets is a list to YAML
    if not isinstance(hint, str) or not hint.strip():
        return None
    return {"name": ARGUMENTS, "description": hidden.without(hint)}


def descriptor(skill: Skill, entry: Mapping[str, Json]) -> dict[str, Json]:
    """Return a skill as `prompts/list` shows it, out of its SEP-2076 entry.

    Icons are kept where hosts take them: from https or as a picture in data. What else MCP forbids
    in them is left out, because one bad icon makes some clients refuse the whole list.
    """
    out = {key: entry[key] for key in ("name", "title", "description", ARGUMENTS) if key in entry}
    free = free_argument(skill)
    if ARGUMENTS not in out and free is not None:
        out[ARGUMENTS] = [free | {"required": False}]
    icons = _icons(entry.get("icons"))
    if icons:
        out["icons"] = icons
    return out


def listing(descriptors: list[Json], next_cursor: str | None, ttl_ms: int) -> dict[str, Json]:
    """Return the answer of `prompts/list`."""
    out: dict[str, Json] = {
        "resultType": "complete",
        "prompts": descriptors,
        "ttlMs": ttl_ms,
        "cacheScope": "private",
    }
    if next_cursor is not None:
        out["nextCursor"] = next_cursor
    return out


def put_in(body: str, words: str, name: str) -> str:
    """Return the body of the skill `name` with the user's words where it says `$ARGUMENTS`, in one
    pass.

    Raises:
        RequestError: the result would be too long (`arguments.replaced`).
    """
    return replaced(body, _ALL_ARGUMENTS, lambda _: words, name)


def instructions(skill: Skill, name: str, body: str, words: str) -> str:
    """Return what the user says by starting the prompt.

    The filled-in body stands in a `<skill>` that tells its name, its SKILL.md and its directory. It
    is verbatim but for tags of ours in it, whose `<` is written `&lt;`, so that no body ends its
    tag early or opens another one. How many hidden characters it holds is said behind it. The words
    that the user gave to a skill without declared arguments follow after the tag, because they are
    not the skill's.
    """
    attributes = {"name": name, "location": uri(skill.path, SKILL_MD), "root_dir": uri(skill.path)}
    if (origin := identity.origin(skill)) is not None:
        attributes["origin"] = origin  # S40-48
    lines = [
        f'Use the skill "{printable(name)}" for what I ask next.',
        element("skill", attributes, body),
    ]
    if remark := hidden.remark(body):
        lines.append(f"The skill holds {remark}.")
    if words.strip():
        lines.append(f"Arguments: {words}")
    return "\n\n".join(lines)


def pointer(skill: Skill, name: str, given: Mapping[str, str]) -> str:
    """Return a prompt that has the model load the skill, without any text of the skill.

    For hosts that make a template of a prompt, and for skills that are not the operator's own: what
    such a text says would be run, read and replaced on the user's machine before any model sees it.
    `given` are the user's arguments.
    """
    known = next((each for each in (name, skill.path) if _PLAIN.fullmatch(each)), None)
    if known is None:
        return (
            "This skill has a name that cannot be put into a command. Find it with "
            "skills_search, and load it."
        )
    how = f'Load it with the tool skills_load and the names ["{known}"]'
    if _PLAIN.fullmatch(skill.path):
        how += f", or read the resource {uri(skill.path, SKILL_MD)}"
    lines = [f'Use the skill "{known}" for what I ask next. {how}, and follow its instructions.']
    lines += [
        f"{key}: {value}" for key, value in given.items() if value.strip() and _PLAIN.fullmatch(key)
    ]
    return "\n\n".join(lines)


def answer(
    skill: Skill, text: str, linked: Iterable[Mapping[str, Json]], *, readable: bool
) -> dict[str, Json]:
    """Return the answer of `prompts/get`: the instructions, and the URIs of the files that they
    link to.

    All of it is text: some clients refuse a prompt with a resource link, and others drop it.

    `linked` are files as `sep2076.files` writes them; after twenty the rest are counted. `readable`
    tells whether `resources/read` serves the skill: without that a link would lead nowhere.
    """
    files = list(linked)
    shown, where = files[:MOST_LINKS], f"they lie under {uri(skill.path)}/"
    if not readable:
        shown, where = [], "the skill breaks a rule and is no resource here"
    lines = [_linked_line(each) for each in shown]
    left = len(files) - len(shown)
    if left:
        lines.append(f"Linked files that are not shown: {left}; {where}.")
    messages: list[Json] = [_message(text)]
    if lines:
        messages.append(_message("\n".join(("Files that it refers to:", *lines))))
    return {
        "resultType": "complete",
        "description": hidden.without(skill.description),
        "messages": messages,
    }


def values(argument: Mapping[str, Json], begun: str) -> list[str]:
    """Return the values that the author suggests for an argument and that begin so, in any case of
    letters.

    From `enum`, `choices`, `examples` and `default`, whatever of them is text.
    """
    found: dict[str, None] = {}
    for key in _VALUES:
        value = argument.get(key)
        if isinstance(value, list):
            several = value
        else:
            several = [value]
        found |= dict.fromkeys(each for each in several if isinstance(each, str))
    return [each for each in found if each and each.casefold().startswith(begun.casefold())]


def changed(
    before: Mapping[str, Skill],
    after: Mapping[str, Skill],
    chosen: Sequence[str],
    describe: Callable[[Skill], Mapping[str, Json]],
) -> bool:
    """Tell whether `prompts/list` may differ once the skills `before`, by skill path, are replaced
    by those `after`.

    A skill that is no prompt counts by its name alone: a name that two skills share is no prompt's
    name any more.
    """
    old, new = _usable(before), _usable(after)
    if {path: skill.name for path, skill in old.items()} != {
        path: skill.name for path, skill in new.items()
    }:
        return True
    offered = [path for path, skill in old.items() if is_offered(skill, chosen)]
    if offered != [path for path in old if is_offered(new[path], chosen)]:
        return True
    return any(describe(old[path]) != describe(new[path]) for path in offered)


def _usable(skills: Mapping[str, Skill]) -> dict[str, Skill]:
    return {path: skill for path, skill in skills.items() if skill.standing >= LEAST}


def _is_false(value: Json) -> bool:
    return value is False or (isinstance(value, str) and value.strip().lower() == "false")


def _message(text: str) -> Json:
    return {"role": "user", "content": {"type": "text", "text": text}}


def _linked_line(file: Mapping[str, Json]) -> str:
    title = file.get("title")
    return f"- {file['uri']}" + (
        f" ({contained(printable(title))})" if isinstance(title, str) else ""
    )


def _icons(value: Json) -> list[Json]:
    out: list[Json] = []
    for icon in value if isinstance(value, list) else []:
        if not isinstance(icon, dict):
            continue
        source = str(icon.get("src"))
        if not source.lower().startswith(_ICON_SCHEMES) or not fields.is_allowed_icon(source):
            continue
        kept: dict[str, Json] = {"src": icon["src"]}
        sizes, theme = icon.get("sizes"), icon.get("theme")
        if isinstance(icon.get("mimeType"), str):
            kept["mimeType"] = icon["mimeType"]
        if isinstance(sizes, list) and all(isinstance(each, str) for each in sizes):
            kept["sizes"] = sizes
        if theme in ("light", "dark"):
            kept["theme"] = theme
        out.append(kept)
    return out
