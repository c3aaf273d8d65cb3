"""Names and objects of the runtime's tools, which skills a model is shown, and how texts are cut to
a length.

Lengths are characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

from mcp_skills_server.format import hidden
from mcp_skills_server.model import Json, Skill, Standing

LIST: Final = "skills_list"
SEARCH: Final = "skills_search"
LOAD: Final = "skills_load"
UNLOAD: Final = "skills_unload"
READ: Final = "skills_read"
RUN: Final = "skills_run_script"
PROPOSE: Final = "skills_propose"
PROPOSALS: Final = "skills_proposals"
LIST_CHANGED: Final = "notifications/tools/list_changed"
SESSION: Final = "session"
"""The argument that carries a session's handle where no host binds it."""
CONVERSATION: Final = "conversation"
"""The same argument for hosts that keep the name `session` for themselves, such as Microsoft's
Agent Framework."""
SCRIPTS: Final = "scripts/"
WORKSPACE: Final = "/workspace/"
"""The prefix of paths of files that scripts of the session leave; no path of a skill begins so."""

_NAMES: Final = (LIST, SEARCH, LOAD, UNLOAD, READ, RUN, PROPOSE, PROPOSALS)
_OTHER_NAMES: Final = {
    "skills_readresource": READ,
    "skills_read_resource": READ,
    "skills_runscript": RUN,
}
_MOST_PROBLEMS: Final = 10
_ELLIPSIS: Final = "..."
_HALF_AN_ENTITY: Final = re.compile(r"&#?\w*$")
_ENTITIES: Final = ("&amp;", "&lt;", "&gt;", "&quot;")
_LONGEST_WORD: Final = 30
"""A cut goes back to the end of a word over so many characters."""
_LEFT_OUT: Final = " ,;:-("
"""Characters that are stripped before the dots."""


class ToolResult(TypedDict):
    """The result of a tool as MCP shapes it (`CallToolResult`).

    Attributes:
        content: blocks for the model: text, images, links.
        structuredContent: the same for programs.
        isError: the model must do something else; the text says what.
    """

    content: list[dict[str, Any]]
    structuredContent: NotRequired[dict[str, Any]]
    isError: NotRequired[bool]


class Offer(NamedTuple):
    """A skill that a model may load.

    Attributes:
        name: what it is called here.
        description: what it does and when to use it.
        location: where its SKILL.md lies, None where that is no use to the model.
        path: its skill path.
        root: what its root is called, "" where there is one root only.
    """

    name: str
    description: str
    location: str | None = None
    path: str = ""
    root: str = ""


