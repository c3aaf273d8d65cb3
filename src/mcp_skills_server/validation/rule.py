"""Registry of lint rules, and the subjects that rules check.

A rule has three parts: a function decorated with `@RULES.rule("its-code")`, the row of its code in
`codes.py`, and an example bundle `fixtures/broken/its-code`. The function checks one type of
subject and returns findings; the row has their severity and default hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from mcp_skills_server.codes import problem
from mcp_skills_server.format import hidden
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.format.links import Reference, may_link, references
from mcp_skills_server.model import SKILL_MD, Json, Problem
from mcp_skills_server.validation.pieces import Pieces
from mcp_skills_server.validation.threats import BLANKS

T = TypeVar("T")
_BEFORE: Final = 120
_AFTER: Final = 300
"""Characters around a mark that hold the whole match."""


class Finding(NamedTuple):
    """One finding: the fault, a 1-based line and column, and advice in place of the row's hint."""

    message: str
    line: int | None = None
    hint: str | None = None
    column: int | None = None


Check: TypeAlias = Callable[[T], Iterable[Finding]]


class Rules(Generic[T]):
    """A registry of the rules for one type of subject, in the order of their reports."""

    def __init__(self) -> None:
        self.checks: list[tuple[str, Check[T]]] = []

    def rule(self, code: str) -> Callable[[Check[T]], Check[T]]:
        """Return a decorator that registers a function as the rule of this code."""

        def add(check: Check[T]) -> Check[T]:
            self.checks.append((code, check))
            return check

        return add

    def check(self, subject: T) -> list[Problem]:
        """Run the rules, and return their problems."""
        problems: list[Problem] = []
        for code, check in self.checks:
            for message, line, hint, column in check(subject):
                problems.append(problem(code, message, line, hint)._replace(column=column))
        return problems


@dataclass(frozen=True)
class SkillMd:
    """A SKILL.md whose frontmatter could be read."""

    document: Document
    frontmatter: Mapping[str, Json]
    directory: str
    """Name of the file's directory; "" at a deep check."""
    files: Collection[str] = ()
    """Paths of all files of the skill; empty at a scan."""

    @cached_property
    def name(self) -> str:
        """Return the name, or "" if it is missing or not text."""
        name = self.frontmatter.get("name")
        return name if isinstance(name, str) else ""

    @cached_property
    def description(self) -> str:
        """Return the description, or "" if it is missing, blank or not text."""
        description = self.frontmatter.get("description")
        return description if isinstance(description, str) and description.strip() else ""

    def at(self, key: str, message: str, hint: str | None = None) -> Finding:
        """Return a finding on the line of a field, or of the opening fence if it is missing."""
        return Finding(message, self.document.lines.get(key, 1), hint)

    @cached_property
    def references(self) -> list[Reference]:
        """Return the possible file references of the body, in order.

        Most bodies are not parsed: they have no link, and a code span is of interest only if it
        names a file that lies deep.
        """
        body = self.document.body
        if may_link(body) or any(path.count("/") > 1 and path in body for path in self.files):
            return references(body)
        return []

    @cached_property
    def pieces(self) -> Pieces:
        """Return the pieces of the body."""
        return Pieces(self.document.body, SKILL_MD)


@dataclass(frozen=True)
class TextFile:
    """A text file of a skill, and the 1-based line on which its body begins."""

    text: str
    path: str = ""
    body_line: int = 1

    @cached_property
    def pieces(self) -> Pieces:
        """Return the pieces of the text."""
        return Pieces(self.text, self.path, self.body_line)

    def at(self, offset: int, message: str) -> Finding:
        """Return a finding at an offset."""
        column = offset - self.text.rfind("\n", 0, offset)
        return Finding(message, self.pieces.line(offset), column=column)

    @cached_property
    def hidden(self) -> list[tuple[int, str]]:
        """Return the hidden characters with their offsets; NUL bytes have their own code."""
        return [(at, character) for at, character in hidden.find(self.text) if character != "\0"]

    @cached_property
    def _folded(self) -> str:
        """Return the text in lower case, with every character at its offset."""
        folded = self.text.lower()
        if len(folded) != len(self.text):
            folded = "".join(character.lower()[0] for character in self.text)
        return folded

    def matches(
        self, pattern: re.Pattern[str], marks: Iterable[str], *more: re.Pattern[str]
    ) -> Iterator[re.Match[str]]:
        """Yield the matches around one of these lower-case marks, which each match has.

        To find the marks first is 20 times faster than to search for the pattern.
        """
        spots: list[int] = []
        for mark in (*map(_mark_pattern, marks), *more):
            spots += [match.start() for match in mark.finditer(self._folded)]
        spots.sort()
        start = end = 0  # the text around spots that lie close together
        for number, spot in enumerate(spots):
            if spot - _BEFORE > end:
                start = spot - _BEFORE
            end = spot + _AFTER
            if number + 1 == len(spots) or spots[number + 1] - _BEFORE > end:
                yield from pattern.finditer(self.text, start, end)


@cache
def _mark_pattern(mark: str) -> re.Pattern[str]:
    """Return the pattern of a mark, whose blanks stand for those between any two words."""
    return re.compile(BLANKS.join(map(re.escape, mark.split(" "))))
