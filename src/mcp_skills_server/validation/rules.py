"""The rules of the Agent Skills specification and our advice, as one table of checks.

`CHECKS` run at every scan: they look at the frontmatter and at plain counts. `DEEP_CHECKS` read the Markdown and
belong to `validate`. Severity, effect and hint of each code stand in `codes.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_skills_server.codes import problem
from mcp_skills_server.format import hidden, icons
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.format.links import references
from mcp_skills_server.model import Json, Problem
from mcp_skills_server.validation import beginning

SPECIFIED_FIELDS: Final = frozenset(("name", "description", "license", "compatibility", "metadata", "allowed-tools"))
HOST_FIELDS: Final = frozenset(("disable-model-invocation", "user-invocable", "argument-hint"))
"""What hosts read at the top level, and this server with them (ASG-22, dialects/prompts.py)."""
_READ_AT_THE_TOP: Final = "leave it there if hosts are to honour it, since below 'metadata:' nobody reads it"
EXTENSION_FIELDS: Final = frozenset(("arguments", "dependencies", "icons", "files"))
_ODD_IN_NAME: Final = re.compile(r"[^a-z0-9-]")
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500
_VAGUE: Final = 20
_MAX_BODY_LINES: Final = 500
_MAX_BODY_CHARACTERS: Final = 20_000  # about 5,000 tokens


@dataclass(frozen=True, slots=True)
class Subject:
    """What the checks look at: a document whose frontmatter could be read, and its directory's name."""

    document: Document
    frontmatter: Mapping[str, Json]
    directory: str
    files: Collection[str] = ()

    def line(self, key: str) -> int | None:
        """The line of a top-level field, or of the opening fence when it is missing."""
        return self.document.lines.get(key, 1)


Check = Callable[[Subject], Iterator[Problem]]


def check(document: Document, directory: str) -> tuple[Problem, ...]:
    """Run the checks of every scan. `directory` is the name that AS-7 compares with."""
    if document.frontmatter is None:
        return ()
    subject = Subject(document, document.frontmatter, directory)
    return tuple(found for run in CHECKS for found in run(subject))


def check_deeply(document: Document, files: Collection[str]) -> tuple[Problem, ...]:
    """Run the checks that read the Markdown. `files` are the paths of the bundle."""
    if document.frontmatter is None:
        return ()
    subject = Subject(document, document.frontmatter, "", files)
    return tuple(found for run in DEEP_CHECKS for found in run(subject))


def _name(subject: Subject) -> Iterator[Problem]:
    name, line = subject.frontmatter.get("name"), subject.line("name")
    if not isinstance(name, str) or not name:
        said = "there is no name" if "name" not in subject.frontmatter else "the name is empty or not text"
        yield problem("name-missing", said, line)
        return
    if len(name) > MAX_NAME:
        yield problem("name-length", f"the name has {len(name)} characters, at most {MAX_NAME} are allowed", line)
    odd = _ODD_IN_NAME.search(name)
    if odd:
        yield problem("name-characters", f"the name holds {odd[0]!r}", line)
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield problem("name-hyphens", f"the name {_short(name)} has a hyphen at an end or two in a row", line)
    if name != subject.directory:
        yield problem(
            "name-mismatch", f"the name is {_short(name)} but the directory is {_short(subject.directory)}", line
        )


def _description(subject: Subject) -> Iterator[Problem]:
    description, line = subject.frontmatter.get("description"), subject.line("description")
    if not isinstance(description, str) or not description.strip():
        said = "there is no description" if "description" not in subject.frontmatter else "the description is empty"
        if description is not None and not isinstance(description, str):
            said = "the description is not text"
        yield problem("description-missing", said, line)
        return
    length = len(description)
    units = length if description.isascii() else len(description.encode("utf-16-le", "surrogatepass")) // 2
    if length > MAX_DESCRIPTION:
        yield problem(
            "description-length",
            f"the description has {length} characters, at most {MAX_DESCRIPTION} are allowed",
            line,
        )
    elif units > MAX_DESCRIPTION:
        yield problem("description-utf16", f"the description has {length} characters but {units} UTF-16 units", line)
    if beginning.is_placeholder(description):
        yield problem("placeholder", "the description is a placeholder", line)
    elif len(description.strip()) < _VAGUE:
        yield problem("description-vague", f"the description has only {len(description.strip())} characters", line)


