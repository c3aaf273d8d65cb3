"""Lint rules for SKILL.md: those of every scan, and the deep ones of `validate`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from types import NoneType
from typing import Final

from mcp_skills_server.codes import problem
from mcp_skills_server.errors import clipped
from mcp_skills_server.format import fields, hidden, identity
from mcp_skills_server.format.arguments import with_mappings
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.format.links import may_link, references
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.model import Json, Problem, printable
from mcp_skills_server.validation import template
from mcp_skills_server.validation.host_fields import GRANTED, HOST_FIELDS
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd

SPECIFIED_FIELDS: Final = frozenset(
    ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
)
EXTENSION_FIELDS: Final = frozenset(("arguments", "dependencies", "icons", "files"))
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500
_MIN_DESCRIPTION: Final = 20
_NAME_PART: Final = re.compile(r"[a-z0-9]++")
_ODD_IN_NAME: Final = re.compile(r"[^a-z0-9-]")
_IN_BRACKETS: Final = re.compile(r"\([^()]*\)")
_BROAD: Final = re.compile(
    r"(?:^|[\s,])(?:Bash|Shell|Terminal)(?:\(\s*+(?:\*\s*+(?::\s*+\*\s*+)?)?\))?(?=$|[\s,])"
)
_SHELL: Final = re.compile(r"(?:```|~~~)(?:ba|z)?sh\b|(?:```|~~~)(?:shell|console|python)")
"""A fence with commands, or with code that needs them."""
_WHEN: Final = re.compile(
    r"\b(?:when(?:ever)?|if|for|before|after|during|while|triggers?|asks?|wants?|needs?"
    r"|used? (?:to|in|by|on|with|as)|use (?:this|it|proactively)|must be used"
    r"|wenn|falls|sobald|für|bei|beim|lorsque?|quand|pour|si|cuando|para|quando|caso|per|se|als|voor"
    r"|wanneer|gdy|jeśli|dla|när|если|когда|при|для|коли|якщо)\b"
    r"|时|時|场合|场景|适用|需要|用于|如果|当|場合|とき|際|ため|때|경우|위해|عند|إذا|जब|लिए|เมื่อ",
    re.IGNORECASE,
)
"""Words in a description that introduce the purpose or the occasion of its skill."""
_LANGUAGE: Final = re.compile(
    r"\b(?:the|and|of|with|from|to|an?|in|und|der|die|das|et|les?|des|y|el|los|del|e|il|di|o|os|da|de|as|um|het|een|к|из|или|что)\b"
    r"|[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3]",
    re.IGNORECASE,
)
"""Words that tell that a description is in a language whose "when" is known."""
_MAX_SHOWN: Final = 10
_MAX_LINE: Final = 200
_PLAIN_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*")
_NO_PLAIN_KEYS: Final = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n"))
_DEPENDENCIES: Final = {"tools": "", "prompts": "name", "resources": "uri", "skills": "name"}
"""Kinds of dependencies, and the key of an entry's name if the entry is a mapping."""
KNOWN_FIELDS: Final = SPECIFIED_FIELDS | EXTENSION_FIELDS | HOST_FIELDS.keys()
_NEAR: Final = 0.8
"""The least similarity of a misspelt field to a known one."""
_KINDS: Final[Mapping[object, str]] = {
    NoneType: "no value",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}
_RESERVED: Final = re.compile(r"claude|anthropic")
_TAG: Final = re.compile(r"</?[A-Za-z][^<>]*+>")
_SCRIPT: Final = re.compile(
    r"(?P<run>\b(?:python3?|bash|sh|node|ruby|perl|pwsh|uv run)\s++)?(?<![\w./$}>*-])(?:\./)?"
    r"(?P<path>\w[\w-]*+/(?:[\w-]++/)*+[\w-]++\.(?:py|sh|mjs|js|ts|rb|pl|ps1))(?![\w*{<-])"
)
_MADE: Final = re.compile(
    r"\b(?:creat|generat|writ|wrote|sav|add|new|output|example|e\.g|such as|your)", re.IGNORECASE
)
"""Words of a line with a path that is not to exist yet."""
_MAX_LINES: Final = 500
_MAX_CHARACTERS: Final = 20_000  # about 5,000 tokens


RULES = Rules[SkillMd]()
"""The rules that every scan checks."""
DEEP_RULES = Rules[SkillMd]()
"""The rules that only `validate` checks."""


def check(document: Document, directory: str) -> list[Problem]:
    """Return the problems that every scan reports in a SKILL.md.

    Args:
        document: the parsed file; unreadable frontmatter gives no problems here.
        directory: the name of its directory, which the skill's name must equal.
    """
    if document.frontmatter is None:
        return []
    return RULES.check(SkillMd(document, document.frontmatter, directory))


