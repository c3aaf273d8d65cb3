"""The Agent Skills Runtime: what a model sees of the skills, and the tools it loads, reads and runs them with.

Plain values in, plain dicts and texts out. Every text is a function of the catalogue alone and in its order, so that
prompt caches hold. Of a tool's result the text alone and the structure alone are enough for a model, because some hosts
hand it only the one, some only the other.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote

from mcp_skills_server.format import media
from mcp_skills_server.format.markup import element, escaped
from mcp_skills_server.model import Json, Skill, Standing

LIST: Final = "skills_list"
SEARCH: Final = "skills_search"
LOAD: Final = "skills_load"
UNLOAD: Final = "skills_unload"
READ: Final = "skills_read"
RUN: Final = "skills_run_script"
LIST_CHANGED: Final = "notifications/tools/list_changed"
SESSION: Final = "session"
"""The argument that carries a session's handle where no host binds it (X-15)."""
SCRIPTS: Final = "scripts/"
WORKSPACE: Final = "/workspace/"
"""What the paths of files begin with that scripts of the session leave; no path of a skill begins so."""

_NAMES: Final = (LIST, SEARCH, LOAD, UNLOAD, READ, RUN)
_OTHER_NAMES: Final = {"skills_readresource": READ, "skills_read_resource": READ, "skills_runscript": RUN}
_TOKEN: Final = 4
"""Bytes of text that make about one token."""
_TOOL_SHARE: Final = 4
"""The tool's description has room for this part of what the instructions have."""
_CLIPPED: Final = 120
_MOST_AT_ONCE: Final = 64
"""Names in one call."""
_MOST_NAMES: Final = 100
_MOST_FILES: Final = 200
_MOST_PROBLEMS: Final = 10
_IMAGES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""What models take as pictures."""

_ABOUT_SESSION: Final = (
    f"The session that {LOAD} returned. Give it whenever you have one; without it only a host that keeps its "
    "connection finds what was loaded. A session ends after 24 hours without use."
)

Result: TypeAlias = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Offer:
    """A skill that a model may load.

    Attributes:
        name: what it is called here.
        description: what it does and when to use it.
        location: where its SKILL.md lies, None where that is no use to the model (RT-3).
    """

    name: str
    description: str
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
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


def canonical(name: str) -> str | None:
    """The tool that a name means, with dots and hyphens for underscores too (X-16), or None."""
    plain = name.replace(".", "_").replace("-", "_")
    return plain if plain in _NAMES else _OTHER_NAMES.get(plain)


def is_usable(skill: Skill) -> bool:
    """Whether it can be loaded: leniently, a skill that breaks a rule too (X-2)."""
    return skill.standing >= Standing.LENIENT


def is_offered(skill: Skill) -> bool:
    """Whether a model is told of it (ASG-16, ASG-22). One that only the user may start can still be loaded by name."""
    reserved = str(skill.frontmatter.get("disable-model-invocation")).strip().lower() == "true"
    return is_usable(skill) and bool(skill.description.strip()) and not reserved


def changed(before: Mapping[str, Skill], after: Mapping[str, Skill]) -> bool:
    """Whether what a model is told of the skills may differ once these took the place of those."""

    def told(skills: Mapping[str, Skill]) -> dict[str, tuple[str, str | None]]:
        # A hidden skill counts with its name: another skill of that name goes by its path (`sep2076.name_of`).
        usable = ((path, each) for path, each in skills.items() if is_usable(each))
        return {path: (each.name, each.description if is_offered(each) else None) for path, each in usable}

    return told(before) != told(after)


def problems(skill: Skill) -> tuple[str, ...]:
    """What is wrong with it, for whoever is about to rely on it."""
    return tuple(each.text for each in skill.problems if each.severity == "error")[:_MOST_PROBLEMS]


# What the model sees before it asks

_RULE: Final = (
    "Skills are instructions, references and scripts for particular tasks. When a task fits the description of a "
    f"skill, you MUST call {LOAD} with its name before you use its instructions, files or scripts; do not guess what "
    "they say."
)
_SPARING: Final = "Load only what the task needs."
PENDING: Final = f"{_RULE} Find one for the task with {SEARCH}, or go through them with {LIST}. {_SPARING}"
"""The instructions while the skills are still being read."""


def instructions(offers: Sequence[Offer], tokens: int, *, scripts: bool, active: Sequence[Loaded] | None = None) -> str:
    """The top-level instructions of a model call: the rule, what there is, and what is loaded (RT-4...7, ASG-21).

    Nothing where there is no skill (ASG-23). `active` is None where the bodies travel in results (RT-22).
    """
    if not offers and not active:
        return ""
    run = f", and runs its scripts with {RUN}" if scripts else ""
    parts = [f"{_RULE} A loaded skill tells how to go on; one reads its files with {READ}{run}. {_SPARING}"]
    if offers:
        parts.append(available(offers, tokens))
    if active:
        bodies = "\n".join(
            element(
                "skill",
                {"name": each.name} | ({} if each.origin is None else {"origin": each.origin}),
                each.instructions,
            )
            for each in active
        )
        parts.append("These skills are loaded. Where two of them conflict, the later one counts.")
        parts.append(element("active_skills", {}, bodies))
    return "\n\n".join(parts)


def available(offers: Sequence[Offer], tokens: int) -> str:
    """`<available_skills>`, whole up to so many tokens and then a pointer to the rest (RT-3, ASG-20)."""
    pieces: list[str] = []
    room = tokens * _TOKEN
    for offer in offers:
        said = {"name": offer.name, "description": _one_line(offer.description), "location": offer.location}
        lines = "\n".join(f"<{tag}>{escaped(value)}</{tag}>" for tag, value in said.items() if value is not None)
        piece = f"<skill>\n{lines}\n</skill>"
        room -= len(piece.encode())
        if room < 0:
            break
        pieces.append(piece)
    left = len(offers) - len(pieces)
    if left:
        pieces.append(f"<more>{_left(left, bool(pieces))}</more>")
    return "\n".join(("<available_skills>", *pieces, "</available_skills>"))


def definitions(offers: Sequence[Offer], tokens: int, *, scripts: bool, handles: bool) -> list[dict[str, Json]]:
    """The tools, as `tools/list` or a model API takes them; none where there is no skill (ASG-23, MCP-27, X-17).

    Args:
        offers: the skills, whose names and shortened descriptions the loading tool carries.
        tokens: about how much text the catalogue may take in the instructions; a quarter of it here.
        scripts: whether scripts may be run.
        handles: whether the session is an argument, because no host binds it.
    """
    if not offers:
        return []
    bound: dict[str, Json] = {SESSION: _text(_ABOUT_SESSION)} if handles else {}
    tools = [_list_tool(), _search_tool(), _load_tool(offers, tokens, bound), _unload_tool(bound), _read_tool(bound)]
    if scripts:
        tools.append(_run_tool(bound))
    return tools


def argument_schemas() -> dict[str, Json]:
    """What each tool takes, by its name, where the host binds the session. Names of skills are judged by look-up."""
    bound: dict[str, Json] = {}
    tools = (
        _list_tool(),
        _search_tool(),
        _load_tool((), 0, bound),
        _unload_tool(bound),
        _read_tool(bound),
        _run_tool(bound),
    )
    return {str(tool["name"]): tool["inputSchema"] for tool in tools}


def _load_tool(offers: Sequence[Offer], tokens: int, bound: Mapping[str, Json]) -> dict[str, Json]:
    lines: list[str] = []
    room = tokens * _TOKEN // _TOOL_SHARE
    for offer in offers:
        line = f"- {_one_line(offer.name)}: {_clip(_one_line(offer.description))}"
        room -= len(line.encode()) + 1
        if room < 0:
            break
        lines.append(line)
    left = len(offers) - len(lines)
    if left:
        lines.append(_left(left, bool(lines)))
    names: dict[str, Json] = {"type": "string"}
    if offers and not left and len(offers) <= _MOST_NAMES:
        names["enum"] = [offer.name for offer in offers]  # ASG-24
    return _tool(
        LOAD,
        "Load skills",
        "Load one or more skills: returns the instructions of each and the list of its files. Call this before you use "
        "a skill, whenever a task fits a skill's description.\n\nSkills:\n" + "\n".join(lines),
        {
            "names": {
                "type": "array",
                "items": names,
                "minItems": 1,
                "maxItems": _MOST_AT_ONCE,
                "description": "Names of the skills to load.",
            },
            "mode": {
                "type": "string",
                "enum": ["replace", "add"],
                "default": "replace",
                "description": "replace: these skills only, unloading others; add: beside what is loaded.",
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
        "Unload skills whose task is done: the named ones, or all. Their instructions count no more.",
        {
            "names": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": _MOST_AT_ONCE,
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
        "List the skills that can be loaded, with their descriptions, page by page.",
        {
            "after": _text("Go on after this skill: the next_after of the page before."),
            "limit": _number("How many to list.", 50, 200),
        },
        output=_LISTING,
    )


def _search_tool() -> dict[str, Json]:
    return _tool(
        SEARCH,
        "Search skills",
        "Find skills for a task: searches names, descriptions, tags and headings, best match first.",
        {"query": _text("Words for the task or the name of a skill."), "limit": _number("How many to find.", 5, 50)},
        required=["query"],
        output=_LISTING,
    )


def _read_tool(bound: Mapping[str, Json]) -> dict[str, Json]:
    # No output schema: what comes is text, a picture, sound or a link, and a host that shows a model the structure
    # alone would lose the picture.
    return _tool(
        READ,
        "Read a file of a skill",
        "Read a file of a loaded skill: references, assets, scripts. A long text comes in parts.",
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
        "Run a script from the scripts/ directory of a loaded skill and return its exit code and output. It runs "
        "without a shell and without input, in a work directory that later scripts of the session share; SKILL_DIR "
        f"tells it where the skill's files are. The result names the files that it made there; {READ} reads them.",
        {
            "path": _text("The script's path in the skill, such as scripts/extract.py."),
            "skill": _text("The loaded skill; without it the one that was loaded last."),
            "args": {"type": "array", "items": {"type": "string"}, "description": "Arguments, one by one."},
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables to set: those that the skill says it takes.",
            },
            "workdir": _text("Directory to run in, below the work directory."),
            "timeout_s": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds after which to stop it."},
            **bound,
        },
        required=["path"],
        output=_OUTCOME,
    )
    # What a script does is not known.
    tool["annotations"] = {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": True,
    }
    return tool


def _tool(
    name: str,
    title: str,
    description: str,
    properties: dict[str, Json],
    *,
    required: list[Json] | None = None,
    output: dict[str, Json] | None = None,
) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    tool: dict[str, Json] = {"name": name, "title": title, "description": description, "inputSchema": schema}
    if output is not None:
        tool["outputSchema"] = output
    # Loading is bookkeeping of the conversation; nothing outside of it changes.
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


_TEXTS: Final[dict[str, Json]] = {"type": "array", "items": {"type": "string"}}
_RECEIPT: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {
        SESSION: {"type": "string"},
        "active_skills": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "location": {"type": "string"},
                    "root_dir": {"type": "string"},
                    "digest": {"type": "string"},
                    "properties": {"type": "object"},
                    "instructions": {"type": "string"},
                    "files": _TEXTS,
                    "files_not_shown": {"type": "integer"},
                    "problems": _TEXTS,
                    "origin": {"type": "string"},
                },
                "required": ["name", "location", "root_dir", "digest", "properties"],
            },
        },
    },
    "required": ["active_skills"],
}
_LISTING: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {
        "skills": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": "string"},
                    "location": {"type": "string"},
                    "title": {"type": "string"},
                    "version": {"type": "string"},
                    "tags": _TEXTS,
                    "problems": _TEXTS,
                    "origin": {"type": "string"},
                },
                "required": ["name", "description", "location"],
            },
        },
        "next_after": {"type": "string"},
    },
    "required": ["skills"],
}
_OUTCOME: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "exit_code": {"type": ["integer", "null"]},
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "duration_ms": {"type": "integer"},
        "timed_out": {"type": "boolean"},
        "stdout_truncated": {"type": "boolean"},
        "stderr_truncated": {"type": "boolean"},
        "sandbox": {"type": "string"},
        "user": {"type": ["integer", "null"]},
        "sandbox_gaps": _TEXTS,
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "size": {"type": "integer"}},
                "required": ["path", "size"],
            },
        },
        "files_not_shown": {"type": "integer"},
    },
    "required": ["path", "exit_code", "stdout", "stderr"],
}


# What the tools answer


def listing(entries: Sequence[Mapping[str, Json]], next_after: str | None) -> Result:
    """The answer of the listing and of the search."""
    structure: dict[str, Json] = {"skills": [dict(each) for each in entries]}
    lines = [_listed(each) for each in entries] or ["No skill fits."]
    if next_after is not None:
        structure["next_after"] = next_after
        lines.append(f'There are more: call {LIST} with after="{next_after}".')
    return _result("\n".join(lines), structure)


def entry(
    name: str,
    skill: Skill,
    location: str,
    *,
    title: str | None = None,
    version: str | None = None,
    tags: Sequence[Json] = (),
) -> dict[str, Json]:
    """A skill as the listing and the search show it, marked with its problems (X-2)."""
    out: dict[str, Json] = {"name": name, "description": skill.description, "location": location}
    more: dict[str, Json] = {
        "title": title,
        "version": version,
        "tags": [*tags],
        "problems": [*problems(skill)],
        "origin": skill.origin,
    }
    return out | {key: value for key, value in more.items() if value}


def receipt(active: Sequence[Loaded], session: str | None, fresh: Sequence[Loaded] = (), *, bodies: bool) -> Result:
    """The answer of loading and unloading: what is active now, in order, and what came with it (RT-13, RT-14).

    Args:
        active: the loaded skills, the latest last.
        session: the handle, None where a host binds it (RT-23).
        fresh: those that this call loaded.
        bodies: whether the instructions travel in the result rather than at the top of the next call (RT-22).
    """
    new = {each.name for each in fresh} if bodies else set[str]()
    structure: dict[str, Json] = {"active_skills": [_receipt_entry(each, each.name in new) for each in active]}
    names = ", ".join(_one_line(each.name) for each in active) or "none"
    lines = [f"Active skills: {names}." + (" Where two conflict, the later one counts." if len(active) > 1 else "")]
    if session is not None:
        structure = {SESSION: session, **structure}
        lines[0] += f' Session: {session} (give it as "{SESSION}" to the skills tools).'
    if bodies:
        lines += [_with_files(each) for each in fresh]
    elif fresh:
        lines += [f"The skill {each.name} has problems: {'; '.join(each.problems)}" for each in fresh if each.problems]
        lines.append("Their instructions stand at the top from now on.")
    return _result("\n\n".join(lines), structure)


def text_file(
    path: str, text: str, start: int, most_lines: int | None, most_characters: int, *, start_character: int = 1
) -> Result:
    """The answer of reading a text file: its exact text, or whole lines of it and word of where to go on (RT-17).

    The parts that the words lead through make the exact text again. Of a line that is longer than an answer comes a
    part; `start_character` is where in the first line to begin.
    """
    if start == 1 and start_character == 1 and most_lines is None and len(text) <= most_characters:
        return _result(text)
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1] and len(lines) > 1:
        lines.pop()
    count = len(lines)
    if start > count:
        return failure(f"{path} has {count} lines; give a start_line up to {count}")
    first = lines[start - 1][start_character - 1 :]
    if len(first.removesuffix("\n")) > most_characters:
        cut = start_character + most_characters
        note = f"characters {start_character} to {cut - 1} of line {start} of {count} of {path}"
        note += f"; line {start} is cut after {most_characters} characters"
        go_on = f"go on with start_line={start}, start_character={cut}"
        return _result(first[:most_characters], more=[{"type": "text", "text": f"[{note}; {go_on}]"}])
    last = min(count, start - 1 + most_lines) if most_lines is not None else count
    part, end = [first], start
    size = len(first)
    while end < last and size + len(lines[end].removesuffix("\n")) <= most_characters:
        part.append(lines[end])
        size += len(lines[end])
        end += 1
    note = f"lines {start} to {end} of {count} of {path}"
    if end < count:
        note += f"; go on with start_line={end + 1}"
    return _result("".join(part), more=[{"type": "text", "text": f"[{note}]"}])


def binary_file(path: str, target: str | None, raw: bytes, most_bytes: int) -> Result:
    """The answer of reading any other file: a picture or sound as such, for the rest a link to the resource (RT-17).

    `target` is its URI, None where `resources/read` does not serve it.
    """
    kind = media.media_type(path) or "application/octet-stream"
    shown = "image" if kind in _IMAGES else "audio" if kind.startswith("audio/") else None
    if shown and len(raw) <= most_bytes:
        block: Json = {"type": shown, "data": b64encode(raw).decode("ascii"), "mimeType": kind}
        return {"content": [block]}
    said = f"{path} is no text ({kind}, {len(raw)} bytes)"
    if target is None:
        return _result(f"{said}, and cannot be shown here.")
    link: Json = {"type": "resource_link", "uri": target, "name": path, "mimeType": kind, "size": len(raw)}
    return _result(f"{said}. It can be fetched as the resource {target}.", more=[link])


def in_workspace(path: str) -> str | None:
    """What follows `/workspace/`, for a file that a script left; None for a file of a skill."""
    return path.removeprefix(WORKSPACE) if path.startswith(WORKSPACE) else None


def made_file(path: str, raw: bytes, most_bytes: int) -> Result:
    """The answer of reading a file without text that a script left: a picture or sound, or its bytes in base64."""
    kind = media.media_type(path) or "application/octet-stream"
    if kind in _IMAGES or kind.startswith("audio/") or len(raw) > most_bytes:
        if len(raw) <= most_bytes:
            return binary_file(path, None, raw, most_bytes)
        return failure(
            f"{path} is no text ({kind}, {len(raw):,} bytes), and of such files at most {most_bytes:,} bytes are "
            "returned; let a script make it smaller, or in parts"
        )
    resource: Json = {
        "uri": "workspace://" + quote(path.removeprefix(WORKSPACE.rstrip("/"))),
        "mimeType": kind,
        "blob": b64encode(raw).decode("ascii"),
    }
    return _result(f"{path} is no text ({kind}, {len(raw)} bytes).", more=[{"type": "resource", "resource": resource}])


def outcome(told: Mapping[str, Json]) -> Result:
    """The answer of running a script (RT-19). One that failed is marked as an error too; its exit code says which."""
    code = told["exit_code"]
    ended = "was stopped by the server" if code is None else f"ended with exit code {code}"
    state = "was stopped at the time limit" if told["timed_out"] else ended
    parts = [f"{told['path']} {state} after {told['duration_ms']} ms."]
    for stream in ("stdout", "stderr"):
        cut = " (cut)" if told[f"{stream}_truncated"] else ""
        parts.append(element(stream, {}, str(told[stream])) + cut if told[stream] else f"{stream} is empty.")
    where = f"user {told['user']}" if told.get("user") is not None else "the server's user"
    boxed = "without a sandbox" if told["sandbox"] == "none" else f"in a sandbox ({told['sandbox']})"
    gaps = told.get("sandbox_gaps")
    parts.append(
        f"It ran {boxed}, as {where}."
        + (f" Gaps: {'; '.join(map(str, gaps))}." if isinstance(gaps, list) and gaps else "")
    )
    parts += _left_files(told)
    out = _result("\n".join(parts), {**told})
    return out if code == 0 else {**out, "isError": True}


def _left_files(told: Mapping[str, Json]) -> list[str]:
    files, more = told.get("files"), told.get("files_not_shown")
    if not isinstance(files, list) or not files:
        return []
    names = [str(each["path"]) for each in files if isinstance(each, dict)]
    return [
        f"New or changed files, to be read with {READ}: {', '.join(names)}" + (f" and {more} more." if more else ".")
    ]


def failure(message: str) -> Result:
    """What went wrong, for the model to mend."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _result(text: str, structure: dict[str, Json] | None = None, more: Sequence[Json] = ()) -> Result:
    out: Result = {"content": [{"type": "text", "text": text}, *more]}
    if structure is not None:
        out["structuredContent"] = structure
    return out


