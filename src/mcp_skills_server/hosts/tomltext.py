"""Format-preserving edits of TOML text: add, change or remove one table of a section.

The text is split into statements: lines are collected until the standard library's parser accepts
them, so this module needs no grammar of its own. A table that cannot be edited line by line (an
inline table) is refused.

tomlkit 0.15 was tried instead. It reorders tables of one name that stand apart, even in a file that
was not edited, and deletes a comment above a table together with the table before it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.model.decoding import load_toml

_LINES: Final = re.compile(r"[^\n]++\n?|\n")
_MAY_CLOSE: Final = re.compile(r"[\]}]|\"\"\"|'''")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BY_HAND: Final = "has a form that cannot be edited here; change it by hand"
_TRIES: Final = 200
"""Most lines that are tried as the end of one value; a file that a person wrote has fewer."""


def read(text: str) -> dict[str, Any]:
    """Return the parsed text.

    Raises:
        UsageError: the text is not TOML.
    """
    try:
        return load_toml(text)
    except ValueError as error:  # also a number that is too long
        raise UsageError(f"not valid TOML: {error}") from None


def lines_of(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line, from 1, of each key: `("source", 0, "from")` in the first `[[source]]`.

    A key may be missing, in an inline table or after a value of too many lines. Its line is that of
    the nearest key or table around it.
    """
    out: dict[tuple[str | int, ...], int] = {}
    tables: dict[tuple[str, ...], int] = {}
    here: tuple[str | int, ...] = ()
    try:
        for statement in _statements(text):
            line = text.count("\n", 0, statement.start) + 1
            if statement.kind == "nothing":
                continue
            if statement.kind == "value":
                path = (*here, *statement.path)
            else:
                if statement.kind == "array":
                    tables[statement.path] = tables.get(statement.path, -1) + 1
                parts: list[str | int] = []
                for end, part in enumerate(statement.path, 1):
                    parts.append(part)
                    if statement.path[:end] in tables:
                        parts.append(tables[statement.path[:end]])
                here = path = tuple(parts)
            for end in range(1, len(path) + 1):
                out.setdefault(path[:end], line)
    except UsageError:  # a value of too many lines: keep the lines of the keys before it
        pass
    return out


def put(text: str, section: str, name: str, value: Mapping[str, object]) -> str:
    """Return the text with these keys set in the table `[section.name]`; its other keys stay."""
    old = read(text).get(section, {}).get(name)
    newline = _newline(text)
    if old is None:
        table = table_of(section, name, value).replace("\n", newline)
        if not text.strip():
            return text + table
        if text.endswith("\n"):
            return f"{text}{newline}{table}"
        return f"{text}{newline * 2}{table.removesuffix(newline)}"
    for key, wanted in reversed(list(value.items())):  # a new key is written right below the header
        if old.get(key) != wanted:
            text = _put_key(text, section, name, key, wanted)
    return text


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _put_key(text: str, section: str, name: str, key: str, value: object) -> str:
    """Return the text with one key set in the table `[section.name]`."""
    statements = list(_statements(text))
    head = _head_of(statements, (section, name))
    line = f"{_key(key)} = {_value(value)}"
    for member in _members(statements, head):
        if member.path == (key,):
            tail = _tail(text[member.start : member.end])
            return text[: member.start] + line + tail + text[member.end :]
    if key in read(text)[section][name]:
        raise UsageError(f"{section}.{name}.{key} {_BY_HAND}")
    newline = _newline(text)
    if text[head.start : head.end].endswith("\n"):
        return text[: head.end] + line + newline + text[head.end :]
    return text[: head.end] + newline + line + text[head.end :]


def drop(text: str, section: str, name: str) -> str:
    """Return the text without `[section.name]`, its subtables and the blank line before it."""
    statements = list(_statements(text))
    _head_of(statements, (section, name))
    closed = text.endswith("\n")
    cuts: list[tuple[int, int]] = []
    for position, statement in enumerate(statements):
        if statement.kind == "table" and statement.path[:2] == (section, name):
            start = statement.start
            before = statements[max(position - 1, 0)]
            if before.kind == "nothing" and not text[before.start : before.end].strip():
                start = before.start
            ends = [statement.end, *(member.end for member in _members(statements, statement))]
            cuts.append((start, ends[-1]))
    for start, end in reversed(cuts):
        text = text[:start] + text[end:]
    if not closed:
        text = text.removesuffix("\n").removesuffix("\r")
    return text


def table_of(section: str, name: str, value: Mapping[str, object]) -> str:
    """Return the TOML text of a table `[section.name]`."""
    members = "".join(f"{_key(key)} = {_value(item)}\n" for key, item in value.items())
    return f"[{_key(section)}.{_key(name)}]\n{members}"


@dataclass(frozen=True, slots=True)
class _Statement:
    """A header, a key with its value, or nothing (a blank line, a comment), and its offsets."""

    kind: str
    path: tuple[str, ...]
    start: int
    end: int


def _statements(text: str) -> Iterator[_Statement]:
    waiting, start, end, tries = "", 0, 0, 0
    for line in _LINES.findall(text):
        if not waiting:
            start = end
        end += len(line)
        if not waiting and line.strip()[:1] in {"", "#"}:
            yield _Statement("nothing", (), start, end)
            continue
        first = not waiting
        waiting += line
        if not first and not _MAY_CLOSE.search(line):
            continue
        try:
            parsed = load_toml(waiting)
        except tomllib.TOMLDecodeError:
            tries += 1
            if tries > _TRIES:
                reason = "a value in it is too long to be edited here; change the file by hand"
                raise UsageError(reason) from None
            continue
        kind = "value"
        if waiting.lstrip().startswith("[["):
            kind = "array"
        elif waiting.lstrip().startswith("["):
            kind = "table"
        yield _Statement(kind, _path(parsed), start, end)
        waiting, tries = "", 0


def _path(parsed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the path of the one key of a statement; of `a = {b = 1}`, too, it is (a, b)."""
    path: list[str] = []
    value: Any = parsed
    while isinstance(value, Mapping) and len(value) == 1:  # pyright: ignore[reportUnknownArgumentType]
        key, value = next(iter(value.items()))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        path.append(str(key))  # pyright: ignore[reportUnknownArgumentType]
    return tuple(path)


def _head_of(statements: list[_Statement], path: tuple[str, ...]) -> _Statement:
    for statement in statements:
        if statement.kind == "table" and statement.path == path:
            return statement
    raise UsageError(f"{'.'.join(path)} {_BY_HAND}")


def _members(statements: list[_Statement], head: _Statement) -> Iterator[_Statement]:
    """Yield the statements of a table's keys, up to the next header."""
    for statement in statements[statements.index(head) + 1 :]:
        if statement.kind in {"table", "array"}:
            return
        if statement.kind == "value":
            yield statement


def _tail(statement: str) -> str:
    """Return the text that follows the value on its last line: blanks, a comment, a line break."""
    # A "#" in a string begins no comment: the text before it does not parse.
    at = statement.find("#", statement.rstrip().rfind("\n") + 1)
    while at >= 0:
        try:
            load_toml(statement[:at])
        except tomllib.TOMLDecodeError:
            at = statement.find("#", at + 1)
        else:
            break
    body = statement[:at] if at >= 0 else statement
    return statement[len(body.rstrip()) :]


def _key(key: str) -> str:
    if _BARE.fullmatch(key):
        return key
    return _value(key)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    # A JSON string is a TOML string, except that TOML wants this character escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
