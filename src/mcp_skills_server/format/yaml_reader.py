"""Conversion of YAML to JSON values by the core schema of YAML 1.2, in bounded time and memory.

Hosts parse YAML in other languages and compare field by field. So only true and false are booleans,
dates and base-60 numbers are text, and strings stay verbatim. A value that YAML 1.1 reads
differently gets a warning. `MAX_DEPTH` limits the nesting; `MAX_NODES` and `MAX_EXPANSION` limit
the expansion of aliases.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from typing import Any, Final, NamedTuple

import yaml
from yaml import events

from mcp_skills_server.codes import CODES, problem, standing
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.model import Json, Problem, Standing

# The stubs leave the class out, and PyYAML may have been built without it.
_FAST: Final[Any] = getattr(yaml.cyaml, "CParser", None) if yaml.__with_libyaml__ else None
_PARSER: Final[Any] = _FAST or yaml.SafeLoader
IS_FAST: Final = _FAST is not None
"""False if PyYAML lacks libyaml; parsing then gives the same events about ten times slower."""

METADATA: Final = "metadata"
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE: Final = ("true", "True", "TRUE")
_BOOLEAN: Final = frozenset((*_TRUE, "false", "False", "FALSE"))
_OTHER_IN_1_1: Final = frozenset(
    word for w in ("yes", "no", "on", "off") for word in (w, w.capitalize(), w.upper())
)
"""Words that are booleans in YAML 1.1 and text in 1.2."""
_WORD_KEY: Final = _NULL | _BOOLEAN | _OTHER_IN_1_1
_GLUED: Final = re.compile(r"(?m)^([a-z][a-z-]*+):([^ \t\n][^\n]*+)")
"""A field without the blank that YAML demands after a colon."""
_PROSE: Final = ("description", "when_to_use", "argument-hint")
"""Fields whose values are sentences, in which a number sign is text."""
MAX_DEPTH: Final = 24
MAX_NODES: Final = 10_000
MAX_EXPANSION: Final = 1 << 20
MAX_YAML: Final = 1 << 17
MAX_PROBLEMS: Final = 100
_BREAK_IN_1_1: Final = re.compile("[\x85\u2028\u2029]")
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_ENDLESS: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
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
_MAYBE_SPECIAL: Final = frozenset(("", *"-+.0123456789~nNtTfFyYoO<="))
"""First characters of plain scalars that are, or may be, something other than text."""
_MAX_INTEGER_DIGITS: Final = 300
_MAX_SAFE_INTEGER: Final = 2**53


def _message_of(error: yaml.MarkedYAMLError) -> str:
    reason = " ".join(part for part in (error.context, error.problem) if part)
    return f"not valid YAML: {reason}" if reason else "not valid YAML"


def _hint(error: yaml.MarkedYAMLError) -> str | None:
    reason = error.problem or ""
    if "mapping values are not allowed" in reason:
        return "put the value in quotes, because it holds ': '"
    if "cannot start any token" in reason or "tab character" in reason:
        return "indent with spaces, not tabs, and quote a value that begins with @, ` or %"
    if "could not find expected ':'" in reason or "did not find expected key" in reason:
        return "quote values with special characters, and indent continued lines"
    return None


def _kind(value: Json) -> str:
    if value is None:
        return "empty"
    if isinstance(value, list):
        return "a list, not a mapping"
    return "text, not a mapping" if isinstance(value, str) else "a single value, not a mapping"


class _RefusedError(SkillsServerError):
    """Raised to stop reading at an exceeded bound, whose problem is already recorded."""


class _Anchor(NamedTuple):
    """The value of an anchor, and what an alias of it adds to the counts of nodes and expansion."""

    value: Json
    nodes: int
    expansion: int


class YamlReader:
    """Builder of the JSON values of one frontmatter from parser events, within all bounds.

    The text begins on line 2 of the file. `lines`, `metadata` and `written` are those of
    `frontmatter.Document`; there are at most `MAX_PROBLEMS`, and one that ended the reading.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends = [*(end.start() for end in re.finditer("\n", text)), len(text)]
        self._next: Any = None
        self._nodes = 0
        self._expansion = 0
        self._has_comment = " #" in text or "\t#" in text
        self._anchors: dict[str, _Anchor] = {}
        self._open: set[str] = set()  # anchors whose value is being read
        self.field, self.field_line = "", 0
        """The field of the top level that is being read, and its line; 0 outside of fields."""
        self.lines: dict[str, int] = {}
        self.metadata: dict[str, tuple[int, str | None]] = {}
        self.written: dict[str, str] = {}
        self.problems: list[Problem] = []

    def read(self) -> dict[str, Json] | None:
        """Return the mapping, or None if it is unusable, and add its faults to `problems`."""
        text = self._text
        if len(text) > MAX_YAML:
            message = f"the frontmatter has {len(text)} characters, at most {MAX_YAML} are read"
            self._report("yaml-size", message, 2)
            return None
        odd = _BREAK_IN_1_1.search(text)
        if odd:
            message = f"U+{ord(odd[0]):04X} is a line break in YAML 1.1 but not in 1.2"
            hint = "remove it, or write it as an escape in quotes"
            self._report("yaml-ambiguous", message, self._line(odd[0]), hint)
        try:
            value = self._document()
            if "\\u" in text or "\\U" in text:
                json.dumps(value, ensure_ascii=False).encode()
        except _RefusedError:
            pass
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = self._line_of(mark) if mark else None
            glued = _GLUED.search(self._text)
            if glued and self._text.count("\n", 0, glued.start()) + 2 == (line or 0) - 1:
                hint = f"write {glued[1]}: {glued[2].strip()}"
                message = "not valid YAML: no blank follows the colon"
                self._report("yaml-syntax", message, (line or 0) - 1, hint)
            else:
                self._report("yaml-syntax", _message_of(error), line, _hint(error))
        except yaml.reader.ReaderError as error:  # its position counts bytes or characters
            message = f"YAML does not allow the character U+{error.character:04X}"
            line = self._line(chr(error.character))
            self._report("yaml-syntax", message, line, "remove it, or escape it")
        except (ValueError, OverflowError):  # PyYAML's own parser; libyaml rejects such escapes
            self._report("yaml-syntax", "an escape stands for no character")
        else:
            if not isinstance(value, dict):
                message = f"the frontmatter is {_kind(value)}"
                self._report("frontmatter-not-mapping", message, 2)
            elif standing(self.problems) > Standing.UNUSABLE:
                return value
        return None

    def _line_of(self, mark: Any) -> int:
        """Return the line of the file; YAML counts U+0085, U+2028 and U+2029 as ends, too."""
        return bisect_left(self._ends, mark.index) + 2

    def _line(self, character: str) -> int:
        """Return the line of the file with the first of these characters."""
        return self._text.partition(character)[0].count("\n") + 2

    def _report(
        self, code: str, message: str, line: int | None = None, hint: str | None = None
    ) -> None:
        self.problems.append(problem(code, message, line, hint))

    def _document(self) -> Json:
        """Return the value of the only document, None when there is none."""
        self._next = _PARSER(self._text).get_event
        self._next()
        start: Any = self._next()
        if start.__class__.__name__ == "StreamEndEvent":
            return None
        value = self._value(self._next(), 0)
        self.field_line = 0
        self._next()
        after: Any = self._next()
        if after.__class__.__name__ != "StreamEndEvent":
            hint = "keep one document between the fences"
            self._note("yaml-syntax", after, "a second document begins", hint)
        return value

    def _note(self, code: str, event: Any, message: str, hint: str | None = None) -> None:
        """Report a problem of an event; beyond the limit only a fatal one, and end the reading."""
        is_full = len(self.problems) >= MAX_PROBLEMS
        is_fatal = CODES[code].allows is Standing.UNUSABLE
        if is_fatal or not is_full:
            self._report(code, message, self._line_of(event.start_mark), hint)
        if is_fatal and is_full:
            raise _RefusedError

    def _value(self, event: Any, depth: int) -> Json:
        kind = event.__class__
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._note("yaml-size", event, f"the frontmatter holds more than {MAX_NODES} values")
            raise _RefusedError
        if kind is events.AliasEvent:
            return self._alias(event, depth)
        if event.tag is not None:
            self._note("yaml-tag", event, f"the tag {event.tag!r} is not allowed")
        anchor: str | None = event.anchor
        nodes, expansion = self._nodes, self._expansion
        if anchor is not None:
            self._open.add(anchor)
        value: Json
        if kind is events.ScalarEvent:
            text: str = event.value
            self._expansion += len(text)
            value = self._scalar(event)
        elif depth >= MAX_DEPTH:
            self._note("yaml-depth", event, f"values are nested more than {MAX_DEPTH} levels deep")
            raise _RefusedError
        elif kind is events.MappingStartEvent:
            value = self._mapping(depth)
        else:
            value = self._sequence(depth)
        if anchor is not None:
            self._open.discard(anchor)
            nodes = self._nodes - nodes + 1
            self._anchors[anchor] = _Anchor(value, nodes, self._expansion - expansion)
        return value

    def _mapping(self, depth: int) -> dict[str, Json]:
        out: dict[str, Json] = {}
        while (event := self._next()).__class__ is not events.MappingEndEvent:
            key = self._key(event, depth)
            line = self._line_of(event.start_mark)
            if depth == 0:
                self.field, self.field_line = key, line
                self.lines.setdefault(key, line)
            if key in out:
                self._note("yaml-duplicate-key", event, f"the key {_shown(key)} appears twice")
            value = self._next()
            written = value.value if value.__class__ is events.ScalarEvent else None
            if depth == 0 and written is not None:
                self.written.setdefault(key, written)
                if self._has_comment and value.implicit[0]:
                    self._check_comment(key, value)
                if value.anchor and key in _PROSE:
                    message = f"{literal('&' + value.anchor)} is no part of the value of {key}"
                    self._note("yaml-comment", value, message, "put the value in quotes")
            if depth == 1 and self.field == METADATA:
                self.metadata.setdefault(key, (line, written))
            out[key] = self._value(value, depth + 1)
        return out

    def _check_comment(self, key: str, value: Any) -> None:
        """Report a plain value whose author took the comment behind it for text."""
        start, end = value.start_mark, value.end_mark
        line_end = self._ends[bisect_left(self._ends, end.index)]
        comment = self._text[end.index : line_end].strip()
        is_meant = key not in _PROSE and comment[1:2] in ("", " ", "\t", "#")
        if not value.value or not comment.startswith("#") or is_meant:
            return
        hint = "put the value in quotes; ' #' begins a comment"
        if self._line_of(start) == self._line_of(end):
            text = self._text[start.index : line_end].strip().replace("'", "''")
            hint = f"write {key}: '{text}', or begin the comment on a line of its own"
        message = f"the rest of the line is a comment, and the value of {key} ends before "
        self._note("yaml-comment", value, message + literal(comment), hint)

    def _sequence(self, depth: int) -> list[Json]:
        out: list[Json] = []
        while (event := self._next()).__class__ is not events.SequenceEndEvent:
            out.append(self._value(event, depth + 1))
        return out

    def _key(self, event: Any, depth: int) -> str:
        if event.__class__ is events.ScalarEvent and event.tag is None and event.anchor is None:
            text: str = event.value
            self._nodes += 1
            self._expansion += len(text)
            if event.implicit[0] and text == "<<":
                message = "the key << merges mappings in YAML 1.1 and is a plain key here"
                self._note("yaml-ambiguous", event, message)
            elif event.implicit[0] and (text in _WORD_KEY or _NUMBER_KEY.fullmatch(text)):
                message = f"the key {_shown(text)} is not text for every YAML reader"
                self._note("yaml-key", event, message)
            return sys.intern(text)  # saves memory: all skills share the same dozen keys
        value = self._value(event, depth + 1)
        if event.__class__ is events.ScalarEvent:
            return str(event.value)
        if isinstance(value, str):
            return value
        self._note("yaml-value", event, "only text can be a key", "use text as the key")
        return ""

    def _alias(self, event: Any, depth: int) -> Json:
        anchor: str = event.anchor
        known = self._anchors.get(anchor)
        if known is None or anchor in self._open:
            fault = "refers to itself" if anchor in self._open else "has no anchor"
            self._note("yaml-alias", event, f"the alias *{anchor} {fault}")
            return None
        self._nodes += known.nodes
        self._expansion += known.expansion
        if self._nodes > MAX_NODES or self._expansion > MAX_EXPANSION:
            self._note("yaml-alias", event, f"aliases expand to more than {MAX_NODES} values")
            raise _RefusedError
        if depth + _height(known.value) > MAX_DEPTH:
            message = f"with aliases, values are nested more than {MAX_DEPTH} levels deep"
            self._note("yaml-depth", event, message)
            raise _RefusedError
        return known.value

    def _scalar(self, event: Any) -> Json:
        """Return a plain scalar by the core schema."""
        text: str = event.value
        if not event.implicit[0] or text[:1] not in _MAYBE_SPECIAL:
            return text
        if text in _NULL:
            return None
        if text in _BOOLEAN:
            return text in _TRUE
        if text in _OTHER_IN_1_1:
            message = f"{text} is text here and true or false in YAML 1.1"
            self._note("yaml-ambiguous", event, message)
            return text
        if text in ("<<", "="):
            message = f"{text} is text here and refused by YAML 1.1 readers"
            self._note("yaml-ambiguous", event, message)
        if _NUMBER_IN_1_1.fullmatch(text):
            message = f"{_shown(text)} means different things in YAML 1.1 and 1.2"
            self._note("yaml-ambiguous", event, message)
        if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
            if len(text) > _MAX_INTEGER_DIGITS:
                self._note("yaml-value", event, "the number is too large for JSON")
                return None
            number = int(text, 0) if _BASED.fullmatch(text) else int(text)
            if abs(number) > _MAX_SAFE_INTEGER:
                message = f"{text} is too large for a JSON number to be exact"
                self._note("yaml-ambiguous", event, message)
            return number
        if _FLOAT.fullmatch(text):
            value = float(text)
            if value in (float("inf"), float("-inf")):
                self._note("yaml-value", event, f"{_shown(text)} is too large for JSON")
                return None
            return value
        if _ENDLESS.fullmatch(text):
            self._note("yaml-value", event, f"JSON cannot hold {text}")
            return None
        return text


_NUMBER_KEY: Final = re.compile(
    rf"{_INTEGER.pattern}|{_FLOAT.pattern}|{_BASED.pattern}|{_ENDLESS.pattern}"
)


def _height(value: Json) -> int:
    if isinstance(value, dict):
        value = [*value.values()]
    return 1 + max(map(_height, value), default=0) if isinstance(value, list) else 0


def _shown(text: str) -> str:
    return literal(text, 40)
