"""Tool names, data classes, visibility rules and text truncation of the Agent Skills Runtime.

Lengths are in characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

from mcp_skills_server.format import fields, hidden
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
"""The argument with a session's handle, used if the host does not bind sessions itself."""
CONVERSATION: Final = "conversation"
"""An alias of `SESSION` for hosts that reserve that name, such as Microsoft Agent Framework."""
SCRIPTS: Final = "scripts/"
WORKSPACE: Final = "/workspace/"
"""The path prefix of files written by the session's scripts; no skill path starts with it."""

_NAMES: Final = (LIST, SEARCH, LOAD, UNLOAD, READ, RUN, PROPOSE, PROPOSALS)
_OTHER_NAMES: Final = {
    "skills_readresource": READ,
    "skills_read_resource": READ,
    "skills_runscript": RUN,
}
_MAX_PROBLEMS: Final = 10
_ELLIPSIS: Final = "..."
_PARTIAL_ENTITY: Final = re.compile(r"&#?\w*$")
_ENTITIES: Final = ("&amp;", "&lt;", "&gt;", "&quot;")
_MAX_WORD: Final = 30
"""The longest word, in characters, that is dropped to cut at a word boundary."""
_TRAILING_PUNCTUATION: Final = " ,;:-("
"""Characters stripped before the ellipsis."""


class ToolResult(TypedDict):
    """The result of a tool, in the form of MCP's `CallToolResult`.

    `content` has blocks for the model (text, images, links), `structuredContent` the same for
    programs. `isError`: the call failed, and the text advises the model what to do instead.
    """

    content: list[dict[str, Any]]
    structuredContent: NotRequired[dict[str, Any]]
    isError: NotRequired[bool]


class Offer(NamedTuple):
    """A skill offered to models."""

    name: str  # unique in this view
    description: str
    location: str | None = None  # of its SKILL.md; None if the model cannot use it
    path: str = ""
    root: str = ""  # the name of its root; "" if there is only one


class Overview(NamedTuple):
    """The skills offered to models, sorted by path."""

    offers: Sequence[Offer] = ()
    more: bool = False  # more skills may exist that have not been read yet
    preferred: Sequence[str] = ()  # paths of skills whose descriptions come first if not all fit

    def __bool__(self) -> bool:
        """Return whether there are, or may be, any skills."""
        return bool(self.offers) or self.more


class Loaded(NamedTuple):
    """A loaded skill."""

    name: str  # unique in this view
    location: str  # URI or absolute path of its SKILL.md
    root_dir: str  # its directory, in the same form
    digest: str  # of its SKILL.md
    properties: Mapping[str, Json]  # the frontmatter
    instructions: str  # the body
    files: tuple[str, ...]  # the other files
    problems: tuple[str, ...]  # messages of its errors
    origin: str | None = None  # its site or archive; None for a folder of the operator
    line: int = 1  # the 1-based line of SKILL.md on which the body begins


def canonical(name: str) -> str | None:
    """Return the canonical tool name, treating dots and hyphens as underscores, or None."""
    plain = name.replace(".", "_").replace("-", "_")
    if plain in _NAMES:
        return plain
    return _OTHER_NAMES.get(plain)


def is_usable(skill: Skill) -> bool:
    """Return whether a skill can be loaded: lenient standing suffices."""
    return skill.standing >= Standing.LENIENT


def is_offered(skill: Skill) -> bool:
    """Return whether a skill is offered to models; others can still be loaded by name.

    `disable-model-invocation` hides a skill. So do hidden characters in its path, because no safe
    name is left for it.
    """
    reserved = fields.hides(skill.frontmatter, "disable-model-invocation")
    shown = bool(hidden.strip(skill.description).strip()) and not hidden.count_in_name(skill.path)
    return is_usable(skill) and shown and not reserved


def changed(before: Mapping[str, Skill], after: Mapping[str, Skill]) -> bool:
    """Return whether models see a difference between the skills `before` and `after`."""

    # A hidden skill's name counts, because another skill of that name is named by its path
    # (`identity.name_of`).
    def shown_of(skills: Mapping[str, Skill]) -> dict[str, tuple[str, str | None]]:
        usable = [skill for skill in skills.values() if is_usable(skill)]
        offered = {skill.path: skill.description for skill in usable if is_offered(skill)}
        return {skill.path: (skill.name, offered.get(skill.path)) for skill in usable}

    return shown_of(before) != shown_of(after)


def problems(skill: Skill) -> tuple[str, ...]:
    """Return at most ten error messages of a skill, for a model about to use it."""
    return tuple(problem.text for problem in skill.problems if problem.severity == "error")[
        :_MAX_PROBLEMS
    ]


def hidden_remarks(frontmatter: Mapping[str, Json], instructions: str) -> tuple[str, ...]:
    """Return a remark on hidden characters, if any; the texts remain unchanged."""
    remark = hidden.hidden_warning(instructions, *hidden.texts(dict(frontmatter)))
    if remark:
        return (f"it contains {remark}",)
    return ()


def scripts_of(skill: Skill) -> Iterator[str]:
    """Yield the paths of a skill's scripts; those of skills nested in it need their own grant."""
    inner = tuple(f"{nested}/" for nested in skill.nested)
    scripts = (path for path in skill.files if path.startswith(SCRIPTS))
    return (path for path in scripts if not path.startswith(inner))


def in_workspace(path: str) -> str | None:
    """Return the path below `/workspace/` of a script's output file; None for skill files."""
    if path.startswith(WORKSPACE):
        return path.removeprefix(WORKSPACE)
    return None


def one_line(text: str) -> str:
    """Collapse each run of white space into one blank."""
    return " ".join(text.split())


def max_min_limit(lengths: Iterable[int], budget: int) -> int:
    """Return the greatest common limit at which the lengths fit the budget (max-min fairness).

    Shorter texts leave their unused share to longer ones.
    """
    ordered = sorted(lengths)
    for index, length in enumerate(ordered):
        share = max(budget, 0) // (len(ordered) - index)
        if length > share:
            return share
        budget -= length
    return max(ordered, default=0)


def clipped(text: str, most: int) -> str:
    """Truncate a text to `most` characters, at a word boundary, with an ellipsis."""
    if len(text) <= most:
        return text
    budget = most - len(_ELLIPSIS)
    if budget <= 0:
        return ""
    kept = text[:budget]
    if not text[budget].isspace():
        # Without a blank nearby, as in Chinese, the cut is inside a word. Do not split an entity.
        whole = kept.rpartition(" ")[0]
        if whole and len(whole) >= budget - _MAX_WORD:
            kept = whole
        else:
            kept = _PARTIAL_ENTITY.sub("", kept)
    while kept and kept[-1] in _TRAILING_PUNCTUATION and not kept.endswith(_ENTITIES):
        kept = kept[:-1]
    return kept + _ELLIPSIS


def paragraphs(text: str, most: int) -> tuple[str, int]:
    """Return leading whole paragraphs of at most `most` characters, and the position after them.

    If the first paragraph is longer, cut it at the end of a line; if the first line is longer,
    anywhere.
    """
    if len(text) <= most:
        return text, len(text)
    for mark in ("\n\n", "\n"):
        end = text.rfind(mark, 0, most + len(mark))
        if end > 0:
            rest = text[end:]
            return text[:end], end + len(rest) - len(rest.lstrip("\n"))
    return text[:most], most
