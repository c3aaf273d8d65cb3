"""Safe automatic fixes of a SKILL.md, which change its notation and keep its meaning. Pure.

Each fix changes one line or field of the frontmatter, or takes out all hidden characters. A fix is
kept only if a new check shows that its finding is gone and no other was added.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mcp_skills_server.codes import standing
from mcp_skills_server.format import hidden
from mcp_skills_server.format.fields import split_tools
from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.model import Json, Problem
from mcp_skills_server.validation.rules import KNOWN_FIELDS, as_text, check, near_field

_FIELD: Final = re.compile(
    r"(?P<start>[ \t]*+(?:[\w.-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+:[ \t]++)(?P<value>[^\n]*+)\Z"
)
_KEY: Final = re.compile(r"[A-Za-z][\w-]*+(?=[ \t]*+:)")

Correct = Callable[[list[str], int], bool]
"""Fixes lines in place for a finding on a 0-based line; after False the lines are discarded."""


def fix_text(text: str, problems: Sequence[Problem], directory: str) -> tuple[str, list[Problem]]:
    """Return (text, fixed problems) of a SKILL.md in `directory` after applying all safe fixes."""
    gone: list[Problem] = []
    line_end = "\r\n" if text.count("\r\n") == text.count("\n") else "\n"
    # From the end, so that a correction does not move the lines of those that follow.
    for problem in sorted(problems, key=lambda problem: -(problem.line or 0)):
        correct = _CORRECTIONS.get(problem.code)
        lines = text.split(line_end)
        number = (problem.line or 0) - 1
        if correct is None or not 0 <= number < len(lines) or not correct(lines, number):
            continue
        tried = line_end.join(lines)
        if _is_better(text, tried, problem.code, directory):
            text = tried
            fixed = (problem.line, problem.code)
            gone += [other for other in problems if (other.line, other.code) == fixed]
    return text, sorted({*gone}, key=lambda problem: problem.line or 0)


def has_fix(problem: Problem) -> bool:
    """Tell whether a safe fix may exist for this problem."""
    return problem.code in _CORRECTIONS


def _is_better(before: str, after: str, code: str, directory: str) -> bool:
    """Tell whether a fix removed its finding, added none, and kept what hosts honour."""
    old_fields, old_problems = _read(before, directory)
    new_fields, new_problems = _read(after, directory)
    if any(key in KNOWN_FIELDS and key not in new_fields for key in old_fields):
        return False
    old = Counter(problem.code for problem in old_problems)
    new = Counter(problem.code for problem in new_problems)
    old["hidden-characters"] += hidden.count(before)
    new["hidden-characters"] += hidden.count(after)
    is_fixed = new[code] < old[code] and new <= old
    return is_fixed and standing(new_problems) >= standing(old_problems)


def _read(text: str, directory: str) -> tuple[Mapping[str, Json], list[Problem]]:
    document = parse(text.encode("utf-8", "surrogateescape"))
    return document.frontmatter or {}, [*document.problems, *check(document, directory)]


def _without_comment(text: str) -> tuple[str, str]:
    """Return (a plain YAML value, the blanks and the comment behind it)."""
    match = re.search(r"(?:\A|[ \t])#", text)
    value = text[: match.start() if match else len(text)].rstrip()
    return value, text[len(value) :]


def _value_in_quotes(lines: list[str], number: int) -> bool:
    match = _FIELD.match(lines[number])
    if match is None:
        return False
    value, rest = _without_comment(match["value"])
    if not value or value[0] in "\"'|>[{&*!":
        return False
    quoted = f'"{value}"'
    if '"' in value or "\\" in value:
        quoted = "'" + value.replace("'", "''") + "'"
    lines[number] = match["start"] + quoted + rest
    return True


def _tools_as_text(lines: list[str], number: int) -> bool:
    tools = _tools(lines)
    text = " ".join(tools)
    if not text or text.count("(") != text.count(")"):
        return False
    end = number + 1
    while lines[end][:1] in (" ", "\t", "-") and not lines[end].startswith("---"):
        end += 1
    if "".join(lines[number:end]).count("#") > text.count("#"):  # a comment would be lost
        return False
    if re.search(r"[#:&*!]", text):
        text = json.dumps(text)
    lines[number:end] = [f"allowed-tools: {text}"]
    return _tools(lines) == tools


def _tools(lines: list[str]) -> list[str]:
    fields = parse("\n".join(lines).encode()).frontmatter or {}
    return split_tools(fields.get("allowed-tools"))


def _field_to_metadata(lines: list[str], number: int) -> bool:
    key, field = _KEY.match(lines[number]), _FIELD.match(lines[number])
    if key is None or field is None or not field["value"]:
        return False
    if near_field(key[0]):
        return False
    following = next(line for line in lines[number + 1 :] if line.strip())  # or the closing fence
    goes_on = following[:1] in (" ", "\t", "-") and not following.startswith("---")
    if goes_on or field["value"][0] in "#[{|>&*!":  # several lines, or no plain value
        return False
    text = field["value"].rstrip()
    if text[0] not in "\"'":
        value, rest = _without_comment(text)
        text = json.dumps(value, ensure_ascii=False) + rest
    end = parse("\n".join(lines).encode()).body_line - 3  # where the deletion puts the fence
    del lines[number]
    for at, line in enumerate(lines[:end]):
        if re.match(r"metadata[ \t]*+:[ \t]*+\Z", line):
            indent = re.match(r"[ \t]++", lines[at + 1])
            lines.insert(at + 1, f"{indent[0] if indent else '  '}{key[0]}: {text}")
            return True
    if any(line.startswith("metadata") for line in lines[:end]):
        return False
    lines[number:number] = ["metadata:", f"  {key[0]}: {text}"]
    return True


def _metadata_as_text(lines: list[str], number: int) -> bool:
    """Write a value of `metadata`, or all of a mapping on one line, as its finding's hint says."""
    document = parse("\n".join(lines).encode())
    values = (document.frontmatter or {}).get("metadata")
    if not isinstance(values, dict) or not document.metadata:
        return False
    by_line = {line: (key, text) for key, (line, text) in document.metadata.items()}  # 1-based
    if re.fullmatch(r"metadata[ \t]*+:[ \t]*+\{[^#\n]*+", lines[number]):
        if set(by_line) != {number + 1}:  # the mapping goes on below
            return False
        fields = document.metadata.items()
        texts = [as_text(key, values[key], text) for key, (_, text) in fields]
        lines[number : number + 1] = ["metadata:", *(f"  {text}" for text in texts)]
        return True
    if number + 1 not in by_line:
        return False
    if _value_in_quotes(lines, number):
        return True
    key, text = by_line[number + 1]
    indent = len(lines[number]) - len(lines[number].lstrip())
    end = number + 1
    while (line := lines[end]).strip() and not line.startswith("---"):
        depth = len(line) - len(line.lstrip())
        if depth < indent or (depth == indent and line.lstrip()[0] != "-"):
            break
        end += 1
    if "#" in "".join(lines[number:end]):  # a comment would be lost
        return False
    lines[number:end] = [" " * indent + as_text(key, values[key], text)]
    return True


def _hint_in_quotes(lines: list[str], number: int) -> bool:
    field = re.fullmatch(
        r"(argument-hint[ \t]*+:[ \t]*+)(\[[^\]\"\\#\n]*+\])[ \t]*+", lines[number]
    )
    if field is not None:
        lines[number] = f'{field[1]}"{field[2]}"'
    return field is not None


def _without_hidden(lines: list[str], _: int) -> bool:
    before = list(lines)
    lines[:] = [hidden.strip(line) for line in lines]
    return lines != before


_CORRECTIONS: Final[dict[str, Correct]] = {
    "yaml-colon": _value_in_quotes,
    "yaml-ambiguous": _value_in_quotes,
    "yaml-value": _value_in_quotes,
    "metadata-type": _metadata_as_text,
    "allowed-tools-form": _tools_as_text,
    "field-unknown": _field_to_metadata,
    "field-type": _hint_in_quotes,
    "hidden-characters": _without_hidden,
}
