"""Parser of SKILL.md: splits the bytes into frontmatter and body, and reports every Problem.

A fence is a line of `---`; blanks may follow it, as after YAML's own markers. `yaml_reader.py`
reads the lines between the fences.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_skills_server.codes import problem
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.format.fields import FLAGS
from mcp_skills_server.model import Json, Problem

if TYPE_CHECKING:
    from mcp_skills_server.format.yaml_reader import YamlReader

_FENCE: Final = "---"
_OPENING: Final = re.compile(r"---[ \t]*+(?:\n|\Z)")
# The search starts on the opening fence's own line break, so that an empty frontmatter is found
# too.
_CLOSING: Final = re.compile(r"\n---[ \t]*+(?:\n|\Z)")
_LINK: Final = re.compile(r"[\w./-]{1,200}/SKILL\.md\s*+")
_BLANK_LINES: Final = re.compile(r"(?:[ \t]*+\n)*+")
_MAX_FIX: Final = 1200
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9_-]*+):[ \t]++([^\s].*+)")
_KEY: Final = re.compile(r"""["']?[A-Za-z][^:\n]*+:(?=[ \t]|\Z)""")
"""The beginning of a field's first line."""
_INDENTED_FIELD: Final = re.compile(r"[ \t]*+\t|[ \t]++[a-z][a-z_-]*+:[ \t]")
_MAX_REPAIRS: Final = 32
"""The maximum number of repaired fields: each costs a parse."""
_REQUIRED: Final = frozenset(("name", "description"))
_COLON: Final = re.compile(r":(?=[ \t]|\Z)")
_REASONS: Final = {
    "'": "an apostrophe ends a value in '...'",
    '"': "nothing may follow the closing quote, and a backslash begins an escape",
    ">": "'>' stands alone on its line, and the text begins on the next line",
    "|": "'|' stands alone on its line, and the text begins on the next line",
}
"""Reasons why a value is not the text that its author meant, by its first character."""
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
    elif _LINK.fullmatch(text):
        message = f"the file holds the path {literal(text.strip())}: a link that git wrote as text"
        hint = "copy the file there, or have git write links ('git config core.symlinks true')"
    elif text.lstrip()[:1] in ("<", "#") and _OPENING.search(text):
        line = literal(text.strip().partition("\n")[0])
        message, hint = f"{line} precedes the first '---'", "move it below the frontmatter"
    return _failed("frontmatter-missing", message, 1, hint)


def _no_closing(text: str) -> Document:
    for number, line in enumerate(text.split("\n"), 1):
        if number > 1 and line.strip() == _FENCE:
            message = "the closing '---' has blanks before it"
            return _failed("frontmatter-unclosed", message, number, "remove the blanks")
    message = "the frontmatter that begins on line 1 never ends"
    return _failed("frontmatter-unclosed", message, 1)


def _read(text: str) -> tuple[YamlReader, dict[str, Json] | None]:
    """Read the fields. One with a syntax error is quoted or ignored, and the others are read."""
    # Imported here: importing YAML takes as long as reading many files.
    from mcp_skills_server.format.yaml_reader import YamlReader

    reader = rest = YamlReader(text)
    fields = reader.read()
    lines = text.split("\n")
    repairs: dict[int, Problem] = {}
    start = 0
    while (error := _syntax_error(rest)) is not None:
        if not rest.field_line or len(repairs) == _MAX_REPAIRS:
            return reader, None
        # `rest` begins at `lines[start]` and numbers its first line 2, as all frontmatter
        line = start + (error.line or rest.field_line)
        start += rest.field_line - 2
        is_first = start not in repairs  # a field that quotes did not repair is left out
        repair = _repair(lines, start, rest.field, error._replace(line=line), is_first=is_first)
        if repair is None:
            advised = _quoted_field(lines[start : _field_end(lines, start)], start + 2, error)
            if _syntax_error(reader) is error:
                reader.problems[reader.problems.index(error)] = advised
            return reader, None
        repairs[start] = repair
        rest = YamlReader("\n".join(lines[start:]))  # not what precedes, again and again
        rest.read()
    if not repairs:
        return reader, fields
    repaired = YamlReader("\n".join(lines))
    fields = repaired.read()
    if fields is None:
        return reader, None
    repaired.problems.extend(repairs.values())
    return repaired, fields


