"""Results of the runtime's tools, as text for a model and as structure for programs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from mcp_skills_server.dialects.runtime.words import (
    LIST,
    PROPOSALS,
    READ,
    SESSION,
    WORKSPACE,
    Loaded,
    ToolResult,
    clipped,
    max_min_limit,
    one_line,
    paragraphs,
    problems,
)
from mcp_skills_server.format import hidden, identity, media
from mcp_skills_server.format.markup import contained, element
from mcp_skills_server.model import SKILL_MD, Json, Skill, printable
from mcp_skills_server.model.clients import UNKNOWN, Shows

RESULT_CHARACTERS: Final = UNKNOWN.result_characters
"""The maximum result size in characters: hosts cut 40,000 in the middle, or move them to a file."""
_MAX_FILES: Final = 200
_ELSEWHERE: Final = (
    "The instructions and files are in active_skills of this result's structured content. If they "
    f"are not shown to you, read each skill's {SKILL_MD} with {READ}."
)
_IMAGES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""Image types that models accept."""


def load_result(
    active: Sequence[Loaded],
    session: str | None,
    fresh: Sequence[Loaded] = (),
    *,
    bodies: bool,
    characters: int = RESULT_CHARACTERS,
    shows: Shows = "text",
    note: str | None = None,
) -> ToolResult:
    """Return the result of loading or unloading: the active skills, and new instructions.

    Args:
        active: the loaded skills, the latest last.
        session: the handle; None if a host binds it.
        bodies: whether to put instructions into the result rather than at the top of the next call.
        characters: the limit of instructions and file lists together. Longer instructions are cut
            after a paragraph, with a hint where to continue.
        shows: whether the client's model sees text or structure. Instructions are only in that
            part, so that no host transfers them twice.
    """
    shown: dict[str, Loaded] = {}
    if bodies:
        shown = {skill.name: skill for skill in _cut(fresh, characters)}
    whole = shown if shows != "text" else ()
    entries = [_loaded_entry(shown.get(skill.name, skill), skill.name in whole) for skill in active]
    structure: dict[str, Json] = {"active_skills": entries}
    names = contained(", ".join(one_line(skill.name) for skill in active)) or "none"
    lines = [f"Active skills: {names}."]
    if len(active) > 1:
        lines[0] += " Where two conflict, the later one applies."
    if session is not None:
        structure = {SESSION: session, **structure}
        lines[0] += f' Session: {session} (give it as "{SESSION}" to the skills tools).'
    if bodies and shows == "structure" and fresh:
        lines.append(_ELSEWHERE)
    elif bodies:
        lines += [_with_files(skill) for skill in shown.values()]
    elif fresh:
        for skill in fresh:
            if skill.problems:
                faults = "; ".join(skill.problems)
                lines.append(contained(f"The skill {one_line(skill.name)} has problems: {faults}"))
        lines.append("Their instructions are at the top from now on.")
    return noted(lines, structure, note, "\n\n")


def change_notice(added: int, removed: int, *, uncounted: bool = False) -> str:
    """Return a notice of changed skills, "or more" if `uncounted`."""
    counts = ((added, "added"), (removed, "removed"))
    shown = " and ".join(f"{count:,} {what}" for count, what in counts if count)
    if uncounted:
        shown += " or more"
    words = "The skills have changed since this session began"
    return f"{words}: {shown}. {LIST} shows the current ones."


def recall_notice(name: str, severity: str, reason: str, replacement: str | None) -> str:
    """Return the notice of a recalled skill that a conversation was given."""
    text = (
        f"RECALLED ({severity}): the skill {one_line(name)}, loaded earlier in this session, is "
        f"withdrawn: {one_line(reason)}. Stop following it, and tell the user."
    )
    if replacement is not None:
        text += f" Load {one_line(replacement)} instead."
    return contained(text)


def unread_notice(sources: Sequence[str]) -> str | None:
    """Return a notice of sources that are still unread, or None."""
    if not sources:
        return None
    once = f"{LIST} shows the skills from there once they have arrived"
    return f"Not read yet: {', '.join(sources)}. {once}."