def check_deeply(document: Document, files: Collection[str]) -> list[Problem]:
    """Return the problems that only `validate` reports in a SKILL.md of a skill with `files`."""
    if document.frontmatter is None:
        return []
    return DEEP_RULES.check(SkillMd(document, document.frontmatter, "", files))


# The fields that the specification names


@RULES.rule("name-missing")
def _name_missing(skill: SkillMd) -> Iterator[Finding]:
    if "name" not in skill.frontmatter:
        yield skill.at("name", "there is no name")
    elif not skill.name:
        written, hint = skill.document.written.get("name"), None
        if written:
            hint = f'write name: "{clipped(printable(written), MAX_NAME)}"'
        yield skill.at("name", "the name is empty or not text", hint)


@RULES.rule("name-length")
def _name_length(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.name)
    if length > MAX_NAME:
        yield skill.at("name", f"the name has {length} characters, at most {MAX_NAME} are allowed")


@RULES.rule("name-characters")
def _name_characters(skill: SkillMd) -> Iterator[Finding]:
    odd = _ODD_IN_NAME.search(skill.name)
    if odd is not None and not identity.MARKUP.search(skill.name):
        kept = "-".join(_NAME_PART.findall(skill.name.lower()))[:MAX_NAME].rstrip("-")
        hint = f"write name: {kept}, and give its folder the same name" if kept else None
        yield skill.at("name", f"the name holds {odd[0]!r}", hint)


@RULES.rule("name-markup")
def _name_markup(skill: SkillMd) -> Iterator[Finding]:
    match = identity.MARKUP.search(skill.name)
    if match is not None:
        yield skill.at("name", f"the name holds {match[0]!r}")


@RULES.rule("name-hyphens")
def _name_hyphens(skill: SkillMd) -> Iterator[Finding]:
    name = skill.name
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield skill.at("name", f"the name {literal(name)} has a hyphen at an end or two in a row")


@RULES.rule("name-mismatch")
def _name_mismatch(skill: SkillMd) -> Iterator[Finding]:
    if skill.name and skill.name != skill.directory:
        name, directory = literal(skill.name), literal(skill.directory)
        yield skill.at("name", f"the name is {name} but the directory is {directory}")


@RULES.rule("description-missing")
def _description_missing(skill: SkillMd) -> Iterator[Finding]:
    if skill.description:
        return
    hint = None
    if "description" not in skill.frontmatter:
        message = "there is no description"
    elif isinstance(skill.frontmatter["description"], str | None):
        message = "the description is empty"
    else:
        message, hint = "the description is not text", "write it as one text in quotes"
    yield skill.at("description", message, hint)


@RULES.rule("description-length")
def _description_length(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.description)
    if length > MAX_DESCRIPTION:
        message = f"the description has {length} characters, at most {MAX_DESCRIPTION} are allowed"
        yield skill.at("description", message)


@RULES.rule("description-utf16")
def _description_utf16(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.description)
    units = len(skill.description.encode("utf-16-le", "surrogatepass")) // 2
    if length <= MAX_DESCRIPTION < units:
        message = f"the description has {length} characters but {units} UTF-16 units"
        yield skill.at("description", message)


@RULES.rule("placeholder")
def _placeholder(skill: SkillMd) -> Iterator[Finding]:
    if template.is_placeholder(skill.description):
        yield skill.at("description", "the description is a placeholder")


@RULES.rule("description-vague")
def _description_vague(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.description.strip())
    if 0 < length < _MIN_DESCRIPTION and not template.is_placeholder(skill.description):
        yield skill.at("description", f"the description has only {length} characters")


@RULES.rule("license-type")
def _license_type(skill: SkillMd) -> Iterator[Finding]:
    if not isinstance(skill.frontmatter.get("license", ""), str):
        yield skill.at("license", "the license is not text")


@RULES.rule("compatibility-length")
def _compatibility_length(skill: SkillMd) -> Iterator[Finding]:
    value = skill.frontmatter.get("compatibility", "none")
    if not isinstance(value, str):
        yield skill.at("compatibility", "compatibility is not text")
    elif not 1 <= len(value) <= MAX_COMPATIBILITY:
        yield skill.at("compatibility", f"compatibility has {len(value)} characters")