def _optional_fields(subject: Subject) -> Iterator[Problem]:
    fields = subject.frontmatter
    if "license" in fields and not isinstance(fields["license"], str):
        yield problem("license-type", "the license is not text", subject.line("license"))
    if "compatibility" in fields:
        value = fields["compatibility"]
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_COMPATIBILITY:
            said = (
                f"compatibility has {len(value)} characters" if isinstance(value, str) else "compatibility is not text"
            )
            yield problem("compatibility-length", said, subject.line("compatibility"))
    tools = fields.get("allowed-tools")
    if isinstance(tools, str):
        if "," in re.sub(r"\([^()]*\)", "", tools):
            said = "allowed-tools separates its tools by commas"
            yield problem("allowed-tools-form", said, subject.line("allowed-tools"))
    elif isinstance(tools, list) and all(isinstance(tool, str) for tool in tools):
        yield problem("allowed-tools-form", "allowed-tools is a list", subject.line("allowed-tools"))
    elif "allowed-tools" in fields:
        yield problem("allowed-tools-type", "allowed-tools is not text", subject.line("allowed-tools"))
    for key in fields:
        if key == "hooks":
            yield problem("hooks", "the skill declares hooks", subject.line(key))
        elif key not in SPECIFIED_FIELDS and key not in EXTENSION_FIELDS:
            hint = _READ_AT_THE_TOP if key in HOST_FIELDS else None
            yield problem("field-unknown", f"the specification has no field {_short(key)}", subject.line(key), hint)


def _metadata(subject: Subject) -> Iterator[Problem]:
    if "metadata" not in subject.frontmatter:
        return
    metadata, line = subject.frontmatter["metadata"], subject.line("metadata")
    if not isinstance(metadata, dict):
        yield problem("metadata-type", "metadata is not a mapping", line)
        return
    wrong = [key for key, value in metadata.items() if not isinstance(value, str)]
    for key in wrong[:_MOST_METADATA]:
        where, written = subject.document.metadata.get(key, (line, None))
        said = f"metadata has {_kind(metadata[key])} where text belongs: {_short(key)}"
        yield problem("metadata-type", said, where, f"write {_as_text(key, metadata[key], written)}")
    if len(wrong) > _MOST_METADATA:
        more = len(wrong) - _MOST_METADATA
        yield problem("metadata-type", f"metadata has {more} more values that are not text", line)
    seen: dict[str, str] = {}
    for key in metadata:
        other = seen.setdefault(key.casefold(), key)
        if other != key:
            yield problem("metadata-keys", f"metadata has both {_short(other)} and {_short(key)}", line)


def _kind(value: Json) -> str:
    if value is None:
        return "no value"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (dict, list)):
        return "a list" if isinstance(value, list) else "a mapping"
    return "a number" if isinstance(value, (int, float)) else "text"


def _as_text(key: str, value: Json, written: str | None) -> str:
    """The line of YAML that has this field of `metadata` as text; the words for it where that line would be long.

    `written` is what stands in the file: a version 1.10 is the number 1.1, but the text "1.10".
    """
    if isinstance(value, list) and all(not isinstance(each, (dict, list)) for each in value):
        text = ", ".join(each if isinstance(each, str) else json.dumps(each) for each in value)
    elif isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    else:
        text = "" if value is None else written if written is not None else json.dumps(value)
    plain = _PLAIN_KEY.fullmatch(key) is not None and key.lower() not in _NO_PLAIN_KEYS
    shown = key if plain else json.dumps(key, ensure_ascii=False)
    line = f"{shown}: " + (f"'{text}'" if '"' in text and "'" not in text else json.dumps(text, ensure_ascii=False))
    if len(line) > _LONGEST_LINE or not line.isprintable():
        return f"{_short(key)} as one text in quotes"
    return line


_MOST_METADATA: Final = 10
_LONGEST_LINE: Final = 200
_PLAIN_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+")
_NO_PLAIN_KEYS: Final = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n"))
_SHAPED: Final = EXTENSION_FIELDS | {"title", "version", "tags"}


def _extension_fields(subject: Subject) -> Iterator[Problem]:
    if _SHAPED.isdisjoint(subject.frontmatter):
        return
    for key, said in _misshapen(subject.frontmatter):
        yield problem("field-type", said, subject.line(key))


