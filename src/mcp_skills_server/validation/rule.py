"""Rules, their registry, and the facts that they read.

A rule is three things and no more: a function under `@RULES.rule("its-code")`, the row of its code
in `codes.py`, and a bundle `fixtures/broken/its-code` that shows it. The function reads one kind of
subject and returns what it found; the row says how bad that is and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from mcp_skills_server.codes import CODES, problem
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.format.links import Reference, references
from mcp_skills_server.model import Json, Problem

T = TypeVar("T")


class Finding(NamedTuple):
    """One finding of a rule.

    Attributes:
        message: what is wrong.
        line: 1-based line of the file, None where no line can be named.
        hint: what to do, where this case allows better advice than the row of the code.
        path: the file, by its path in the skill; "" for the file that the rule reads, or for the
            skill as a whole.
        skill: its skill path, where the subject holds several skills.
    """

    message: str
    line: int | None = None
    hint: str | None = None
    path: str = ""
    skill: str = ""


Check: TypeAlias = Callable[[T], Iterable[Finding]]


class Rule(NamedTuple, Generic[T]):
    """A row of the table of rules. A deep one runs at `validate` only, the others also at every
    scan."""

    code: str
    deep: bool
    check: Check[T]


class Rules(Generic[T]):
    """The rules that read one kind of subject, in the order in which they report."""

    def __init__(self) -> None:
        self.rows: list[Rule[T]] = []

    def rule(self, code: str, *, deep: bool = False) -> Callable[[Check[T]], Check[T]]:
        """Add the function below as the rule of this code.

        Raises:
            KeyError: the code has no row in `codes.CODES`.
        """
        if code not in CODES:
            raise KeyError(f"the code {code!r} has no row in codes.py")

        def add(check: Check[T]) -> Check[T]:
            self.rows.append(Rule(code, deep, check))
            return check

        return add

    def check(self, subject: T, *, deep: bool) -> list[Problem]:
        """Run the deep rules, or all others. Paths are relative to the skill."""
        return [
            problem(row.code, found.message, found.line, found.hint).at(found.path, found.skill)
            for row in self.rows
            if row.deep is deep
            for found in row.check(subject)
        ]


@dataclass(frozen=True)
class SkillMd:
    """A SKILL.md whose frontmatter could be read.

    Attributes:
        document: the file taken apart.
        frontmatter: its fields.
        directory: the name of its directory.
        files: paths of all files of the skill; empty at a scan.
    """

    document: Document
    frontmatter: Mapping[str, Json]
    directory: str
    files: Collection[str] = ()

    @cached_property
    def name(self) -> str:
        """Return the name, "" where there is none to judge."""
        name = self.frontmatter.get("name")
        return name if isinstance(name, str) else ""

    @cached_property
    def description(self) -> str:
        """Return the description, "" where there is none to judge."""
        description = self.frontmatter.get("description")
        return description if isinstance(description, str) and description.strip() else ""

    def line(self, key: str) -> int:
        """Return the line of a top-level field, or of the opening fence when it is missing."""
        return self.document.lines.get(key, 1)

    @cached_property
    def references(self) -> list[Reference]:
        """Return what the body may refer to, in order."""
        return references(self.document.body)


class TextFile(NamedTuple):
    """A text file of a skill.

    Attributes:
        text: all of it.
        markdown: the part of it that is Markdown, "" for none.
        first_line: the 1-based line on which that part begins.
    """

    text: str
    markdown: str = ""
    first_line: int = 1