def depends_on(more: Sequence[str], missing: Sequence[str]) -> str | None:
    """Return a notice of unloaded and of unknown dependencies, or None."""
    words: list[str] = []
    if more:
        words.append(
            "These depend on more skills, to be loaded (mode add) where they are needed: "
            f"{', '.join(more)}."
        )
    if missing:
        names = ", ".join(printable(name)[:100] for name in missing[:20])
        words.append(f"They name unknown skills: {names}.")
    return " ".join(words) or None


def text_file(
    path: str,
    text: str,
    start: int,
    most_lines: int | None,
    most_characters: int,
    *,
    start_character: int = 1,
) -> ToolResult:
    """Return the result of reading a text file: all of it, or whole lines and where to continue.

    The parts concatenate to the exact text. A line that exceeds the limit is split;
    `start_character` is the 1-based position in the first line.
    """
    if start == 1 and start_character == 1 and most_lines is None and len(text) <= most_characters:
        return _part(text)
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
        return _part(first[:most_characters], f"[{note}; {go_on}]")
    last = min(count, start - 1 + (most_lines or count))
    part, end, size = [first], start, len(first)
    while end < last and size + len(lines[end].removesuffix("\n")) <= most_characters:
        part.append(lines[end])
        size += len(lines[end])
        end += 1
    note = f"lines {start} to {end} of {count} of {path}"
    if end < count:
        note += f"; go on with start_line={end + 1}"
    return _part("".join(part), f"[{note}]")


def _part(text: str, *notes: str) -> ToolResult:
    """Return the exact text as a block, with notes in separate blocks."""
    if remark := hidden.hidden_warning(text):
        notes = (*notes, f"[{remark}]")
    return _result(text, more=[{"type": "text", "text": note} for note in notes])


def binary_file(path: str, target: str | None, raw: bytes, most_bytes: int) -> ToolResult:
    """Return the result of reading a binary file: image or audio content, else a resource link.

    `target` is its URI, or None if `resources/read` does not serve the file.
    """
    kind = media.media_type(path) or "application/octet-stream"
    if len(raw) <= most_bytes and _is_shown(kind):
        data = b64encode(raw).decode("ascii")
        block: Json = {"type": kind.partition("/")[0], "data": data, "mimeType": kind}
        # some hosts show only text to their model
        return _result(f"{path} ({kind}, {len(raw):,} bytes)", more=[block])
    text = f"{path} is not a text file ({kind}, {len(raw)} bytes)"
    if target is None:
        return _result(f"{text}, and cannot be shown here.")
    link: Json = {"type": "resource_link", "uri": target, "name": path}
    link |= {"mimeType": kind, "size": len(raw)}
    return _result(f"{text}. It can be fetched as the resource {target}.", more=[link])


def _is_shown(kind: str) -> bool:
    """Return whether hosts pass this media type to a model as image or audio."""
    return kind in _IMAGES or kind.startswith("audio/")


def output_file(path: str, raw: bytes, most_bytes: int) -> ToolResult:
    """Return the result of reading a binary file written by a script: shown, or in base64."""
    kind = media.media_type(path) or "application/octet-stream"
    if len(raw) > most_bytes:
        return failure(
            f"{path} is not a text file ({kind}, {len(raw):,} bytes), and of such files at most "
            f"{most_bytes:,} bytes are returned; let a script make it smaller, or in parts"
        )
    if _is_shown(kind):
        return binary_file(path, None, raw, most_bytes)
    resource: Json = {
        "uri": "workspace://" + quote(path.removeprefix(WORKSPACE.rstrip("/"))),
        "mimeType": kind,
        "blob": b64encode(raw).decode("ascii"),
    }
    return _result(
        f"{path} is not a text file ({kind}, {len(raw)} bytes).",
        more=[{"type": "resource", "resource": resource}],
    )


