"""Format-preserving edits of JSON text: add, change or remove one member.

Comments and trailing commas are blanked out before parsing, character by character, so that offsets
stay valid in the original text. Nothing is ever serialized from a parsed document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts.table import Form
from mcp_skills_server.model.decoding import load_json

_STRING: Final = r'"(?:[^"\\]++|\\.)*+(?:"|\Z)'
_COMMENTS: Final = re.compile(_STRING + r"|//[^\r\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING: Final = re.compile(_STRING + r"|,(?=[ \t\r\n]*[}\]])", re.DOTALL)
_BLANKS: Final = " \t\r\n"
_NOT_A_BREAK: Final = re.compile(r"[^\r\n]")
_REST_OF_LINE: Final = re.compile(r"(?>(?:[ \t]|/\*(?>[^\r\n]*?\*/))*)(?://[^\r\n]*)?(?=[\r\n])")
_EMPTY_TO_BREAK: Final = re.compile(r"[ \t]*(?=[\r\n]|\Z)")


def read(text: str, form: Form) -> dict[str, Any]:
    """Return the parsed text, or {} for a blank text, which some hosts leave behind.

    Raises:
        UsageError: the text is not JSON of this form, or not an object.
    """
    if not text.strip():
        return {}
    return _parse(_blanked(text, form)[0])


def put(text: str, path: Sequence[str], value: object, form: Form) -> str:
    """Return the text with `value` at `path`; an object there keeps members that `value` lacks."""
    if not text.strip():
        text = "{}\n"
    document = _JsonText(text, form)
    inside = document.at(0)
    for depth, key in enumerate(path):
        member = inside.find(key)
        if member is None:
            for outer in reversed(path[depth + 1 :]):
                value = {outer: value}
            return document.insert(inside, key, value)
        if depth < len(path) - 1:
            inside = document.object_of(member)
            continue
        old = document.value(member)
        if old == value:
            return document.text
        if not isinstance(old, dict) or not _is_object(value):
            return document.replace(inside, member, value)
        text = document.text
        for part, wanted in value.items():
            text = put(text, (*path, part), wanted, form)
    return text


def drop(text: str, path: Sequence[str], form: Form) -> str:
    """Return the text without the member at `path`, if there is one."""
    document = _JsonText(text, form)
    inside = document.at(0)
    for key in path[:-1]:
        member = inside.find(key)
        if member is None:
            return text
        inside = document.object_of(member)
    return document.remove(inside, path[-1])


def dump(value: object, indent: str | None = "  ") -> str:
    """Return a value as JSON text; None for `indent` writes one line."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _parse(plain: str) -> dict[str, Any]:
    try:
        value = load_json(plain)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"not valid JSON at {where}: {error.msg}") from None
    except ValueError as error:
        raise UsageError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("the file is not a JSON object")
    return cast("dict[str, Any]", value)


def _blanked(text: str, form: Form) -> tuple[str, list[int]]:
    """Return the text with comments and trailing commas blanked, and the offsets of the commas."""
    commas: list[int] = []
    if form == "json":
        return text, commas

    def comment(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] == '"':
            return token
        if token.startswith("/*") and (len(token) < 4 or not token.endswith("*/")):
            line = text.count("\n", 0, match.start()) + 1
            raise UsageError(f"the comment of line {line} is not closed")
        return _NOT_A_BREAK.sub(" ", token)

    def comma(match: re.Match[str]) -> str:
        before = plain[: match.start()].rstrip(_BLANKS)[-1:]
        # A comma that follows no value is a syntax error: leave it for the parser to report.
        if match[0] != "," or before in {"", "{", "[", ",", ":"}:
            return match[0]
        commas.append(match.start())
        return " "

    plain = _COMMENTS.sub(comment, text)
    if form == "jsonc":  # "json-comments" has no trailing commas
        plain = _TRAILING.sub(comma, plain)
    return plain, commas


@dataclass(frozen=True, slots=True)
class _JsonMember:
    """Offsets of a member: its key, its value, the end of the value, and the comma after it."""

    key: str
    start: int
    value: int
    end: int
    comma: int | None


@dataclass(frozen=True, slots=True)
class _JsonObject:
    """A JSON object: the offsets of its braces, and its members."""

    opening: int
    closing: int
    members: Sequence[_JsonMember]

    def find(self, key: str) -> _JsonMember | None:
        members = [member for member in self.members if member.key == key]
        if len(members) > 1:
            raise UsageError(f"the key {key!r} occurs twice; keep one of the two")
        return next(iter(members), None)