@RULES.rule("allowed-tools-form")
def _allowed_tools_form(skill: SkillMd) -> Iterator[Finding]:
    tools = skill.frontmatter.get("allowed-tools")
    if _is_list_of_texts(tools):
        yield skill.at("allowed-tools", "allowed-tools is a list")
    elif isinstance(tools, str) and "," in _IN_BRACKETS.sub("", tools):
        yield skill.at("allowed-tools", "allowed-tools separates its tools by commas")


@RULES.rule("allowed-tools-type")
def _allowed_tools_type(skill: SkillMd) -> Iterator[Finding]:
    tools = skill.frontmatter.get("allowed-tools", "")
    if not isinstance(tools, str) and not _is_list_of_texts(tools):
        yield skill.at("allowed-tools", "allowed-tools is not text")


def _is_list_of_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@DEEP_RULES.rule("broad-permission")
def _broad_permission(skill: SkillMd) -> Iterator[Finding]:
    tools = skill.frontmatter.get("allowed-tools")
    entries = tools if isinstance(tools, list) else [tools]
    is_broad = any(isinstance(entry, str) and _BROAD.search(entry) for entry in entries)
    has_scripts = any(path.startswith("scripts/") for path in skill.files)
    if is_broad and not has_scripts and not _SHELL.search(skill.document.body):
        message = "allowed-tools allows every shell command, and the text needs none"
        yield skill.at("allowed-tools", message)


@DEEP_RULES.rule("description-when")
def _description_when(skill: SkillMd) -> Iterator[Finding]:
    text = skill.description
    if text and _LANGUAGE.search(text) and not _WHEN.search(text):
        yield skill.at("description", "the description does not say when to use the skill")


@RULES.rule("hooks")
def _hooks(skill: SkillMd) -> Iterator[Finding]:
    if "hooks" in skill.frontmatter:
        yield skill.at("hooks", "the skill declares hooks")


# The values of fields: text in `metadata`, the shapes of extensions, invisible text


@RULES.rule("metadata-type")
def _metadata_type(skill: SkillMd) -> Iterator[Finding]:
    metadata = skill.frontmatter.get("metadata", {})
    line = skill.document.lines.get("metadata", 1)
    if not isinstance(metadata, dict):
        yield Finding("metadata is not a mapping", line)
        return
    wrong = {key: value for key, value in metadata.items() if not isinstance(value, str)}
    for key in list(wrong)[:_MAX_SHOWN]:
        where, written = skill.document.metadata.get(key, (line, None))
        kind = _KINDS.get(type(wrong[key]), "a number")
        message = f"metadata has {kind} where text belongs: {literal(key)}"
        yield Finding(message, where, f"write {as_text(key, wrong[key], written)}")
    if len(wrong) > _MAX_SHOWN:
        yield Finding(f"metadata has {len(wrong) - _MAX_SHOWN} more values that are not text", line)


def as_text(key: str, value: Json, written: str | None) -> str:
    """Return a YAML line that has this `metadata` field as text, or a description of a long line.

    `written` is the text in the file: the version 1.10 is the number 1.1, but the text "1.10".
    """
    if isinstance(value, list) and all(not isinstance(item, (dict, list)) for item in value):
        text = ", ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    elif isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif value is None:
        text = ""
    elif written is None:
        text = json.dumps(value)
    else:
        text = written
    name = key
    if _PLAIN_KEY.fullmatch(key) is None or key.lower() in _NO_PLAIN_KEYS:
        name = json.dumps(key, ensure_ascii=False)
    quoted = json.dumps(text, ensure_ascii=False)
    if '"' in text and "'" not in text:
        quoted = f"'{text}'"
    line = f"{name}: {quoted}"
    if len(line) > _MAX_LINE or not line.isprintable():
        return f"{literal(key)} as one text in quotes"
    return line


@RULES.rule("metadata-keys")
def _metadata_keys(skill: SkillMd) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for key in fields.mapping(skill.frontmatter.get("metadata")):
        other = seen.setdefault(key.casefold(), key)
        if other != key:
            yield skill.at("metadata", f"metadata has both {literal(other)} and {literal(key)}")


def near_field(key: str) -> str:
    """Return the known field that a key may be a misspelling of; "" if there is none."""
    names = {name.replace("_", "-"): name for name in sorted(KNOWN_FIELDS)}
    near = nearest(key.replace("_", "-"), names, 1, _NEAR)
    return names[near[0]] if near else ""


@RULES.rule("field-unknown")
def _field_unknown(skill: SkillMd) -> Iterator[Finding]:
    for key, value in skill.frontmatter.items():
        if key in KNOWN_FIELDS:
            continue
        if field := near_field(key):
            hint = f"did you mean {field}?"
        else:
            text = value if isinstance(value, str) else skill.document.written.get(key)
            line = as_text(key, value, text)
            hint = f"write {line} below 'metadata:', since strict validators refuse it here"
        yield skill.at(key, f"the specification has no field {literal(key)}", hint)