def _syntax_error(reader: YamlReader) -> Problem | None:
    return next((problem for problem in reader.problems if problem.code == "yaml-syntax"), None)


def _repair(
    lines: list[str], start: int, key: str, error: Problem, *, is_first: bool
) -> Problem | None:
    """Quote a field's value that holds a colon, or else ignore the field.

    Returns:
        what was wrong; None if the field cannot be repaired, and name and description never go.
    """
    if not _KEY.match(lines[start]):
        return None
    end = _field_end(lines, start)
    written = _quoted_colon(lines[start:end])
    if written is not None and is_first:
        lines[start] = written
        hint = f"write {written}"
        if len(written) > _MAX_FIX or not written.isprintable():
            hint = f"put the value of {key} in single quotes"
        message = f"the value of {key} holds a colon but is not quoted: "
        message += "other readers refuse the skill"
        return problem("yaml-colon", message, start + 2, hint)
    if key in _REQUIRED:
        return None
    error = _quoted_field(lines[start:end], start + 2, error)
    lines[start:end] = ["#"] * (end - start)  # the other fields keep their lines
    if key in FLAGS:
        lines[start] = f"{key}:"  # given, without a value that can be read: the skill stays hidden
    message = f"the field {literal(key)} is ignored: {error.message}"
    return problem("yaml-field", message, min(error.line or 0, end + 1), error.hint)


def _field_end(lines: Sequence[str], start: int) -> int:
    """Return the index after the last line of the field that begins at `start`."""
    following = range(start + 1, len(lines))
    return next((number for number in following if _KEY.match(lines[number])), len(lines))


def _quoted_field(lines: Sequence[str], line: int, error: Problem) -> Problem:
    """Return the error with the line to write as its hint, if quotes repair it.

    The field begins at this 1-based line of the file.
    """
    from mcp_skills_server.format.yaml_reader import YamlReader

    field = _FIELD.fullmatch(lines[0])
    if field is None or any(_INDENTED_FIELD.match(below) for below in lines[1:]):
        return error
    value = " ".join(" ".join((field[2], *lines[1:])).split())
    sign = value[0]
    reason = _REASONS.get(sign, f"a value that begins with {sign!r} needs quotes")
    if sign in "'\"":
        is_open = value.find(sign, 1) < 0
        if is_open:
            reason = f"the quote {sign} is never closed"
        if is_open or value.endswith(sign):
            value = value[1:].removesuffix(sign)
    elif sign in ">|":
        value = value.lstrip(">|+- ")
    elif sign not in _NOT_PLAIN:
        reason = f"the value of line {line} has ': ' or goes on below, and needs quotes"
    quoted = f'"{value}"'
    if '"' in value or "\\" in value:
        quoted = "'" + value.replace("'", "''") + "'"
    written, hint = f"{field[1]}: {quoted}", "put the value in quotes, on one line"
    if len(written) <= _MAX_FIX and written.isprintable():
        if YamlReader(written).read() is None:
            return error
        hint = f"write {written}"
    return error._replace(message=f"not valid YAML: {reason}", hint=hint)


def _quoted_colon(lines: Sequence[str]) -> str | None:
    """Return the line of a field with quotes around its plain value, if that holds a colon.

    An unquoted colon before a blank is invalid YAML, and the most frequent mistake of authors.
    Its meaning is clear if the value stands on one line, begins like text, and holds nothing like
    a comment. None means that it has no colon, or that its meaning is unclear.
    """
    field = _FIELD.fullmatch(lines[0])
    if field is None or any(line.strip() and line[0] in " \t-" for line in lines[1:]):
        return None
    value = field[2].rstrip()
    if value[0] in _NOT_PLAIN or " #" in value or "\t#" in value or not _COLON.search(value):
        return None
    text = value.replace("'", "''")
    return f"{field[1]}: '{text}'"
