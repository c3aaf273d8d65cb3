"""Tool definitions of the runtime, for `tools/list` or a model API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mcp_skills_server.dialects.runtime import overview
from mcp_skills_server.dialects.runtime.overview import FAMILY
from mcp_skills_server.dialects.runtime.words import (
    CONVERSATION,
    LIST,
    LOAD,
    PROPOSALS,
    PROPOSE,
    READ,
    RUN,
    SEARCH,
    SESSION,
    UNLOAD,
    Overview,
)
from mcp_skills_server.model import Json

_MAX_AT_ONCE: Final = 64
"""The maximum number of names in one call."""
DEFAULT_LISTED: Final = 50
DEFAULT_HITS: Final = 5

_ABOUT_SESSION: Final = (
    f"The session that {LOAD} returned. Give it whenever you have one; without it only a host that "
    "keeps its connection finds what was loaded. A session ends after 24 hours without use."
)


def definitions(
    listed: Overview, characters: int, *, scripts: bool, handles: bool, words: Sequence[str] = ()
) -> list[dict[str, Json]]:
    """Return the tool definitions, or none if there are no skills.

    Args:
        listed: the skills, which the load tool's description names.
        characters: the limit of that description.
        handles: whether the session is an argument because no host binds it.
        words: keywords of the skills for the search tool's description, for hosts that search among
            tools before their model sees any.
    """
    if not listed:
        return []
    bound: dict[str, Json] = {}
    if handles:
        bound = {
            SESSION: _text(_ABOUT_SESSION),
            CONVERSATION: _text(f"The same, where {SESSION} is not passed on."),
        }
    tools = [
        _list_tool(),
        _search_tool(words),
        _load_tool(listed, characters, bound),
        _unload_tool(bound),
        _read_tool(bound),
    ]
    if scripts:
        return [*tools, _run_tool(bound)]
    return tools


def argument_schemas() -> dict[str, Json]:
    """Return the input schema of each tool by name, without session and without skill names."""
    some = Overview(more=True)
    tools = (*definitions(some, 0, scripts=True, handles=False), *proposing())
    return {str(tool["name"]): tool["inputSchema"] for tool in tools}


def proposing() -> list[dict[str, Json]]:
    """Return the proposal tools, which need neither skills nor a session."""
    propose = _tool(
        PROPOSE,
        "Propose a skill",
        "Propose a new skill, or a change of one, to the people who look after the skills. Do so "
        "when the user corrects how a skill has you work, when a skill is wrong or out of date, or "
        "when you have worked out a procedure that you will need again; tell the user that you "
        "did. Do not propose what holds for this conversation alone, what a skill says already, or "
        "anything secret or personal. Nothing changes until a person approves it.",
        {
            "name": _text(
                f"The skill to change, as {LIST} names it; or the path of a new one, such as "
                "billing/refunds."
            ),
            "files": {
                "type": "object",
                "additionalProperties": {"type": ["string", "null"]},
                "minProperties": 1,
                "description": "The whole text of each new or changed file by its path in the "
                "skill, such as SKILL.md; null removes a file. Files that are not named stay.",
            },
            "reason": _text(
                "Why, for the person who decides: what happened, and what gets better."
            ),
            "base": _text(
                f"For a change: the digest that {LOAD} returned for the skill. Leave it out for a "
                "new skill."
            ),
        },
        required=["name", "files", "reason"],
        output=_PROPOSAL,
    )
    propose["annotations"] = dict.fromkeys(
        ("readOnlyHint", "destructiveHint", "openWorldHint"), False
    )
    own = _tool(
        PROPOSALS,
        "Your proposals",
        "List what you proposed, with its state and what the reviewer said.",
        {},
        output=_object(proposals=_list(_PROPOSAL)),
    )
    return [propose, own]


def _load_tool(listed: Overview, characters: int, bound: Mapping[str, Json]) -> dict[str, Json]:
    return _tool(
        LOAD,
        "Load skills",
        overview.loading(listed, characters),
        {
            # No enum: paths, and skills that only a user may start, are accepted too.
            "names": {
                **_TEXTS,
                "minItems": 1,
                "maxItems": _MAX_AT_ONCE,
                "description": "Names of the skills to load.",
            },
            "mode": {
                "type": "string",
                "enum": ["replace", "add"],
                "default": "replace",
                "description": (
                    "replace: these skills only, unloading others; add: beside what is loaded."
                ),
            },
            **bound,
        },
        required=["names"],
        output=_RECEIPT,
    )


def _unload_tool(bound: Mapping[str, Json]) -> dict[str, Json]:
    return _tool(
        UNLOAD,
        "Unload skills",
        "Unload skills whose task is done: the named ones, or all. Their instructions count no "
        "more.",
        {
            "names": {
                **_TEXTS,
                "maxItems": _MAX_AT_ONCE,
                "description": "Names of the skills to unload.",
            },
            "all": {"type": "boolean", "description": "Unload every skill."},
            **bound,
        },
        output=_RECEIPT,
    )


def _list_tool() -> dict[str, Json]:
    return _tool(
        LIST,
        "List skills",
        "List all skills, with their descriptions, page by page.",
        {
            "after": _text("Go on after this skill: the next_after of the page before."),
            "limit": _number("How many to list.", DEFAULT_LISTED, 200),
        },
        output=_LISTING,
    )


def _search_tool(words: Sequence[str]) -> dict[str, Json]:
    about = ""
    if words:
        about = f" There are skills about: {', '.join(words)}."
    return _tool(
        SEARCH,
        "Search skills",
        "Find skills for a task: searches names, descriptions, tags and headings, best match "
        f"first. Send keywords in the language of the skills. {FAMILY}{about}",
        {
            "query": _text("Words for the task or the name of a skill."),
            "limit": _number("How many to find.", DEFAULT_HITS, 50),
        },
        required=["query"],
        output=_LISTING,
    )


def _read_tool(bound: Mapping[str, Json]) -> dict[str, Json]:
    # No output schema: results are text, image, audio or a link, and a host that shows only the
    # structure to its model would lose an image.
    return _tool(
        READ,
        "Read a file of a skill",
        "Read a file of a loaded skill: references, assets, scripts. A long text comes in parts. "
        f"{FAMILY}",
        {
            "path": _text("The file's path in the skill, such as references/guide.md."),
            "skill": _text("The loaded skill; without it the one that was loaded last."),
            "start_line": _number("Line of a text file to begin at.", 1, None),
            "max_lines": _number("How many lines to read.", None, None),
            "start_character": _number("Character of that line to begin at.", 1, None),
            **bound,
        },
        required=["path"],
    )


def _run_tool(bound: Mapping[str, Json]) -> dict[str, Json]:
    tool = _tool(
        RUN,
        "Run a script of a skill",
        "Run a script from the scripts/ directory of a loaded skill and return its exit code and "
        "output. It runs without a shell and without input, in a work directory that later scripts "
        "of the session share; SKILL_DIR tells it where the skill's files are. The result names "
        f"the files that it made there; {READ} reads them. {FAMILY}",
        {
            "path": _text("The script's path in the skill, such as scripts/extract.py."),
            "skill": _text("The loaded skill; without it the one that was loaded last."),
            "args": {**_TEXTS, "description": "Arguments, one by one."},
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables to set: those that the skill says it takes.",
            },
            "workdir": _text("Directory to run in, below the work directory."),
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds after which to stop it.",
            },
            **bound,
        },
        required=["path"],
        output=_OUTCOME,
    )
    # A script's effects are unknown.
    hints: Json = {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": True,
    }
    return tool | {"annotations": hints}


def _tool(
    name: str,
    title: str,
    description: str,
    properties: dict[str, Json],
    *,
    required: list[Json] | None = None,
    output: dict[str, Json] | None = None,
) -> dict[str, Json]:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    tool: dict[str, Json] = {"name": name, "title": title, "description": description}
    tool["inputSchema"] = schema
    if output is not None:
        tool["outputSchema"] = output
    # Loading changes the conversation's state only.
    tool["annotations"] = {"readOnlyHint": True, "openWorldHint": False}
    return tool


def _text(description: str) -> dict[str, Json]:
    return {"type": "string", "description": description}


def _number(description: str, default: int | None, most: int | None) -> dict[str, Json]:
    out: dict[str, Json] = {"type": "integer", "minimum": 1, "description": description}
    if default is not None:
        out["default"] = default
    if most is not None:
        out["maximum"] = most
    return out


def _object(required: Sequence[str] = (), /, **properties: Json) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = [*required]
    return schema


def _list(items: Json) -> dict[str, Json]:
    return {"type": "array", "items": items}


_STRING: Final[dict[str, Json]] = {"type": "string"}
_INTEGER: Final[dict[str, Json]] = {"type": "integer"}
_BOOLEAN: Final[dict[str, Json]] = {"type": "boolean"}
_INTEGER_OR_NULL: Final[dict[str, Json]] = {"type": ["integer", "null"]}
_TEXTS: Final = _list(_STRING)


def _strings(*names: str) -> dict[str, Json]:
    return dict.fromkeys(names, _STRING)


_PROPOSAL: Final = _object(
    ("id", "name", "principal", "state", "reason"),
    **_strings("id", "name", "principal"),
    state={"type": "string", "enum": ["pending", "approved", "rejected"]},
    reason=_STRING,
    base={"type": ["string", "null"]},
    **_strings("proposed", "reviewer", "message", "decided"),
)
_ACTIVE: Final = _object(
    ("name", "location", "root_dir", "digest", "properties"),
    **_strings("name", "location", "root_dir", "digest"),
    properties={"type": "object"},
    instructions=_STRING,
    files=_TEXTS,
    files_not_shown=_INTEGER,
    problems=_TEXTS,
    origin=_STRING,
)
_RECEIPT: Final = _object(
    ("active_skills",), session=_STRING, active_skills=_list(_ACTIVE), note=_STRING
)
_LISTED: Final = _object(
    ("name", "description", "location"),
    **_strings("name", "description", "location", "title", "version"),
    tags=_TEXTS,
    problems=_TEXTS,
    origin=_STRING,
    also_at=_TEXTS,
)
_LISTING: Final = _object(("skills",), skills=_list(_LISTED), next_after=_STRING, note=_STRING)
_OUTCOME: Final = _object(
    ("path", "exit_code", "stdout", "stderr"),
    path=_STRING,
    exit_code=_INTEGER_OR_NULL,
    stdout=_STRING,
    stderr=_STRING,
    duration_ms=_INTEGER,
    **dict.fromkeys(("timed_out", "stdout_truncated", "stderr_truncated"), _BOOLEAN),
    sandbox=_STRING,
    user=_INTEGER_OR_NULL,
    sandbox_gaps=_TEXTS,
    files=_list(_object(("path", "size"), path=_STRING, size=_INTEGER)),
    files_not_shown=_INTEGER,
    note=_STRING,
)