@DEEP_RULES.rule("upload-refused")
def _upload_refused(skill: SkillMd) -> Iterator[Finding]:
    refused = (("name", skill.name, _RESERVED), ("description", skill.description, _TAG))
    for key, text, pattern in refused:
        if match := pattern.search(text):
            yield skill.at(key, f"claude.ai refuses {literal(match[0])} in the {key} of a skill")


@DEEP_RULES.rule("field-host")
def _field_host(skill: SkillMd) -> Iterator[Finding]:
    for key in skill.frontmatter:
        if key in HOST_FIELDS and key != "hooks" and not HOST_FIELDS[key].over_mcp:
            yield skill.at(key, f"{HOST_FIELDS[key].hosts} reads {key}; over MCP it has no effect")
    if "allowed-tools" in skill.frontmatter:
        yield skill.at("allowed-tools", f"allowed-tools: over MCP {GRANTED}")


@RULES.rule("field-type")
def _field_type(skill: SkillMd) -> Iterator[Finding]:
    for key, value in skill.frontmatter.items():
        shape = HOST_FIELDS[key].shape if key in HOST_FIELDS else ""
        is_list = _is_list_of_texts(value)
        is_allowed = isinstance(value, str) or (is_list and shape == "text or list")
        if is_allowed or shape not in {"text", "text or list"}:
            continue
        hint = f"write {key} as text in quotes"
        if is_list:
            hint = f'write {key}: "[{", ".join(fields.texts(value))}]"'
        kind = _KINDS.get(type(value), "a number")
        yield skill.at(key, f"{key} is {kind}, and hosts expect text", hint)
    for key, message in _misshapen(skill.frontmatter):
        yield skill.at(key, message)
    for key, harmless in fields.FLAGS.items():
        if not isinstance(skill.frontmatter.get(key, harmless), bool):
            message = f"{key} is neither true nor false, and hides the skill"
            yield skill.at(key, message, "write true or false, without quotes")