class Overview(NamedTuple):
    """The skills that a model may load.

    Attributes:
        offers: in the order of their skill paths.
        more: whether there may be more than these, which were not read yet.
        preferred: skill paths of those whose descriptions come first where not all fit.
    """

    offers: Sequence[Offer] = ()
    more: bool = False
    preferred: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Tell whether there is anything to show."""
        return bool(self.offers) or self.more


class Loaded(NamedTuple):
    """A skill in use.

    Attributes:
        name: what it is called here.
        location: its SKILL.md, as URI or absolute path.
        root_dir: its directory, in the same form.
        digest: of its SKILL.md.
        properties: the frontmatter.
        instructions: the body.
        files: paths of its other files.
        problems: what is wrong with it, in words.
        origin: the site or the archive that it comes from, None for a folder of the operator's own.
        line: the line of SKILL.md on which the body begins, counted from 1.
    """

    name: str
    location: str
    root_dir: str
    digest: str
    properties: Mapping[str, Json]
    instructions: str
    files: tuple[str, ...]
    problems: tuple[str, ...]
    origin: str | None = None
    line: int = 1


def canonical(name: str) -> str | None:
    """Return the tool that a name means, with dots and hyphens for underscores too, or None."""
    plain = name.replace(".", "_").replace("-", "_")
    if plain in _NAMES:
        return plain
    return _OTHER_NAMES.get(plain)


def is_usable(skill: Skill) -> bool:
    """Tell whether it can be loaded: leniently, a skill that breaks a rule too."""
    return skill.standing >= Standing.LENIENT


def is_offered(skill: Skill) -> bool:
    """Tell whether a model is shown it. One that only the user may start can still be loaded by
    name.

    One whose path holds hidden characters is not shown: no name would be left that can be shown and
    asked for.
    """
    reserved = str(skill.frontmatter.get("disable-model-invocation")).strip().lower() == "true"
    shown = bool(hidden.without(skill.description).strip()) and not hidden.count(skill.path)
    return is_usable(skill) and shown and not reserved


def changed(before: Mapping[str, Skill], after: Mapping[str, Skill]) -> bool:
    """Tell whether what a model is shown of the skills may differ once these took the place of
    those."""

    def shown_of(skills: Mapping[str, Skill]) -> dict[str, tuple[str, str | None]]:
        # A hidden skill counts with its name: another skill of that name goes by its path
        # (`identity.name_of`).
        usable = ((path, each) for path, each in skills.items() if is_usable(each))
        return {
            path: (each.name, each.description if is_offered(each) else None)
            for path, each in usable
        }

    return shown_of(before) != shown_of(after)


def problems(skill: Skill) -> tuple[str, ...]:
    """Return the errors of a skill, in words, for a model that is about to rely on it."""
    return tuple(each.text for each in skill.problems if each.severity == "error")[:_MOST_PROBLEMS]


def unseen(frontmatter: Mapping[str, Json], instructions: str) -> tuple[str, ...]:
    """Return what to say of characters that a reader of the skill does not see. The texts stay as
    they are."""
    remark = hidden.remark(instructions, *hidden.texts(dict(frontmatter)))
    if remark:
        return (f"it holds {remark}",)
    return ()


def scripts_of(skill: Skill) -> Iterator[str]:
    """Return the paths of the files that can be run."""
    return (path for path in skill.files if path.startswith(SCRIPTS))


def in_workspace(path: str) -> str | None:
    """Return what follows `/workspace/`, for a file that a script left; None for a file of a
    skill."""
    if path.startswith(WORKSPACE):
        return path.removeprefix(WORKSPACE)
    return None


def one_line(text: str) -> str:
    """Return the text with every run of white space as one blank."""
    return " ".join(text.split())


def even(lengths: Iterable[int], budget: int) -> int:
    """Return the one length to which these are cut so that together they fit: max-min fair.

    Long ones get what short ones leave. It is the greatest length where all of them fit.
    """
    ordered = sorted(lengths)
    for index, length in enumerate(ordered):
        share = max(budget, 0) // (len(ordered) - index)
        if length > share:
            return share
        budget -= length
    return max(ordered, default=0)


def clipped(text: str, most: int) -> str:
    """Return the text, or its beginning up to the end of a word and three dots, at most so long."""
    if len(text) <= most:
        return text
    budget = most - len(_ELLIPSIS)
    if budget <= 0:
        return ""
    kept = text[:budget]
    if not text[budget].isspace():
        # Where no blank is near, as in Chinese, the cut falls into a word, and must not leave half
        # of an entity.
        whole = kept.rpartition(" ")[0]
        if whole and len(whole) >= budget - _LONGEST_WORD:
            kept = whole
        else:
            kept = _HALF_AN_ENTITY.sub("", kept)
    while kept and kept[-1] in _LEFT_OUT and not kept.endswith(_ENTITIES):
        kept = kept[:-1]
    return kept + _ELLIPSIS


def paragraphs(text: str, most: int) -> tuple[str, int]:
    """Return the whole paragraphs at the beginning of a text, at most so long, and the position to
    go on from.

    A first paragraph that is longer is cut at the end of a line, a line that is longer anywhere.
    """
    if len(text) <= most:
        return text, len(text)
    for mark in ("\n\n", "\n"):
        end = text.rfind(mark, 0, most + len(mark))
        if end > 0:
            rest = text[end:]
            return text[:end], end + len(rest) - len(rest.lstrip("\n"))
    return text[:most], most
