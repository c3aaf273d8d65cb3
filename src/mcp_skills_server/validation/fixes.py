"""Safe automatic fixes of a SKILL.md, which change its notation and keep its meaning. Pure.

Each fix changes one line or one field of the frontmatter. The result is checked again: a fix is
kept only if its finding is gone and no other was added.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from mcp_skills_server.format import hidden
from mcp_skills_server.format.fields import split_tools
from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.model import Problem
from mcp_skills_server.validation.rules import HOST_FIELDS, check, specified_field

_FIELD: Final = re.compile(
    r"(?P<start>[ \t]*+(?:[\w.-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+:[ \t]++)(?P<value>[^\n]*+)\Z"
)
_KEY: Final = re.compile(r"[A-Za-z][\w-]*+(?=[ \t]*+:)")

Correct = Callable[[list[str], int], bool]
"""Fixes the lines of a file in place for a finding on a 0-based line; returns True on success."""


def fix_text(text: str, problems: Sequence[Problem], directory: str) -> tuple[str, list[Problem]]:
    """Return (text, fixed problems) of a SKILL.md in `directory` after applying all safe fixes."""
    done: list[Problem] = []
    line_end = "\r\n" if text.count("\r\n") == text.count("\n") else "\n"
    # From the end, so that a correction does not move the lines of those that follow.
    for problem in sorted(problems, key=lambda each: -(each.line or 0)):
        correct = _CORRECTIONS.get(problem.code)
        lines = text.split(line_end)
        number = (problem.line or 0) - 1
        if correct is None or not 0 <= number < len(lines) or not correct(lines, number):
            continue
        tried = line_end.join(lines)
        if _is_better(text, tried, problem.code, directory):
            text = tried
            done.append(problem)
    return text, done[::-1]


def has_fix(problem: Problem) -> bool:
    """Tell whether a safe fix may exist for this problem."""
    return problem.code in _CORRECTIONS


def _is_better(before: str, after: str, code: str, directory: str) -> bool:
    old, new = _codes(before, directory), _codes(after, directory)
    return new[code] < old[code] and new <= old


def _codes(text: str, directory: str) -> Counter[str]:
    """Count the problems of a SKILL.md by code."""
    document = parse(text.encode("utf-8", "surrogateescape"))
    found = Counter(each.code for each in (*document.problems, *check(document, directory)))
    found["hidden-characters"] += hidden.count(text)
    return found


def _without_comment(text: str) -> tuple[str, str]:
    """Return (a plain YAML value, the blanks and the comment behind it)."""
    found = re.search(r"(?:\A|[ \t])#", text)
    value = text[: found.start() if found else len(text)].rstrip()
    return value, text[len(value) :]


def _value_in_quotes(lines: list[str], number: int) -> bool:
    found = _FIELD.match(lines[number])
    if found is None:
        return False
    value, rest = _without_comment(found["value"])
    if not value or value[0] in "\"'|>[{&*!":
        return False
    quoted = f'"{value}"'
    if '"' in value or "\\" in value:
        quoted = "'" + value.replace("'", "''") + "'"
    lines[number] = found["start"] + quoted + rest
    return True


def _tools_as_text(lines: list[str], number: int) -> bool:
    tools = _tools(lines)
    text = " ".join(tools)
    if not text or text.count("(") != text.count(")"):
        return False
    last = number + 1
    while lines[last][:1] in (" ", "\t", "-") and not lines[last].startswith("---"):
        last += 1
    if "".join(lines[number:last]).count("#") > text.count("#"):  # a comment would be lost
        return False
    if re.search(r"[#:&*!]", text):
        text = json.dumps(text)
    lines[number:last] = [f"allowed-tools: {text}"]
    return _tools(lines) == tools


def _tools(lines: list[str]) -> list[str]:
    fields = parse("\n".join(lines).encode()).frontmatter or {}
    return split_tools(fields.get("allowed-tools"))


def _field_to_metadata(lines: list[str], number: int) -> bool:
    key, field = _KEY.match(lines[number]), _FIELD.match(lines[number])
    if key is None or field is None or not field["value"]:
        return False
    if key[0] in HOST_FIELDS or specified_field(key[0]):
        return False
    below = next(line for line in lines[number + 1 :] if line.strip())  # or the closing fence
    goes_on = below[:1] in (" ", "\t", "-") and not below.startswith("---")
    if goes_on or field["value"][0] in "#[{|>&*!":  # several lines, or no plain value
        return False
    text = field["value"].rstrip()
    if text[0] not in "\"'":
        value, rest = _without_comment(text)
        text = json.dumps(value, ensure_ascii=False) + rest
    end = parse("\n".join(lines).encode()).body_line - 2
    del lines[number]
    for place, line in enumerate(lines[:end]):
        if re.match(r"metadata[ \t]*+:[ \t]*+\Z", line):
            indent = re.match(r"[ \t]++", lines[place + 1])
            lines.insert(place + 1, f"{indent[0] if indent else '  '}{key[0]}: {text}")
            return True
    if any(line.startswith("metadata") for line in lines[:end]):
        return False
    lines[number:number] = ["metadata:", f"  {key[0]}: {text}"]
    return True


def _without_hidden(lines: list[str], _: int) -> bool:
    before = list(lines)
    lines[:] = [hidden.strip(line) for line in lines]
    return lines != before


_CORRECTIONS: Final[dict[str, Correct]] = {
    "yaml-colon": _value_in_quotes,
    "yaml-ambiguous": _value_in_quotes,
    "yaml-value": _value_in_quotes,
    "metadata-type": _value_in_quotes,
    "allowed-tools-form": _tools_as_text,
    "field-unknown": _field_to_metadata,
    "hidden-characters": _without_hidden,
}