def _misshapen(frontmatter: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for values of a wrong type, which `format/fields.py` skips."""
    for key, required in (("arguments", "name"), ("icons", "src"), ("files", "path")):
        entries = frontmatter.get(key, [])
        if key == "arguments":
            entries = with_mappings(entries)
        if not isinstance(entries, list):
            yield key, f"{key} is not a list"
            continue
        names: set[str] = set()
        for number, entry in enumerate(map(fields.mapping, entries), 1):
            name = fields.text(entry.get(required))
            if name is None:
                yield key, f"entry {number} of {key} has no text {required!r}"
                continue
            if name in names:
                yield key, f"{key} names {literal(name)} twice"
            names.add(name)
            for part in ("title", "description", "default", "mimeType"):
                if part in entry and not isinstance(entry[part], str):
                    yield key, f"{part!r} in entry {number} of {key} is not text"
            if "required" in entry and not isinstance(entry["required"], bool):
                yield key, f"'required' in entry {number} of {key} is not true or false"
    # Other forms are of other programs, such as a list of packages.
    dependencies = fields.mapping(frontmatter.get("dependencies"))
    for kind, required in _DEPENDENCIES.items():
        if not isinstance(dependencies.get(kind, []), list):
            yield "dependencies", f"dependencies.{kind} is not a list"
            continue
        for number, entry in enumerate(fields.items(dependencies.get(kind)), 1):
            name = entry if isinstance(entry, str) else fields.mapping(entry).get(required)
            if not isinstance(name, str):
                yield "dependencies", f"entry {number} of dependencies.{kind} has no name"


@RULES.rule("hidden-characters")
def _hidden_characters(skill: SkillMd) -> Iterator[Finding]:
    """Search the parsed values, in which YAML escapes are decoded."""
    for key, value in skill.frontmatter.items():
        texts = (key, *hidden.texts(value))
        # "/": `find` allows a byte order mark at the beginning, where only a file may have one
        hits = [character for text in texts for _, character in hidden.find(f"/{text}")]
        if hits:
            name = literal(hidden.strip(key))
            message = f"{name} holds the invisible character U+{ord(hits[0]):04X}"
            if len(hits) > 1:
                message += f" ({len(hits)} in this field)"
            yield skill.at(key, message)


@RULES.rule("icon-source")
def _icon_source(skill: SkillMd) -> Iterator[Finding]:
    for number, entry in enumerate(fields.items(skill.frontmatter.get("icons")), 1):
        source = fields.mapping(entry).get("src")
        if isinstance(source, str) and not fields.is_allowed_icon(source):
            yield skill.at("icons", f"icon {number} comes from {literal(source)}")


# The body: its length, its references, and placeholders that `new` wrote


@RULES.rule("body-empty")
def _body_empty(skill: SkillMd) -> Iterator[Finding]:
    if not skill.document.body:
        yield Finding("there are no instructions", skill.document.body_line)


@RULES.rule("body-long")
def _body_long(skill: SkillMd) -> Iterator[Finding]:
    body, line = skill.document.body, skill.document.body_line
    lines = body.count("\n") + 1
    if lines > _MAX_LINES:
        yield Finding(f"the body has {lines} lines, {_MAX_LINES} are advised", line)
    elif len(body) > _MAX_CHARACTERS:
        length = f"{len(body)} characters, about {len(body) // 4} tokens"
        yield Finding(f"the body has {length}; 5,000 are advised", line)


@DEEP_RULES.rule("reference-deep")
def _reference_deep(skill: SkillMd) -> Iterator[Finding]:
    for target, line in _targets(skill).items():
        if target in skill.files and target.count("/") > 1:
            yield Finding(f"{literal(target)} lies more than one level below the skill", line)


@DEEP_RULES.rule("reference-missing")
def _reference_missing(skill: SkillMd) -> Iterator[Finding]:
    # Other code spans are ignored: most words in them that look like paths are none.
    targets = _targets(skill, code=False)
    for target, line in (*targets.items(), *_scripts(skill)):
        if not _is_there(target, skill.files):
            message = f"the body refers to {literal(target)}, which is not in the skill"
            yield Finding(message, line, _spelling(target, skill.files))


def check_links(text: str, path: str, files: Collection[str]) -> Iterator[Problem]:
    """Yield the dead links of a Markdown file below references/.

    Models also read a link from the top of the skill, so a target may lie there. A target without
    an extension is mostly a placeholder.
    """
    folder = path.rpartition("/")[0]
    for reference in references(text, folder) if may_link(text) else ():
        written = reference.target.removeprefix(f"{folder}/")
        is_file = reference.kind in ("link", "image") and "." in written
        if is_file and not (_is_there(reference.target, files) or _is_there(written, files)):
            message = f"the text links to {literal(written)}, which is not in the skill"
            hint = _spelling(reference.target, files)
            yield problem("reference-missing", message, reference.line + 1, hint)


def _is_there(target: str, files: Collection[str]) -> bool:
    return target in files or any(path.startswith(target + "/") for path in files)


def _spelling(target: str, files: Collection[str]) -> str | None:
    """Return the hint with the file that a target means by other capitals or slashes, or None."""
    meant = target.replace("\\", "/").casefold()
    return next((f"write {path}" for path in files if path.casefold() == meant), None)


def _scripts(skill: SkillMd) -> Iterator[tuple[str, int]]:
    """Yield the scripts that code names, with their lines: in spans, and in commands of fences.

    Only paths below folders of the skill count: others belong to the user's project.
    """
    body = skill.document.body
    folders = {path.partition("/")[0] for path in skill.files if "/" in path}
    for match in _SCRIPT.finditer(body) if folders else ():
        path = match["path"]
        if path.partition("/")[0] not in folders or path in skill.files:
            continue
        piece = skill.pieces.at(match.start("path"))
        is_named = piece.kind == "span" or (piece.kind == "code" and match["run"])
        number = skill.pieces.line(match.start("path")) - 1
        if is_named and not _MADE.search(skill.pieces.text_of_line(number)):
            yield path, skill.document.body_line + number


@DEEP_RULES.rule("reference-outside")
def _reference_outside(skill: SkillMd) -> Iterator[Finding]:
    for reference in skill.references:
        if reference.kind == "outside":
            target = literal(reference.target)
            message = f"the body refers to {target}, which lies outside of the skill"
            yield Finding(message, skill.document.body_line + reference.line)


def _targets(skill: SkillMd, *, code: bool = True) -> dict[str, int]:
    """Return targets with the lines of their first references; `code` adds those of code spans."""
    lines: dict[str, int] = {}
    for reference in skill.references:
        if reference.kind != "outside" and (code or reference.kind != "code"):
            lines.setdefault(reference.target, skill.document.body_line + reference.line)
    return lines


@DEEP_RULES.rule("placeholder")
def _body_placeholder(skill: SkillMd) -> Iterator[Finding]:
    lines = list(template.placeholders(skill.document.body))
    if lines:
        message = f"{len(lines)} lines of the instructions are unchanged from the template of `new`"
        yield Finding(message, skill.document.body_line + lines[0])
