"""Parser of SKILL.md: splits the bytes into frontmatter and body, and reports every Problem.

A fence is a line of `---`; blanks may follow it, as after YAML's own markers. `yaml_reader.py`
reads the lines between the fences.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_skills_server.codes import problem
from mcp_skills_server.model import Json, Problem

if TYPE_CHECKING:
    from mcp_skills_server.format.yaml_reader import YamlReader

_FENCE: Final = "---"
_OPENING: Final = re.compile(r"---[ \t]*+(?:\n|\Z)")
# The search starts on the opening fence's own line break, so that an empty frontmatter is found
# too.
_CLOSING: Final = re.compile(r"\n---[ \t]*+(?:\n|\Z)")
_BLANK_LINES: Final = re.compile(r"(?:[ \t]*+\n)*+")
_LONGEST_FIX: Final = 1200
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*+):[ \t]++([^\s].*+)")
_COLON: Final = re.compile(r":(?=[ \t]|\Z)")
_NOT_PLAIN: Final = frozenset("\"'[]{}|>&*!%@`#,?-:")
"""First characters of a value that is, or may be, something other than a plain scalar."""


class Document(NamedTuple):
    """A parsed SKILL.md, with its faults in file order. Lines are 1-based."""

    frontmatter: Mapping[str, Json] | None
    """JSON values, verbatim; None if unreadable."""
    lines: Mapping[str, int]
    """Line of each top-level field."""
    body: str
    """The text after the frontmatter: LF line ends, no BOM, no blank lines at either end."""
    body_line: int
    problems: tuple[Problem, ...]
    metadata: Mapping[str, tuple[int, str | None]] = MappingProxyType({})
    """(line, text as written) of each field of `metadata`; None for a list or mapping."""
    written: Mapping[str, str] = MappingProxyType({})
    """Text as written of each top-level scalar."""


def parse(raw: bytes) -> Document:
    """Parse a SKILL.md. Faults of the input become Problems, never exceptions."""
    try:
        text = raw.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        # Offsets do not count the BOM.
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        return _failed("not-utf8", f"byte 0x{byte:02x} is not UTF-8", line)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return _failed("nul-byte", "the file holds a NUL byte", line)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    opening = _OPENING.match(text)
    if opening is None:
        return _no_opening(text)
    begin = opening.end() - opening[0].endswith("\n")
    closing = _CLOSING.search(text, begin)
    if closing is None:
        return _no_closing(text)
    reader, fields = _read(text[begin + 1 : closing.start() + 1])
    blank = _BLANK_LINES.match(text, closing.end())
    body = blank.end() if blank else closing.end()
    # After a fence without a line end, the body begins on a line that the file does not have.
    body_line = text.count("\n", 0, body) + 1 + (not closing[0].endswith("\n"))
    return Document(
        fields,
        reader.lines,
        text[body:].rstrip(),
        body_line,
        tuple(reader.problems),
        reader.metadata,
        reader.written,
    )


def _failed(code: str, message: str, line: int, hint: str | None = None) -> Document:
    return Document(None, {}, "", 1, (problem(code, message, line, hint),))


def _no_opening(text: str) -> Document:
    message, hint = "the file does not begin with a line '---'", None
    if not text.strip():
        message = "the file is empty"
    elif text.partition("\n")[0].strip() == _FENCE:
        message, hint = "the first line has blanks before '---'", "remove them"
    elif text.lstrip().startswith("---\n"):
        message, hint = "blank lines precede the first '---'", "remove them"
    return _failed("frontmatter-missing", message, 1, hint)


def _no_closing(text: str) -> Document:
    for number, line in enumerate(text.split("\n"), 1):
        if number > 1 and line.strip() == _FENCE:
            message = "the closing '---' has blanks before it"
            return _failed("frontmatter-unclosed", message, number, "remove the blanks")
    message = "the frontmatter that begins on line 1 never ends"
    return _failed("frontmatter-unclosed", message, 1)


def _read(text: str) -> tuple[YamlReader, dict[str, Json] | None]:
    """Read the fields; after a syntax error, retry with quotes around values that hold a colon."""
    # Imported here: importing YAML takes as long as reading many files.
    from mcp_skills_server.format.yaml_reader import YamlReader

    reader = YamlReader(text)
    fields = reader.read()
    if fields is not None or not any(each.code == "yaml-syntax" for each in reader.problems):
        return reader, fields
    changed = _quoted_colons(text)
    if changed is None:
        return reader, None
    again = YamlReader(changed[0])
    fields = again.read()
    if fields is None or any(
        fields.get(each.key) != each.value or again.lines.get(each.key) != each.line + 2
        for each in changed[1]
    ):
        return reader, None
    for each in changed[1]:
        hint = f"write {each.written}"
        if len(each.written) > _LONGEST_FIX or not each.written.isprintable():
            hint = f"put the value of {each.key} in single quotes"
        message = f"the value of {each.key} holds a colon but is not quoted: "
        message += "other readers refuse the skill"
        again.problems.append(problem("yaml-colon", message, each.line + 2, hint))
    return again, fields


class _Quoted(NamedTuple):
    """A field that was quoted: its value, its 0-based line in the frontmatter and the new line."""

    key: str
    value: str
    line: int
    written: str


def _quoted_colons(frontmatter: str) -> tuple[str, list[_Quoted]] | None:
    """Return (frontmatter, changes) with each plain value that holds a colon quoted, or None.

    An unquoted colon before a blank is invalid YAML, and the most frequent mistake of authors.
    Its meaning is clear if the value stands on one line of the top level, begins like text, and
    holds nothing like a comment. None means that no value, or an unclear one, holds a colon.
    """
    lines = frontmatter.split("\n")
    found: list[_Quoted] = []
    goes_on = False
    """True if the following non-empty line continues the value on this line."""
    for number, line in reversed([*enumerate(lines)]):
        if not line.strip():
            continue
        field = _FIELD.fullmatch(line)
        value = field[2].rstrip() if field else ""
        if field and value[0] not in _NOT_PLAIN and _COLON.search(value):
            if goes_on or " #" in value or "\t#" in value:
                return None
            text = value.replace("'", "''")
            found.append(_Quoted(field[1], value, number, f"{field[1]}: '{text}'"))
            lines[number] = found[-1].written
        goes_on = line[0] in " \t-"
    if not found:
        return None
    return "\n".join(lines), found[::-1]
