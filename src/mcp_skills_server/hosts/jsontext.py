"""Edits of JSON as text: one member comes, changes or goes, and every other character stays what it was.

Comments and trailing commas are blanked out for the parser, character by character, so that what it finds has the same
place in the text. Nothing is ever written from a parsed document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts.table import Form

_STRING: Final = r'"(?:[^"\\]++|\\.)*+(?:"|\Z)'
_COMMENTS: Final = re.compile(_STRING + r"|//[^\r\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING: Final = re.compile(_STRING + r"|,(?=[ \t\r\n]*[}\]])", re.DOTALL)
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_INDENT: Final = re.compile(r"[ \t]*")
_NOT_A_BREAK: Final = re.compile(r"[^\r\n]")
_REST_OF_LINE: Final = re.compile(r"(?>(?:[ \t]|/\*(?>[^\r\n]*?\*/))*)(?://[^\r\n]*)?(?=[\r\n])")
_EMPTY_TO_BREAK: Final = re.compile(r"[ \t]*(?=[\r\n]|\Z)")


def read(text: str, form: Form) -> dict[str, Any]:
    """Return what the text says. A blank text is an empty object, since hosts leave such files behind.

    Raises:
        UsageError: it is not JSON of this form, or not an object.
    """
    return _parse(_blanked(text, form)[0]) if text.strip() else {}


def put(text: str, path: Sequence[str], value: object, form: Form) -> str:
    """The text with `value` at `path`. Of an object that is there, only the members that `value` names change."""
    document = _JsonText(text if text.strip() else "{}\n", form)
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
        if isinstance(old, dict) and isinstance(value, dict):
            edited, parts = document.text, cast("dict[str, object]", value)
            for part, wanted in parts.items():
                edited = put(edited, (*path, part), wanted, form)
            return edited
        return document.text if old == value else document.replace(inside, member, value)
    return document.text


def drop(text: str, path: Sequence[str], form: Form) -> str:
    """Return the text without the member at `path`, which must be there."""
    document = _JsonText(text, form)
    inside = document.at(0)
    for key in path[:-1]:
        member = inside.find(key)
        if member is None:
            return text
        inside = document.object_of(member)
    return document.remove(inside, path[-1])


def dump(value: object, indent: str | None = "  ") -> str:
    """Return the value as this program writes JSON."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _parse(plain: str) -> dict[str, Any]:
    try:
        value = json.loads(plain, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"not valid JSON at line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise UsageError("not usable JSON: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("the file holds no JSON object")
    return cast("dict[str, Any]", value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _blanked(text: str, form: Form) -> tuple[str, list[int]]:
    """Return the text with comments and trailing commas as blanks, and where those commas were."""
    commas: list[int] = []
    if form == "json":
        return text, commas

    def comment(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] == '"':
            return token
        if token.startswith("/*") and (len(token) < 4 or not token.endswith("*/")):
            raise UsageError(f"the comment of line {text.count(chr(10), 0, match.start()) + 1} never ends")
        return _NOT_A_BREAK.sub(" ", token)

    def comma(match: re.Match[str]) -> str:
        before = match.start() - 1
        while before >= 0 and plain[before] in " \t\r\n":
            before -= 1
        # A comma behind no value trails nothing, and the parser is to complain of it.
        if match[0] != "," or before < 0 or plain[before] in "{[,:":
            return match[0]
        commas.append(match.start())
        return " "

    plain = _COMMENTS.sub(comment, text)
    return (plain if form == "json-comments" else _TRAILING.sub(comma, plain)), commas


@dataclass(frozen=True, slots=True)
class _JsonMember:
    """Where a member stands: its key's quote, its value, the end of that, and a comma after it."""

    key: str
    start: int
    value: int
    end: int
    comma: int | None


@dataclass(frozen=True, slots=True)
class _Inside:
    """An object's braces and its members."""

    opening: int
    closing: int
    members: Sequence[_JsonMember]

    def find(self, key: str) -> _JsonMember | None:
        found = [member for member in self.members if member.key == key]
        if len(found) > 1:
            raise UsageError(f"the key {key!r} stands there twice; keep one of the two")
        return found[0] if found else None


class _JsonText:
    """A text with its places."""

    def __init__(self, text: str, form: Form) -> None:
        self.text = text
        self._plain, self._trailing = _blanked(text, form)
        _parse(self._plain)
        self._decoder = json.JSONDecoder()
        self._root = self.at(0)
        self._break = "\r\n" if "\r\n" in text else "\n"
        first = self._root.members[0] if self._root.members else None
        self._compact = first is not None and not self._own_line(first)
        self._unit = "  "
        if first is not None and self._own_line(first):
            self._unit = self._indent(first.start) or self._unit

    def at(self, place: int) -> _Inside:
        """Return the object that begins at or behind this place."""
        plain, members = self._plain, list[_JsonMember]()
        opening = self._skip(place)
        position = self._skip(opening + 1)
        while plain[position] != "}":
            key, after = self._decoder.raw_decode(plain, position)
            value = self._skip(self._skip(after) + 1)
            _, end = self._decoder.raw_decode(plain, value)
            behind = self._skip(end)
            comma = behind if plain[behind] == "," else None
            if comma is None:
                comma = next((each for each in self._trailing if end <= each < behind), None)
            members.append(_JsonMember(key, position, value, end, comma))
            position = self._skip(behind + 1) if plain[behind] == "," else behind
        return _Inside(opening, position, members)

    def object_of(self, member: _JsonMember) -> _Inside:
        """Return the object that is a member's value."""
        if self._plain[member.value] != "{":
            raise UsageError(f"{member.key!r} is not an object")
        return self.at(member.value)

    def value(self, member: _JsonMember) -> Any:
        """Return a member's value."""
        return self._decoder.raw_decode(self._plain, member.value)[0]

    def insert(self, inside: _Inside, key: str, value: object) -> str:
        """Return the text with a new last member."""
        text, base = self.text, self._indent(inside.opening)
        if not inside.members:
            kept = text[inside.opening + 1 : inside.closing].rstrip(" \t\r\n")
            if self._compact and not kept:
                return f"{text[: inside.opening + 1]}{self._on_one_line(key, value)}{text[inside.closing :]}"
            child = base + self._unit
            new = f"{kept}{self._break}{child}{self._on_lines(key, value, child)}{self._break}{base}"
            return text[: inside.opening + 1] + new + text[inside.closing :]
        first, last = inside.members[0], inside.members[-1]
        if not self._own_line(first):
            comma = "," if self._tight() else ", "
            return f"{text[: last.end]}{comma}{self._on_one_line(key, value)}{text[last.end :]}"
        child = self._indent(first.start)
        after = last.end if last.comma is None else last.comma + 1
        rest = _REST_OF_LINE.match(text, after)
        place = rest.end() if rest else after
        before, behind = (",", "") if last.comma is None else ("", ",")
        new = f"{before}{text[last.end : place]}{self._break}{child}{self._on_lines(key, value, child)}{behind}"
        return text[: last.end] + new + text[place:]

    def replace(self, inside: _Inside, member: _JsonMember, value: object) -> str:
        """Return the text with another value of a member."""
        if self._own_line(inside.members[0]):
            new = dump(value, self._unit).replace("\n", self._break + self._indent(member.start))
        else:
            new = self._one_line(value)
        return self.text[: member.value] + new + self.text[member.end :]

    def remove(self, inside: _Inside, key: str) -> str:
        """Return the text without a member, its comma and, if it had them for itself, its lines."""
        member = inside.find(key)
        if member is None:
            return self.text
        text, start, end = self.text, member.start, member.end
        kept = "" if member.comma is None else text[end : member.comma].strip(" \t\r\n") and text[end : member.comma]
        if member.comma is not None:
            end = member.comma + 1
        blank = start - len(self._indent_before(start))
        rest = _EMPTY_TO_BREAK.match(text, end)
        if kept:
            pass  # a comment stands before the comma
        elif self._own_line(member) and rest:
            start, end = blank - (2 if text[:blank].endswith("\r\n") else 1), rest.end()
        elif member.comma is not None:
            end = self._end_of_blanks(end)
        else:
            start = blank
        before = text[inside.opening + 1 : start]
        place = inside.members.index(member)
        previous = inside.members[place - 1].comma if place else None
        if member.comma is None and previous is not None:
            cut = previous - inside.opening - 1
            before = before[:cut] + before[cut + 1 :]
        left = before + kept + text[end : inside.closing]
        return text[: inside.opening + 1] + (left if left.strip(" \t\r\n") else "") + text[inside.closing :]

    def _skip(self, place: int) -> int:
        match = _BLANKS.match(self._plain, place)
        return match.end() if match else place

    def _end_of_blanks(self, place: int) -> int:
        match = _INDENT.match(self.text, place)
        return match.end() if match else place

    def _own_line(self, member: _JsonMember) -> bool:
        """Tell whether the member is the first on its line."""
        place = member.start - len(self._indent_before(member.start))
        return place > 0 and self.text[place - 1] in "\r\n"

    def _indent_before(self, place: int) -> str:
        start = place
        while start > 0 and self.text[start - 1] in " \t":
            start -= 1
        return self.text[start:place]

    def _indent(self, place: int) -> str:
        """Return the blanks that the line of this place begins with."""
        start = max(self.text.rfind("\n", 0, place), self.text.rfind("\r", 0, place)) + 1
        match = _INDENT.match(self.text, start, place)
        return match[0] if match else ""

    def _tight(self) -> bool:
        """Tell whether a document on one line does without blanks."""
        return bool(self._root.members) and self._plain[self._root.members[0].value - 1] == ":"

    def _on_lines(self, key: str, value: object, indent: str) -> str:
        return f"{dump(key)}: {dump(value, self._unit)}".replace("\n", self._break + indent)

    def _on_one_line(self, key: str, value: object) -> str:
        return self._one_line({key: value})[1:-1]

    def _one_line(self, value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":") if self._tight() else (", ", ": "))