class _JsonText:
    """A JSON text with edits by offset."""

    def __init__(self, text: str, form: Form) -> None:
        self.text = text
        self._plain, self._trailing = _blanked(text, form)
        _parse(self._plain)
        self._decoder = json.JSONDecoder()
        self._break = "\r\n" if "\r\n" in text else "\n"
        self._unit = "  "
        first = next(iter(self.at(0).members), None)
        if first is not None and self._begins_its_line(first):
            self._unit = self._indent(first.start) or self._unit

    def at(self, offset: int) -> _JsonObject:
        """Return the object that begins at or after `offset`."""
        plain, members = self._plain, list[_JsonMember]()
        opening = _skip(_BLANKS, plain, offset)
        position = _skip(_BLANKS, plain, opening + 1)
        while plain[position] != "}":
            start = position
            key, after = self._decoder.raw_decode(plain, start)
            value = _skip(_BLANKS, plain, _skip(_BLANKS, plain, after) + 1)
            _, end = self._decoder.raw_decode(plain, value)
            position = _skip(_BLANKS, plain, end)
            # a trailing comma is a blank in `plain`
            comma = next((at for at in self._trailing if end <= at < position), None)
            if plain[position] == ",":
                comma, position = position, _skip(_BLANKS, plain, position + 1)
            members.append(_JsonMember(key, start, value, end, comma))
        return _JsonObject(opening, position, members)

    def object_of(self, member: _JsonMember) -> _JsonObject:
        """Return the object that is a member's value."""
        if self._plain[member.value] != "{":
            raise UsageError(f"{member.key!r} is not an object")
        return self.at(member.value)

    def value(self, member: _JsonMember) -> Any:
        """Return a member's value."""
        return self._decoder.raw_decode(self._plain, member.value)[0]

    def insert(self, inside: _JsonObject, key: str, value: object) -> str:
        """Return the text with a new member at the end of an object."""
        text = self.text
        if not inside.members:
            base = self._indent(inside.opening)
            child = base + self._unit
            kept = text[inside.opening + 1 : inside.closing].rstrip(_BLANKS)
            lines = self._on_lines(key, value, child)
            new = f"{kept}{self._break}{child}{lines}{self._break}{base}"
            return text[: inside.opening + 1] + new + text[inside.closing :]
        first, last = inside.members[0], inside.members[-1]
        if not self._begins_its_line(first):
            return f"{text[: last.end]}, {dump({key: value}, None)[1:-1]}{text[last.end :]}"
        child = self._indent(first.start)
        end, comma_before, comma_behind = last.end, ",", ""
        if last.comma is not None:
            end, comma_before, comma_behind = last.comma + 1, "", ","
        if rest := _REST_OF_LINE.match(text, end):
            end = rest.end()
        new = comma_before + text[last.end : end] + self._break + child
        new += self._on_lines(key, value, child) + comma_behind
        return text[: last.end] + new + text[end:]

    def replace(self, inside: _JsonObject, member: _JsonMember, value: object) -> str:
        """Return the text with the value of a member replaced."""
        new = dump(value, None)
        if self._begins_its_line(inside.members[0]):
            new = dump(value, self._unit).replace("\n", self._break + self._indent(member.start))
        return self.text[: member.value] + new + self.text[member.end :]

    def remove(self, inside: _JsonObject, key: str) -> str:
        """Return the text without a member, its comma, and the lines that held nothing else."""
        member = inside.find(key)
        if member is None:
            return self.text
        text, start, end = self.text, member.start, member.end
        comment = ""  # what stands between the value and its comma
        if member.comma is not None:
            comment, end = text[end : member.comma], member.comma + 1
            if not comment.strip(_BLANKS):
                comment = ""
        blanks = self._blanks_before(start)
        line_end = _EMPTY_TO_BREAK.match(text, end)
        if comment:
            pass  # keep the line
        elif self._begins_its_line(member) and line_end:
            # the whole line, with the break before it
            start, end = len(text[:blanks].removesuffix("\n").removesuffix("\r")), line_end.end()
        elif member.comma is not None:
            end = _skip(" \t", text, end)
        else:
            start = blanks
        before = text[inside.opening + 1 : start]
        index = inside.members.index(member)
        if member.comma is None and index:
            # the member before becomes the last: its comma goes
            comma = inside.members[index - 1].comma
            if comma is not None:
                comma -= inside.opening + 1  # its offset in `before`
                before = before[:comma] + before[comma + 1 :]
        content = before + comment + text[end : inside.closing]
        if not content.strip(_BLANKS):
            content = ""
        return text[: inside.opening + 1] + content + text[inside.closing :]

    def _begins_its_line(self, member: _JsonMember) -> bool:
        """Return True if the member is the first on its line."""
        start = self._blanks_before(member.start)
        return start > 0 and self.text[start - 1] in "\r\n"

    def _blanks_before(self, offset: int) -> int:
        """Return where the blanks before `offset` begin, on its line."""
        return len(self.text[:offset].rstrip(" \t"))

    def _indent(self, offset: int) -> str:
        """Return the indentation of the line of `offset`."""
        start = max(self.text.rfind("\n", 0, offset), self.text.rfind("\r", 0, offset)) + 1
        return self.text[start : min(offset, _skip(" \t", self.text, start))]

    def _on_lines(self, key: str, value: object, indent: str) -> str:
        return f"{dump(key)}: {dump(value, self._unit)}".replace("\n", self._break + indent)


def _skip(characters: str, text: str, offset: int) -> int:
    """Return the offset of the first character from `offset` on that is not in `characters`."""
    while offset < len(text) and text[offset] in characters:
        offset += 1
    return offset