def _receipt_entry(loaded: Loaded, with_body: bool) -> Json:
    out: dict[str, Json] = {
        "name": loaded.name,
        "location": loaded.location,
        "root_dir": loaded.root_dir,
        "digest": loaded.digest,
        "properties": dict(loaded.properties),
    }
    if with_body:
        out |= {"instructions": loaded.instructions, "files": [*loaded.files[:_MOST_FILES]]}
        cut = len(loaded.files) - _MOST_FILES
        if cut > 0:
            out["files_not_shown"] = cut  # ASG-28
    if loaded.problems:
        out["problems"] = [*loaded.problems]
    if loaded.origin is not None:
        out["origin"] = loaded.origin
    return out


def _with_files(loaded: Loaded) -> str:
    attributes = {"name": loaded.name, "location": loaded.location, "root_dir": loaded.root_dir}
    attributes |= {} if loaded.origin is None else {"origin": loaded.origin}  # S40-48
    parts = [element("skill", attributes, loaded.instructions)]
    if loaded.files:
        shown = loaded.files[:_MOST_FILES]
        cut = len(loaded.files) - len(shown)
        files = "\n".join((*shown, *([f"({cut} more are not shown)"] if cut else ())))  # ASG-28
        parts.append(element("skill_files", {"skill": loaded.name}, files))
    if loaded.problems:
        parts.append(element("skill_problems", {"skill": loaded.name}, "\n".join(loaded.problems)))
    return "\n".join(parts)


def _listed(shown: Mapping[str, Json]) -> str:
    said = f"- {_one_line(str(shown['name']))}: {_one_line(str(shown['description']))}"
    said += f" [from {shown['origin']}]" if "origin" in shown else ""
    found = shown.get("problems")
    return f"{said} [has problems: {'; '.join(map(str, found))}]" if isinstance(found, list) else said


def _left(count: int, some: bool) -> str:
    more = " more" if some else ""
    verb = "is" if count == 1 else "are"
    return (
        f"{count}{more} skill{'' if count == 1 else 's'} {verb} not shown here: find one for the task with {SEARCH}, "
        f"or go through them with {LIST}."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clip(text: str) -> str:
    return text if len(text) <= _CLIPPED else text[: _CLIPPED - 3].rstrip() + "..."


def scripts_of(skill: Skill) -> Iterator[str]:
    """The paths of the files that can be run (RT-18)."""
    return (path for path in skill.files if path.startswith(SCRIPTS))
