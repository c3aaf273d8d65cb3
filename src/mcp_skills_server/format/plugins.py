"""Plugins: lenient parsing of their manifests with the line of each fault, and layouts. Pure."""

from __future__ import annotations

import json
import json.scanner
import re
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp_skills_server.codes import CODES, problem
from mcp_skills_server.errors import quoted
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import Json, Problem
from mcp_skills_server.model.decoding import is_too_deep

_NAME: Final = re.compile(r"(?!.*(?:--|\.\.))[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?")
_SERVED_NAME: Final = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,62}[A-Za-z0-9])?", re.ASCII)
"""Names of which Claude Code loads the plugin, and that are one segment of a skill path."""
_BOM: Final = "\ufeff"
_FAULT: Final = "plugin-manifest"


class _Text(str):
    """A string of a manifest, with its 1-based line."""

    line: int


@dataclass(slots=True)
class Layout:
    """Layout of the plugins of a root.

    Attributes:
        folders: plugin name by folder; a folder holds skills directly below it or is a skill, "" is
            the root itself. A folder of two plugins belongs to the first.
        plugins: those of the folders that are a whole plugin: a skill there has the plugin's name.
        manifest: file name of the manifest that decides.
    """

    folders: dict[str, str] = field(default_factory=dict[str, str])
    plugins: set[str] = field(default_factory=set[str])
    manifest: str = "plugin.json"

    def namespace(self, location: str) -> str | None:
        """Return the name of the plugin that has its skill at a root-relative path, or None."""
        if location in self.folders:
            return self.folders[location]
        if not location:
            return None
        return self.folders.get(location.rpartition("/")[0])


def parse(raw: bytes) -> tuple[dict[str, Json], list[Problem]]:
    """Return the members of a manifest, none if it is not a JSON object, and its problems."""
    problems: list[Problem] = []
    line, scanned = 1, 0

    def string(text: str, at: int, strict: bool) -> tuple[str, int]:
        nonlocal line, scanned
        line, scanned = line + text.count("\n", scanned, at), at
        value, end = plain_string(text, at, strict)
        wrapped = _Text(value)
        wrapped.line = line
        return wrapped, end

    def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        known: dict[str, Json] = {}
        for key, value in pairs:
            if key in known:
                text = f"the key {quoted(key)} is there twice, and the later one counts"
                problems.append(problem(_FAULT, text, line_of(value), "keep one of the two"))
            known[key] = value
        return known

    # Python's scanner takes a function for strings; the one in C tells no positions
    decoder: Any = json.JSONDecoder(object_pairs_hook=members)
    plain_string, decoder.parse_string = decoder.parse_string, string
    try:
        text = raw.decode("utf-8")
        decoder.scan_once = cast("Any", json.scanner).py_make_scanner(decoder)
        fields = mapping(decoder.decode(text.removeprefix(_BOM)))
        if is_too_deep(fields):
            raise RecursionError
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return {}, [problem(_FAULT, "it is not UTF-8", line, "save it as UTF-8")]
    except json.JSONDecodeError as error:
        text = f"column {error.colno} is not valid JSON: {error.msg}"
        return {}, [problem(_FAULT, text, error.lineno)]
    except (RecursionError, ValueError):
        return {}, [problem(_FAULT, "it nests too deep, or holds too large a number")]
    if not fields:
        problems.append(problem(_FAULT, "it is not a JSON object, or an empty one", 1))
    if text.startswith(_BOM):
        hint = "save it as UTF-8 without a byte order mark, which hosts refuse"
        problems.append(problem(_FAULT, "it begins with a byte order mark", 1, hint))
    return fields, problems


def is_plugin_name(name: str) -> bool:
    """Tell whether a name has the form that Agent Plugins demand."""
    return bool(_NAME.fullmatch(name))


def name_of(fields: dict[str, Json]) -> tuple[str | None, Problem | None]:
    """Return the name of a plugin, None if no skill can be served under it, and its problem."""
    name, hint = fields.get("name"), CODES["plugin-name"].hint
    if not isinstance(name, str):
        text = "a plugin has no name, and is not served"
        return None, problem(_FAULT, text, line_of(fields), hint)
    if not _SERVED_NAME.fullmatch(name):
        text = f"a plugin has the name {quoted(name)}, and is not served"
        return None, problem(_FAULT, text, line_of(name), hint)
    if is_plugin_name(name):
        return str(name), None
    text = f"the plugin's name {quoted(name)} breaks the format"
    return str(name), problem("plugin-name", text, line_of(name))


def elsewhere(source: Json) -> str:
    """Return the place outside of the marketplace that a plugin's source names, for a message."""
    fields = mapping(source)
    values = [fields[key] for key in ("source", "repo", "url", "package") if key in fields]
    return " ".join(quoted(str(value)) for value in values) or "?"


def line_of(value: Json) -> int | None:
    """Return the line of a value of `parse`, which is that of the first text in it, or None."""
    while isinstance(value, dict | list) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return getattr(value, "line", None)
