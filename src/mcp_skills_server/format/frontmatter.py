"""SKILL.md bytes in; frontmatter, body and Problems out.

YAML is read by the 1.2 core schema, because hosts read it in other languages and compare field by field (S40-45):
booleans are true and false only, there are no dates and no base-60 numbers, strings stay verbatim. Fences are whole
lines; blanks may follow them, as after YAML's own markers. Everything wrong in a file is reported at once. Time and
memory are bounded by the size of the input: no recursion beyond `MAX_DEPTH`, no alias expansion beyond `MAX_NODES`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent

from mcp_skills_server.codes import CODES, problem, standing
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import colons
from mcp_skills_server.model import Json, Problem, Standing

# The stubs leave the class out, and PyYAML may have been built without it.
_FAST: Final[Any] = getattr(yaml.cyaml, "CParser", None) if yaml.__with_libyaml__ else None
_PARSER: Final[Any] = _FAST or yaml.SafeLoader
IS_FAST: Final = _FAST is not None
"""False where PyYAML lacks libyaml: the same events, some ten times slower."""

MAX_DEPTH: Final = 24
MAX_NODES: Final = 10_000
MAX_EXPANSION: Final = 1 << 20
MAX_YAML: Final = 1 << 17
MAX_PROBLEMS: Final = 100
_FENCE: Final = "---"
_METADATA: Final = "metadata"
_OPENING: Final = re.compile(r"---[ \t]*+(?:\n|\Z)")
# The search starts on the opening fence's own line break, so that an empty frontmatter is found too.
_CLOSING: Final = re.compile(r"\n---[ \t]*+(?:\n|\Z)")
_BLANK_LINES: Final = re.compile(r"(?:[ \t]*+\n)*+")
_BREAK_IN_1_1: Final = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Document:
    """A SKILL.md taken apart.

    Attributes:
        frontmatter: JSON-safe and verbatim, or None when it could not be read.
        lines: the 1-based line of each top-level field.
        body: what follows the frontmatter: LF line ends, no BOM, no blank lines at either end (ASG-12).
        body_line: the 1-based line on which the body begins.
        problems: all that was found, in file order.
        metadata: of each field of `metadata` its 1-based line and its text as it was written, None for what is no
            single value.
    """

    frontmatter: Mapping[str, Json] | None
    lines: Mapping[str, int]
    body: str
    body_line: int
    problems: tuple[Problem, ...]
    metadata: Mapping[str, tuple[int, str | None]] = field(default_factory=dict[str, tuple[int, "str | None"]])


def parse(raw: bytes) -> Document:
    """Take a SKILL.md apart. Never raises for bad input: what is wrong becomes a Problem (AS-2, S40-13, ASG-12)."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from behind a BOM.
        line = error.object.count(b"\n", 0, error.start) + 1
        return _failed(problem("not-utf8", f"byte 0x{error.object[error.start]:02x} is not UTF-8", line))
    if "\0" in text:
        return _failed(problem("nul-byte", "the file holds a NUL byte", text.count("\n", 0, text.index("\0")) + 1))
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    opening = _OPENING.match(text)
    if opening is None:
        return _failed(_no_opening(text))
    begin = opening.end() - opening[0].endswith("\n")
    closing = _CLOSING.search(text, begin)
    if closing is None:
        return _failed(_no_closing(text))
    builder, frontmatter = _loaded(text[begin + 1 : closing.start() + 1])
    rest = text[closing.end() :]
    blank = _BLANK_LINES.match(rest)
    body = rest[blank.end() :] if blank else rest
    body_line = text.count("\n", 0, closing.start()) + 3 + rest.count("\n", 0, len(rest) - len(body))
    problems = tuple(builder.problems)
    return Document(frontmatter, builder.lines, body.rstrip(), body_line, problems, builder.metadata)


def _failed(found: Problem) -> Document:
    return Document(None, {}, "", 1, (found,))


def _no_opening(text: str) -> Problem:
    if not text.strip():
        return problem("frontmatter-missing", "the file is empty", 1)
    first = text.split("\n", 1)[0]
    if first.strip() == _FENCE:
        return problem("frontmatter-missing", "the first line has blanks before '---'", 1, "remove them")
    if text.lstrip().startswith("---\n"):
        return problem("frontmatter-missing", "blank lines stand before the first '---'", 1, "remove them")
    return problem("frontmatter-missing", "the file does not begin with a line '---'", 1)


