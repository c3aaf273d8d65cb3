"""Rules that read the values of frontmatter fields: text in `metadata`, the shapes of extensions, invisible text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from mcp_skills_server.format import fields, hidden
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.model import Json
from mcp_skills_server.validation.fields import EXTENSION_FIELDS, HOST_FIELDS, SPECIFIED_FIELDS
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd

_MAX_SHOWN: Final = 10
_LONGEST_LINE: Final = 200
_PLAIN_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*")
_NO_PLAIN_KEYS: Final = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n"))
_KNOWN_FIELDS: Final = SPECIFIED_FIELDS | EXTENSION_FIELDS | {"hooks"}
_READ_AT_THE_TOP: Final = "leave it there if hosts are to honour it, since below 'metadata:' no host reads it"

RULES = Rules[SkillMd]()


@RULES.rule("metadata-type")
def _metadata_type(skill: SkillMd) -> Iterator[Finding]:
    metadata, line = skill.frontmatter.get("metadata", {}), skill.line("metadata")
    if not isinstance(metadata, dict):
        yield Finding("metadata is not a mapping", line)
        return
    wrong = {key: value for key, value in metadata.items() if not isinstance(value, str)}
    for key in list(wrong)[:_MAX_SHOWN]:
        where, written = skill.document.metadata.get(key, (line, None))
        message = f"metadata has {_kind(wrong[key])} where text belongs: {literal(key)}"
        yield Finding(message, where, f"write {_as_text(key, wrong[key], written)}")
    if len(wrong) > _MAX_SHOWN:
        yield Finding(f"metadata has {len(wrong) - _MAX_SHOWN} more values that are not text", line)


def _kind(value: Json) -> str:
    match value:
        case None:
            return "no value"
        case bool():
            return "true or false"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "a number"


def _as_text(key: str, value: Json, written: str | None) -> str:
    """Return the line of YAML that has this field below `metadata` as text; the words for it where that line would be
    long.

    `written` is what stands in the file: a version 1.10 is the number 1.1, but the text "1.10".
    """
    if isinstance(value, list) and all(not isinstance(each, (dict, list)) for each in value):
        text = ", ".join(each if isinstance(each, str) else json.dumps(each) for each in value)
    elif isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif value is None:
        text = ""
    else:
        text = json.dumps(value) if written is None else written
    plain = _PLAIN_KEY.fullmatch(key) is not None and key.lower() not in _NO_PLAIN_KEYS
    shown = key if plain else json.dumps(key, ensure_ascii=False)
    line = f"{shown}: " + (f"'{text}'" if '"' in text and "'" not in text else json.dumps(text, ensure_ascii=False))
    if len(line) > _LONGEST_LINE or not line.isprintable():
        return f"{literal(key)} as one text in quotes"
    return line


@RULES.rule("metadata-keys")
def _metadata_keys(skill: SkillMd) -> Iterator[Finding]:
    metadata = skill.frontmatter.get("metadata")
    seen: dict[str, str] = {}
    for key in metadata if isinstance(metadata, dict) else ():
        other = seen.setdefault(key.casefold(), key)
        if other != key:
            yield Finding(f"metadata has both {literal(other)} and {literal(key)}", skill.line("metadata"))


@RULES.rule("field-unknown")
def _field_unknown(skill: SkillMd) -> Iterator[Finding]:
    for key, value in skill.frontmatter.items():
        if key in _KNOWN_FIELDS:
            continue
        hint = _READ_AT_THE_TOP
        if key not in HOST_FIELDS:
            text = value if isinstance(value, str) else skill.document.written.get(key)
            hint = f"write {_as_text(key, value, text)} below 'metadata:', since strict validators refuse it here"
        yield Finding(f"the specification has no field {literal(key)}", skill.line(key), hint)


@RULES.rule("field-type")
def _field_type(skill: SkillMd) -> Iterator[Finding]:
    return (Finding(message, skill.line(key)) for key, message in _misshapen(skill.frontmatter))


def _misshapen(fields: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield the fields that are not of their extension's shape; `format/fields.py` passes over the same values."""
    for key, required in (("arguments", "name"), ("icons", "src"), ("files", "path")):
        entries = fields.get(key, [])
        if not isinstance(entries, list):
            yield key, f"{key} is not a list"
            continue
        names: set[str] = set()
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, dict) or not isinstance(entry.get(required), str) or not entry[required]:
                yield key, f"entry {number} of {key} has no text {required!r}"
                continue
            if str(entry[required]) in names:
                yield key, f"{key} names {literal(str(entry[required]))} twice"
            names.add(str(entry[required]))
            for part in ("title", "description", "default", "mimeType"):
                if part in entry and not isinstance(entry[part], str):
                    yield key, f"{part!r} in entry {number} of {key} is not text"
            if "required" in entry and not isinstance(entry["required"], bool):
                yield key, f"'required' in entry {number} of {key} is not true or false"
    dependencies = fields.get("dependencies", {})
    if not isinstance(dependencies, dict):
        yield "dependencies", "dependencies is not a mapping"
        return
    for kind, required in (("tools", ""), ("prompts", "name"), ("resources", "uri"), ("skills", "name")):
        entries = dependencies.get(kind, [])
        if not isinstance(entries, list):
            yield "dependencies", f"dependencies.{kind} is not a list"
            continue
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, str) and not (
                required and isinstance(entry, dict) and isinstance(entry.get(required), str)
            ):
                yield "dependencies", f"entry {number} of dependencies.{kind} has no name"


@RULES.rule("hidden-characters")
def _hidden_characters(skill: SkillMd) -> Iterator[Finding]:
    """Find them in values as they are read: a reader of the file does not see what an escape stands for."""
    for key, value in skill.frontmatter.items():
        found = [character for text in (key, *hidden.texts(value)) for _, character in hidden.find(text)]
        if found:
            more = f" ({len(found)} in this field)" if len(found) > 1 else ""
            message = f"{literal(hidden.without(key))} holds the invisible character U+{ord(found[0]):04X}{more}"
            yield Finding(message, skill.line(key))


@RULES.rule("icon-source")
def _icon_source(skill: SkillMd) -> Iterator[Finding]:
    entries = skill.frontmatter.get("icons")
    for number, entry in enumerate(entries if isinstance(entries, list) else (), 1):
        source = entry.get("src") if isinstance(entry, dict) else None
        if isinstance(source, str) and not fields.is_allowed_icon(source):
            yield Finding(f"icon {number} comes from {literal(source)}", skill.line("icons"))