def script_result(run: Mapping[str, Json]) -> ToolResult:
    """Return the result of a script run, marked as an error unless the exit code is 0."""
    code = run["exit_code"]
    if run["timed_out"]:
        state = "was stopped at the time limit"
    elif code is None:
        state = "was stopped by the server"
    else:
        state = f"ended with exit code {code}"
    parts = [f"{run['path']} {state} after {run['duration_ms']} ms."]
    for stream in ("stdout", "stderr"):
        if not run[stream]:
            parts.append(f"{stream} is empty.")
            continue
        parts.append(element(stream, {}, str(run[stream])))
        if run[f"{stream}_truncated"]:
            parts[-1] += " (cut)"
    where, boxed, gaps = "the server's user", "without a sandbox", run.get("sandbox_gaps")
    if run.get("user") is not None:
        where = f"user {run['user']}"
    if run["sandbox"] != "none":
        boxed = f"in a sandbox ({run['sandbox']})"
    parts.append(f"It ran {boxed}, as {where}.")
    if isinstance(gaps, list) and gaps:
        parts[-1] += f" Gaps: {'; '.join(map(str, gaps))}."
    files, more = run.get("files"), run.get("files_not_shown")
    if isinstance(files, list) and files:
        paths = [str(file["path"]) for file in files if isinstance(file, dict)]
        if more:
            paths[-1] += f" and {more} more"
        parts.append(f"New or changed files, to be read with {READ}: {', '.join(paths)}.")
    out = _result("\n".join(parts), {**run})
    if code != 0:
        out["isError"] = True
    return out


def failure(message: str) -> ToolResult:
    """Return an error result that the model can correct."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def proposal_stored(proposal: dict[str, Json]) -> ToolResult:
    """Return the result of a stored proposal."""
    words = (
        f"Proposal {proposal['id']} for {proposal['name']} waits for a person to decide. Nothing "
        f"has changed yet; tell the user. {PROPOSALS} shows its state."
    )
    return _result(words, proposal)


def proposal_list(proposals: Sequence[dict[str, Json]]) -> ToolResult:
    """Return the result that lists a caller's proposals."""
    lines: list[str] = []
    for proposal in proposals:
        lines.append(f"{proposal['id']} {proposal['name']}: {proposal['state']}")
        if proposal.get("message"):
            lines[-1] += f", {proposal['message']}"
    text = "\n".join(lines) or "You have proposed nothing here."
    return _result(text, {"proposals": [*proposals]})


