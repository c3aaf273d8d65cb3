"""The frontmatter that nearly every skill has, read without YAML: fields on one line each, and one level of more.

A line is `key: text`, with the text as it stands or in quotes without escapes; a mapping of such lines may stand below
a key. That is a subset of YAML in which every parser reads the same. What is not certainly of this shape is left to
`yaml_reader.py`, which takes four times as long, and is not imported where nothing is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from mcp_skills_server.model import Json

NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
BOOLEAN: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
OTHER_IN_1_1: Final = frozenset(word for w in ("yes", "no", "on", "off") for word in (w, w.capitalize(), w.upper()))
"""What YAML 1.1 takes for true or false, and 1.2 for text."""
METADATA: Final = "metadata"
_WORDS: Final = NULL | BOOLEAN.keys() | OTHER_IN_1_1
_LONGEST: Final = 1 << 13
"""Characters of a text that is read here: the bounds of the YAML reader lie far beyond it."""
_USUAL: Final = frozenset(("name", "description", "license", METADATA, "author", "version", "tags"))
"""Keys that need no look."""
_LONGEST_KEY: Final = 100
_HARMLESS: Final = frozenset("(/$_")
"""Signs besides letters that a text may begin with."""


class Plain(NamedTuple):
    """The content of such a frontmatter; as in `yaml_reader.YamlReader`."""

    fields: dict[str, Json]
    lines: Mapping[str, int]
    metadata: Mapping[str, tuple[int, str | None]]


def read(text: str) -> Plain | None:
    """Return the fields of a frontmatter, None where YAML has to be asked. `text` ends with a line end, and begins on
    line 2.

    Nothing is wrong with what is read here.
    """
    # Printable text has no tab, no other line end and none of the characters that YAML forbids.
    if len(text) > _LONGEST or not text.replace("\n", " ").isprintable():
        return None
    fields: dict[str, Json] = {}
    lines: dict[str, int] = {}
    metadata: dict[str, tuple[int, str | None]] = {}
    into, indent, field = fields, 0, ""
    number = 1
    for line in text[:-1].split("\n"):
        number += 1
        key, colon, written = line.partition(":")
        name = key.lstrip(" ")
        if not colon or (written and written[0] != " ") or (name not in _USUAL and not _is_key(name)):
            return None
        blanks = len(key) - len(name)
        if into is fields:
            if blanks:
                return None
        elif not into:  # the first line of a mapping says how far it is indented
            if not blanks:
                return None
            indent = blanks
        elif not blanks:
            into = fields
        elif blanks != indent:
            return None
        if name in into:
            return None
        name = sys.intern(name)  # ten thousand skills have the same dozen keys
        if into is fields:
            lines[name] = number
            if not written:
                field, into = name, {}
                fields[name] = into
                continue
        value = _value(written.strip(" "))
        if value is None:
            return None
        into[name] = value
        if field == METADATA and into is not fields:
            metadata[name] = number, value
    return Plain(fields, lines, metadata) if fields and into else None


def _is_key(name: str) -> bool:
    """Tell whether this is a word of ASCII letters, digits, underscores and hyphens that begins with none of the
    latter, and that YAML takes for a text.
    """
    is_word = len(name) <= _LONGEST_KEY and name.replace("-", "_").isidentifier() and name.isascii() and name[0] != "-"
    return is_word and name not in _WORDS


def _value(written: str) -> str | None:
    """Return the text that is written so, without blanks around it; None where YAML has to be asked."""
    mark = written[:1]
    if mark in ('"', "'"):
        inner = written[1:-1]
        is_plain = len(written) > 1 and written[-1] == mark and mark not in inner and (mark == "'" or "\\" not in inner)
        return inner if is_plain else None
    if not (mark.isalpha() or mark in _HARMLESS or mark > "\x7f"):
        return None
    if ": " in written or " #" in written or written[-1] == ":" or written in _WORDS:
        return None
    return written
