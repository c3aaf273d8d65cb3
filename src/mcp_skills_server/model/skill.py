"""One skill as a scan found it: its files, what its SKILL.md says, and what is wrong with it.

Nothing here changes after it was built, but for the stat signature of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Severity: TypeAlias = Literal["error", "warning", "note"]

SKILL_MD = "SKILL.md"
SIGNATURE_FILE: Final = "skill.oms.sig"
"""The signature of a skill, by OpenSSF model signing."""
EVALS: Final = "evals/"
"""The folder with the author's evals and trigger sets."""
ORIGIN = "mcp-skills-server/origin"
"""Key of a protocol's `_meta` for the origin of a skill; the extension's prefix is not ours."""
LONGEST_PATH: Final = 4096
"""Characters of a skill path and a file path together, and of a name: PATH_MAX of Linux, which no
path that a program names exceeds. What is longer is unknown without a look."""
DEEPEST_PATH: Final = LONGEST_PATH // 2
"""Segments of such a path: each takes a character and a slash at least."""


class Standing(IntEnum):
    """The extent to which a skill may be shown. Higher is better."""

    UNUSABLE = 0
    """SKILL.md cannot be read, or lies too deep: never served."""
    LENIENT = 1
    """SKILL.md can be read but breaks the specification, or has more files or bytes than the limits
    allow. It is in no strict listing; `--dialect sep-2076`, tools, prompts and the Skills Protocol
    have it."""
    VALID = 2
    """Keeps the specification: served everywhere."""


def printable(text: str) -> str:
    """Return the text with control characters written out, for a terminal or a log; file names may
    hold anything."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\u{{{ord(each):x}}}" for each in text)


class Problem(NamedTuple):
    """Something wrong with a skill or a root, in words with which a person can fix it.

    Attributes:
        code: a stable word, which `validate` prints in brackets.
        severity: "error", "warning" or "note".
        message: what is wrong.
        hint: what to do about it.
        line: 1-based line in the file, where one can be named.
        path: the file or directory, as the operator would type it.
        skill: the skill path, "" where no skill is meant.
    """

    code: str
    severity: Severity
    message: str
    hint: str
    line: int | None = None
    path: str = ""
    skill: str = ""

    def at(self, path: str, skill: str) -> Problem:
        """Return this problem with its place filled in."""
        return self._replace(path=path, skill=skill)

    @property
    def text(self) -> str:
        """The message and the hint as one line."""
        if self.hint:
            return f"{self.message}; {self.hint}"
        return self.message

    def __str__(self) -> str:
        """All of it as one line: place, severity, what is wrong and what to do."""
        if self.line is None:
            place = self.path
        else:
            place = f"{self.path}:{self.line}"
        return printable(f"{place}: {self.severity}: {self.text} [{self.code}]")


class Reading(NamedTuple):
    """The content of a SKILL.md, as far as it could be read.

    Attributes:
        frontmatter: all fields, verbatim, JSON-safe; empty when it could not be read.
        heading: the body's first level-1 heading as plain text, if it has one.
        standing: what the file alone allows; limits of the bundle can still lower it.
        problems: everything wrong in the file.
        headings: the body's headings as plain text, in order and not more than a search needs.
        opening: how the body begins, as it is written: as many characters as a search looks at.
    """

    frontmatter: Mapping[str, Json]
    heading: str | None
    standing: Standing
    problems: tuple[Problem, ...]
    headings: tuple[str, ...] = ()
    opening: str = ""


@dataclass(slots=True, eq=False)
class SkillFile:
    """One regular file of a root.

    Only a scan changes it: one that finds the same bytes under a new time stamp renews the
    signature.

    Attributes:
        root: index of the root it lies in.
        location: path from the root, `/`-separated, with links resolved.
        size: bytes.
        signature: what a stat at the scan said, as one short text; "" for what no file has.
        mtime_reliable: False if the file was so young at the scan that a later write could leave
            the same signature.
        digest: `sha256:` and 64 hex digits of the bytes; "" for a file that the scan could not
            read.
        executable: whether its owner may execute it. No listing has this, so a change of it is no
            news.
    """

    root: int
    location: str
    size: int
    signature: str
    mtime_reliable: bool
    digest: str = ""
    executable: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Skill:
    """A directory with a SKILL.md, as one scan found it. Compared by identity: unchanged means the
    same object.

    Attributes:
        path: the skill path, `acme/billing/refunds`.
        root: index of the root it lies in.
        directory: path from the root, "" when the root itself is the skill.
        reading: what SKILL.md says.
        files: every file by its path in the skill, in path order, SKILL.md and nested skills' files
            included.
        findings: problems of the directory rather than of SKILL.md.
        standing: how far it may be shown.
        empty: directories without a file that is served, by their path in the skill.
        origin: the site or the archive that it comes from, also when `fetch` put it into a folder;
            None for a skill of the operator's own. It may be a path of this machine: others see
            `identity.origin`.
        nested: directories in it that hold anything named SKILL.md, by their path in the skill.
    """

    path: str
    root: int
    directory: str
    reading: Reading
    files: Mapping[str, SkillFile]
    findings: tuple[Problem, ...]
    standing: Standing
    empty: tuple[str, ...] = ()
    origin: str | None = None
    nested: tuple[str, ...] = ()

    @property
    def frontmatter(self) -> Mapping[str, Json]:
        """The frontmatter, verbatim."""
        return self.reading.frontmatter

    @property
    def name(self) -> str:
        """The frontmatter's name, or the directory's where there is none."""
        name = self.reading.frontmatter.get("name")
        if isinstance(name, str) and name:
            return name
        return self.path.rpartition("/")[2]

    @property
    def description(self) -> str:
        """The frontmatter's description, or ""."""
        description = self.reading.frontmatter.get("description")
        if isinstance(description, str):
            return description
        return ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything wrong with it."""
        return self.reading.problems + self.findings

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file that can be read, by path."""
        return {path: file.digest for path, file in self.files.items() if file.digest}