def _no_closing(text: str) -> Problem:
    for number, line in enumerate(text.split("\n"), 1):
        if number > 1 and line.strip() == _FENCE:
            return problem(
                "frontmatter-unclosed", "the closing '---' has blanks before it", number, "remove the blanks"
            )
    return problem("frontmatter-unclosed", "the frontmatter that begins on line 1 never ends", 1)


_LONGEST_FIX: Final = 1200


def _loaded(text: str) -> tuple[_Builder, dict[str, Json] | None]:
    """The frontmatter, read once more with quotes where it is no YAML for want of them alone (ASG-13)."""
    builder = _Builder(text)
    frontmatter = _load(builder)
    if frontmatter is not None or not any(each.code == "yaml-syntax" for each in builder.problems):
        return builder, frontmatter
    changed = colons.quoted(text)
    if changed is None:
        return builder, None
    again = _Builder(changed[0])
    read = _load(again)
    if read is None or any(
        read.get(each.key) != each.value or again.lines.get(each.key) != each.line + 2 for each in changed[1]
    ):
        return builder, None
    for each in changed[1]:
        short = len(each.written) <= _LONGEST_FIX and each.written.isprintable()
        hint = f"write {each.written}" if short else f"put the value of {each.key} in single quotes"
        said = f"the value of {each.key} holds a colon and no quotes stand around it: other readers refuse the skill"
        again.problems.append(problem("yaml-colon", said, each.line + 2, hint))
    return again, read


def _load(builder: _Builder) -> dict[str, Json] | None:
    """The frontmatter, None when it cannot be used. What is wrong with it is added to the builder's problems."""
    text = builder.text
    if len(text) > MAX_YAML:
        said = f"the frontmatter has {len(text)} characters, at most {MAX_YAML} are read"
        builder.problems.append(problem("yaml-size", said, 2))
        return None
    odd = _BREAK_IN_1_1.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 2
        said = f"U+{ord(odd[0]):04X} is a line break in YAML 1.1 and none in 1.2"
        builder.problems.append(problem("yaml-ambiguous", said, line, "remove it, or write it as an escape in quotes"))
    try:
        value = builder.document()
        if "\\u" in text or "\\U" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except _RefusedError:
        pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 2 if mark else None
        builder.problems.append(problem("yaml-syntax", _words(error), line, _yaml_mend(error)))
    except yaml.YAMLError as error:  # a character that YAML does not allow
        position = getattr(error, "position", 0)
        character = getattr(error, "character", 0)
        shown = f"U+{character:04X}" if isinstance(character, int) else repr(character)
        line = text.count("\n", 0, position) + 2
        builder.problems.append(
            problem("yaml-syntax", f"YAML does not allow the character {shown}", line, "remove it, or escape it")
        )
    except (ValueError, OverflowError):  # libyaml refuses these escapes itself
        builder.problems.append(problem("yaml-syntax", "an escape stands for no character"))
    else:
        if value is None:
            builder.problems.append(problem("frontmatter-not-mapping", "the frontmatter is empty", 2))
        elif not isinstance(value, dict):
            builder.problems.append(
                problem("frontmatter-not-mapping", f"the frontmatter is {_kind(value)}, not a mapping", 2)
            )
        elif standing(builder.problems) > Standing.UNUSABLE:
            return value
    return None


def _words(error: yaml.MarkedYAMLError) -> str:
    said = " ".join(part for part in (error.context, error.problem) if part)
    return f"not valid YAML: {said}" if said else "not valid YAML"


def _yaml_mend(error: yaml.MarkedYAMLError) -> str | None:
    said = error.problem or ""
    if "mapping values are not allowed" in said:
        return "put the value in quotes, because it holds ': '"
    if "cannot start any token" in said or "tab character" in said:
        return "indent with spaces, not tabs, and quote a value that begins with @, ` or %"
    if "could not find expected ':'" in said or "did not find expected key" in said:
        return "quote values with special characters, and indent continued lines"
    return None