def _misshapen(fields: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Fields of SEP-2076 that are not of its shape; `dialects/sep2076.py` passes over the same values."""
    for key in ("title", "version"):
        if key in fields and not isinstance(fields[key], str):
            yield key, f"{key} is not text"
    tags = fields.get("tags", [])
    if not isinstance(tags, str) and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        yield "tags", "tags is not a list of texts"
    for key, wanted in (("arguments", "name"), ("icons", "src"), ("files", "path")):
        entries = fields.get(key, [])
        if not isinstance(entries, list):
            yield key, f"{key} is not a list"
            continue
        names: set[str] = set()
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, dict) or not isinstance(entry.get(wanted), str) or not entry[wanted]:
                yield key, f"entry {number} of {key} has no text {wanted!r}"
                continue
            if str(entry[wanted]) in names:
                yield key, f"{key} names {_short(str(entry[wanted]))} twice"
            names.add(str(entry[wanted]))
            for part in ("title", "description", "default", "mimeType"):
                if part in entry and not isinstance(entry[part], str):
                    yield key, f"{part!r} in entry {number} of {key} is not text"
            if "required" in entry and not isinstance(entry["required"], bool):
                yield key, f"'required' in entry {number} of {key} is not true or false"
    dependencies = fields.get("dependencies", {})
    if not isinstance(dependencies, dict):
        yield "dependencies", "dependencies is not a mapping"
        return
    for kind, wanted in (("tools", ""), ("prompts", "name"), ("resources", "uri")):
        entries = dependencies.get(kind, [])
        if not isinstance(entries, list):
            yield "dependencies", f"dependencies.{kind} is not a list"
            continue
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, str) and not (
                wanted and isinstance(entry, dict) and isinstance(entry.get(wanted), str)
            ):
                yield "dependencies", f"entry {number} of dependencies.{kind} has no name"


def _hidden(subject: Subject) -> Iterator[Problem]:
    """Values as they are read: an escape such as "\\U000E0049" shows no reader of the file what it stands for."""
    for key, value in subject.frontmatter.items():
        found = [character for text in (key, *hidden.texts(value)) for _, character in hidden.find(text)]
        if found:
            more = f" ({len(found)} in this field)" if len(found) > 1 else ""
            said = f"{_short(hidden.without(key))} holds the invisible character U+{ord(found[0]):04X}{more}"
            yield problem("hidden-characters", said, subject.line(key))


def _icon_sources(subject: Subject) -> Iterator[Problem]:
    entries = subject.frontmatter.get("icons")
    for number, entry in enumerate(entries if isinstance(entries, list) else [], 1):
        source = entry.get("src") if isinstance(entry, dict) else None
        if isinstance(source, str) and not icons.is_allowed(source):
            yield problem("icon-source", f"icon {number} comes from {_short(source)}", subject.line("icons"))


def _body(subject: Subject) -> Iterator[Problem]:
    body = subject.document.body
    if not body:
        yield problem("body-empty", "there are no instructions", subject.document.body_line)
        return
    lines = body.count("\n") + 1
    if lines > _MAX_BODY_LINES:
        yield problem(
            "body-long", f"the body has {lines} lines, {_MAX_BODY_LINES} are advised", subject.document.body_line
        )
    elif len(body) > _MAX_BODY_CHARACTERS:
        yield problem(
            "body-long",
            f"the body has {len(body)} characters, about {len(body) // 4} tokens; 5,000 are advised",
            subject.document.body_line,
        )


def _placeholders(subject: Subject) -> Iterator[Problem]:
    found = list(beginning.placeholders(subject.document.body))
    if found:
        said = f"{len(found)} lines of the instructions are as `new` wrote them"
        yield problem("placeholder", said, subject.document.body_line + found[0])


def _references(subject: Subject) -> Iterator[Problem]:
    missing: set[str] = set()
    for reference in references(subject.document.body):
        target, line = reference.target, subject.document.body_line + reference.line
        if target in subject.files:
            if target.count("/") > 1 and target not in missing:
                missing.add(target)
                yield problem("reference-deep", f"{_short(target)} lies more than one level below the skill", line)
        elif reference.kind != "code" and target not in missing and not _is_directory(target, subject.files):
            missing.add(target)
            yield problem("reference-missing", f"the body refers to {_short(target)}, which is not in the skill", line)


def _is_directory(target: str, files: Collection[str]) -> bool:
    return any(path.startswith(target + "/") for path in files)


CHECKS: Final[tuple[Check, ...]] = (
    _name,
    _description,
    _optional_fields,
    _metadata,
    _extension_fields,
    _hidden,
    _icon_sources,
    _body,
)
DEEP_CHECKS: Final[tuple[Check, ...]] = (_references, _placeholders)


def _short(text: Any) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