def _cut(fresh: Sequence[Loaded], characters: int) -> list[Loaded]:
    """Truncate instructions to a common limit if they do not fit, with a hint where to continue."""
    files = sum(len(path) + 4 for skill in fresh for path in skill.files[:_MAX_FILES])
    budget = max(characters - files, characters // 2)
    if sum(len(skill.instructions) for skill in fresh) <= budget:
        return list(fresh)
    most = max_min_limit((len(skill.instructions) for skill in fresh), budget)
    out: list[Loaded] = []
    for skill in fresh:
        whole = skill.instructions
        kept, position = paragraphs(whole, most)
        if position < len(whole):
            line = skill.line + whole.count("\n", 0, position)
            begun = position - whole.rfind("\n", 0, position)
            within = ""
            if begun > 1:
                within = f", start_character={begun}"
            kept += (
                f"\n\n[The first {len(kept)} of {len(whole)} characters. Before you follow them, "
                f'read on: call {READ} with skill="{skill.name}", path="{SKILL_MD}", '
                f"start_line={line}{within}.]"
            )
        out.append(skill._replace(instructions=kept))
    return out


def noted(
    lines: list[str], structure: dict[str, Json], note: str | None, between: str
) -> ToolResult:
    """Return a result of text lines and a structure, with the note added to both."""
    if note is not None:
        lines, structure = [*lines, note], {**structure, "note": note}
    return _result(between.join(lines), structure)


def with_note(result: ToolResult, note: str) -> ToolResult:
    """Add a note to the text of a result, and to its structure if it has one."""
    content = [*result["content"], {"type": "text", "text": note}]
    structure = dict(result.get("structuredContent") or {})
    if not structure:
        return {**result, "content": content}
    structure["note"] = "\n".join(filter(None, (structure.get("note"), note)))
    return {**result, "content": content, "structuredContent": structure}


def _result(
    text: str, structure: dict[str, Json] | None = None, more: Sequence[dict[str, Any]] = ()
) -> ToolResult:
    out: ToolResult = {"content": [{"type": "text", "text": text}, *more]}
    if structure is not None:
        out["structuredContent"] = structure
    return out


def _loaded_entry(loaded: Loaded, with_body: bool) -> Json:
    out: dict[str, Json] = {
        "name": loaded.name,
        "location": loaded.location,
        "root_dir": loaded.root_dir,
        "digest": loaded.digest,
        "properties": dict(loaded.properties),
    }
    if with_body:
        out |= {"instructions": loaded.instructions, "files": [*loaded.files[:_MAX_FILES]]}
        cut = len(loaded.files) - _MAX_FILES
        if cut > 0:
            out["files_not_shown"] = cut  # ASG-28
    if loaded.problems:
        out["problems"] = [*loaded.problems]
    if loaded.origin is not None:
        out["origin"] = loaded.origin
    return out


def _with_files(loaded: Loaded) -> str:
    attributes = {"name": loaded.name, "location": loaded.location, "root_dir": loaded.root_dir}
    if loaded.origin is not None:
        attributes["origin"] = loaded.origin  # S40-48
    parts = [element("skill", attributes, loaded.instructions)]
    if loaded.files:
        # a file name may contain a line break
        shown = [printable(path) for path in loaded.files[:_MAX_FILES]]
        cut = len(loaded.files) - len(shown)
        if cut:
            shown.append(f"({cut} more are not shown)")  # ASG-28
        parts.append(element("skill_files", {"skill": loaded.name}, "\n".join(shown)))
    if loaded.problems:
        parts.append(element("skill_problems", {"skill": loaded.name}, "\n".join(loaded.problems)))
    return "\n".join(parts)


def listing(
    entries: Sequence[Mapping[str, Json]],
    next_after: str | None,
    *,
    characters: int = RESULT_CHARACTERS,
    note: str | None = None,
) -> ToolResult:
    """Return the result of the list or search tool.

    Descriptions that exceed `characters` together are truncated to a common limit. A repeated
    description is replaced by a reference to the first skill that has it.

    Args:
        entries: the result of `entry` for each skill.
        next_after: the cursor of the next page; None on the last page.
        characters: the limit of all descriptions together.
    """
    descriptions = _without_repeats(entries)
    most = max_min_limit(map(len, descriptions), characters)
    shown = [
        {**entry, "description": clipped(description, most)}
        for entry, description in zip(entries, descriptions, strict=True)
    ]
    structure: dict[str, Json] = {"skills": [*shown]}
    lines = [_listed(entry) for entry in shown] or ["No skill matches."]
    if next_after is not None:
        structure["next_after"] = next_after
        lines.append(f'There are more: call {LIST} with after="{next_after}".')
    return noted(lines, structure, note, "\n")


def nothing_fits(near: Sequence[str], tags: Sequence[str] = (), groups: Sequence[str] = ()) -> str:
    """Return advice after a search without a match: nearest names, common tags and folders."""
    advice = [
        f"Try other keywords, in the language of the skills; {LIST} goes through all of them."
    ]
    for what, names in (("Nearest names", near), ("Tags", tags), ("Groups", groups)):
        if names:
            advice.append(f"{what}: {contained(', '.join(map(one_line, names)))}.")
    return " ".join(advice)


def entry(
    name: str,
    skill: Skill,
    location: str,
    *,
    title: str | None = None,
    version: str | None = None,
    tags: Sequence[Json] = (),
) -> dict[str, Json]:
    """Return the entry of a skill in a list or search result, with its problems."""
    description = hidden.strip(skill.description)
    out: dict[str, Json] = {"name": name, "description": description, "location": location}
    more: dict[str, Json] = {
        "title": title,
        "version": version,
        "tags": [*tags],
        "problems": [*problems(skill)],
        "origin": identity.origin(skill),
    }
    return out | {key: value for key, value in more.items() if value}


def _without_repeats(entries: Sequence[Mapping[str, Json]]) -> list[str]:
    """Return the descriptions, each repeat replaced by a reference if that is shorter."""
    first: dict[str, str] = {}
    out: list[str] = []
    for entry in entries:
        description, name = str(entry["description"]), str(entry["name"])
        repeat = f"The same description as {first.setdefault(description, name)}."
        if first[description] != name and len(repeat) < len(description):
            description = repeat
        out.append(description)
    return out


def _listed(shown: Mapping[str, Json]) -> str:
    text = f"- {one_line(str(shown['name']))}"
    if "origin" in shown:
        # Precedes the description, which could forge the same words at its end.
        text += f" [from {shown['origin']}]"
    text += f": {one_line(str(shown['description']))}"
    for key, words, between in (("also_at", "also at", ", "), ("problems", "has problems:", "; ")):
        values = shown.get(key)
        if isinstance(values, list):
            text += f" [{words} {between.join(map(str, values))}]"
    return contained(text)