def _kind(value: Json) -> str:
    if isinstance(value, list):
        return "a list"
    return "text" if isinstance(value, str) else "a single value"


_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEAN: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_ENDLESS: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OTHER_IN_1_1: Final = frozenset(word for w in ("yes", "no", "on", "off") for word in (w, w.capitalize(), w.upper()))
_NUMBER_IN_1_1: Final = re.compile(
    r"[-+]?0[0-9_]+"  # octal, or a string where it holds an 8
    r"|0o[0-7]+|[-+]?0b[01_]+"
    r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"  # base 60
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"
    r"|[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][0-9]+|[-+]?[0-9]+[eE][-+][0-9]+"
    r"|[-+]?(?=[0-9.]*_)([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
    r"|[-+]\.[0-9]+([eE][-+]?[0-9]+)?"
    r"|[-+]0x[0-9a-fA-F_]+|0x[0-9a-fA-F]*_[0-9a-fA-F_]*"
)
_MAYBE_SPECIAL: Final = frozenset("-+.0123456789~nNtTfFyYoO<=")
_MAX_INTEGER_DIGITS: Final = 300
_MAX_SAFE_INTEGER: Final = 2**53


class _RefusedError(SkillsServerError):
    """A bound was passed: reading on would only cost time."""


class _Builder:
    """Builds JSON values from the parser's events, with every bound checked before it is passed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._next: Any = None
        self._nodes = 0
        self._expansion = 0
        self._anchors: dict[str, tuple[Json, int, int]] = {}
        self._open: set[str] = set()
        self._field = ""
        self.lines: dict[str, int] = {}
        self.metadata: dict[str, tuple[int, str | None]] = {}
        self.problems: list[Problem] = []

    def document(self) -> Json:
        """The value of the only document, None when there is none."""
        self._next = _PARSER(self.text).get_event
        self._next()
        start: Any = self._next()
        if start.__class__.__name__ == "StreamEndEvent":
            return None
        value = self._value(self._next(), 0)
        self._next()
        after: Any = self._next()
        if after.__class__.__name__ != "StreamEndEvent":
            self._note("yaml-syntax", after, "a second document begins", "keep one document between the fences")
        return value

    def _note(self, code: str, event: Any, message: str, hint: str | None = None) -> None:
        full = len(self.problems) >= MAX_PROBLEMS
        fatal = CODES[code].allows is Standing.UNUSABLE
        if fatal or not full:
            self.problems.append(problem(code, message, event.start_mark.line + 2, hint))
        if fatal and full:
            raise _RefusedError

    def _value(self, event: Any, depth: int) -> Json:
        kind = event.__class__
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._note("yaml-size", event, f"the frontmatter holds more than {MAX_NODES} values")
            raise _RefusedError
        if kind is AliasEvent:
            return self._alias(event, depth)
        if event.tag is not None:
            self._note("yaml-tag", event, f"the tag {event.tag!r} is not allowed")
        anchor: str | None = event.anchor
        nodes, expansion = self._nodes, self._expansion
        if anchor is not None:
            self._open.add(anchor)
        value: Json
        if kind is ScalarEvent:
            text: str = event.value
            self._expansion += len(text)
            value = self._scalar(event) if (event.implicit[0] and text[:1] in _MAYBE_SPECIAL) or not text else text
        elif depth >= MAX_DEPTH:
            self._note("yaml-depth", event, f"values are nested more than {MAX_DEPTH} levels deep")
            raise _RefusedError
        elif kind is MappingStartEvent:
            value = self._mapping(depth)
        else:
            value = self._sequence(depth)
        if anchor is not None:
            self._open.discard(anchor)
            self._anchors[anchor] = (value, self._nodes - nodes + 1, self._expansion - expansion)
        return value

    def _mapping(self, depth: int) -> dict[str, Json]:
        out: dict[str, Json] = {}
        while (event := self._next()).__class__ is not MappingEndEvent:
            key = self._key(event, depth)
            line = event.start_mark.line + 2
            if depth == 0:
                self._field = key
                self.lines.setdefault(key, line)
            if key in out:
                self._note("yaml-duplicate-key", event, f"the key {_short(key)} stands twice")
            value = self._next()
            if depth == 1 and self._field == _METADATA:
                self.metadata.setdefault(key, (line, value.value if value.__class__ is ScalarEvent else None))
            text = value.value if value.__class__ is ScalarEvent and value.tag is value.anchor is None else ""
            if text and text[0] not in _MAYBE_SPECIAL and self._nodes < MAX_NODES:
                # Nearly every value is such a plain text, and this is the hottest line of a scan.
                self._nodes += 1
                self._expansion += len(text)
                out[key] = text
            else:
                out[key] = self._value(value, depth + 1)
        return out

    def _sequence(self, depth: int) -> list[Json]:
        out: list[Json] = []
        while (event := self._next()).__class__ is not SequenceEndEvent:
            out.append(self._value(event, depth + 1))
        return out

    def _key(self, event: Any, depth: int) -> str:
        if event.__class__ is ScalarEvent and event.tag is None and event.anchor is None:
            text: str = event.value
            self._nodes += 1
            self._expansion += len(text)
            if event.implicit[0] and (text[:1] in _MAYBE_SPECIAL or not text):
                if text == "<<":
                    self._note(
                        "yaml-ambiguous", event, "the key << merges mappings in YAML 1.1 and is a plain key here"
                    )
                elif text in _OTHER_IN_1_1 or text in _NULL or text in _BOOLEAN or _NUMBER_KEY.fullmatch(text):
                    self._note("yaml-key", event, f"the key {_short(text)} is not text for every YAML reader")
            return sys.intern(text)  # ten thousand skills have the same dozen keys
        value = self._value(event, depth + 1)
        if event.__class__ is ScalarEvent:
            return str(event.value)
        if isinstance(value, str):
            return value
        self._note("yaml-value", event, "only text can be a key", "use text as the key")
        return ""

    def _alias(self, event: Any, depth: int) -> Json:
        anchor: str = event.anchor
        if anchor in self._open:
            self._note("yaml-alias", event, f"the alias *{anchor} refers to itself")
            return None
        if anchor not in self._anchors:
            self._note("yaml-alias", event, f"the alias *{anchor} has no anchor")
            return None
        value, nodes, expansion = self._anchors[anchor]
        self._nodes += nodes
        self._expansion += expansion
        if self._nodes > MAX_NODES or self._expansion > MAX_EXPANSION:
            self._note("yaml-alias", event, f"aliases expand to more than {MAX_NODES} values")
            raise _RefusedError
        if depth + _height(value) > MAX_DEPTH:
            self._note("yaml-depth", event, f"with aliases, values are nested more than {MAX_DEPTH} levels deep")
            raise _RefusedError
        return value

    def _scalar(self, event: Any) -> Json:
        """A plain scalar by the core schema."""
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in _NULL:
            return None
        if text in _BOOLEAN:
            return _BOOLEAN[text]
        if text in _OTHER_IN_1_1:
            self._note("yaml-ambiguous", event, f"{text} is text here and true or false in YAML 1.1")
            return text
        if text in ("<<", "="):
            self._note("yaml-ambiguous", event, f"{text} is text here and refused by YAML 1.1 readers")
        if _NUMBER_IN_1_1.fullmatch(text):
            self._note("yaml-ambiguous", event, f"{_short(text)} means different things in YAML 1.1 and 1.2")
        if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
            if len(text) > _MAX_INTEGER_DIGITS:
                self._note("yaml-value", event, "the number is too large for JSON")
                return None
            number = int(text, 0) if _BASED.fullmatch(text) else int(text)
            if abs(number) > _MAX_SAFE_INTEGER:
                self._note("yaml-ambiguous", event, f"{text} is too large for a JSON number to be exact")
            return number
        if _FLOAT.fullmatch(text):
            value = float(text)
            if value in (float("inf"), float("-inf")):
                self._note("yaml-value", event, f"{_short(text)} is too large for JSON")
                return None
            return value
        if _ENDLESS.fullmatch(text):
            self._note("yaml-value", event, f"JSON cannot hold {text}")
            return None
        return text


_NUMBER_KEY: Final = re.compile(rf"{_INTEGER.pattern}|{_FLOAT.pattern}|{_BASED.pattern}|{_ENDLESS.pattern}")


def _height(value: Json) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_height, inner), default=0)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
