"""A skill as a scan found it: its files, the content of its SKILL.md, and its problems.

All objects are immutable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Severity: TypeAlias = Literal["error", "warning", "note"]

SKILL_MD = "SKILL.md"
SIGNATURE_FILE: Final = "skill.oms.sig"
"""The signature of a skill, by OpenSSF model signing."""
EVALS: Final = "evals/"
"""The folder with the author's evals and trigger sets."""
ORIGIN = "mcp-skills-server/origin"
"""Key in a protocol's `_meta` for the origin of a skill, with this project's own prefix."""
MAX_PATH: Final = 4096
"""Maximum characters of a skill path and file path together, and of a name: Linux's PATH_MAX. A
longer path is unknown without a lookup."""
DEEPEST_PATH: Final = MAX_PATH // 2
"""Maximum segments of such a path: each takes at least a character and a slash."""


class Standing(IntEnum):
    """Level up to which a skill is served. Higher is better."""

    UNUSABLE = 0
    """SKILL.md cannot be read, or lies too deep: never served."""
    LENIENT = 1
    """SKILL.md is readable but breaks the specification, or the skill exceeds the limits on files
    or bytes. No strict listing has it; `--dialect sep-2076`, tools, prompts and the Skills Protocol
    do."""
    VALID = 2
    """Meets the specification: served everywhere."""

    @property
    def shown(self) -> str:
        """Return the standing in the two terms of commands, page and log."""
        return ("not served", "not listed", "served")[self]


def printable(text: str) -> str:
    """Return the text with control characters escaped, for a terminal or a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in text)


class Problem(NamedTuple):
    """A problem of a skill or a root, with a message and a hint for people.

    Attributes:
        code: a stable identifier, which `validate` prints in brackets.
        severity: "error", "warning" or "note".
        message: what is wrong.
        hint: how to fix it.
        line: 1-based line in the file, or None.
        path: the file or directory, as the operator would type it.
        skill: the skill path, "" for none.
        column: 1-based column in the line, in characters, or None.
    """

    code: str
    severity: Severity
    message: str
    hint: str
    line: int | None = None
    path: str = ""
    skill: str = ""
    column: int | None = None

    def at(self, path: str, skill: str) -> Problem:
        """Return this problem with its path and skill set."""
        return self._replace(path=path, skill=skill)

    @property
    def text(self) -> str:
        """The message and the hint as one line."""
        if self.hint:
            return f"{self.message}; {self.hint}"
        return self.message

    @property
    def place(self) -> str:
        """The path, with the line and column as far as they are known."""
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part)

    def __str__(self) -> str:
        """The problem as one line: place, severity, message, hint and code."""
        return printable(f"{self.place}: {self.severity}: {self.text} [{self.code}]")


class Reading(NamedTuple):
    """Parsed content of a SKILL.md, as far as it could be read.

    Attributes:
        frontmatter: all fields, verbatim, JSON-safe; empty if unreadable.
        heading: the body's first level-1 heading as plain text, or None.
        standing: the standing by this file alone; limits of the bundle can lower it.
        problems: all problems in the file.
        headings: the body's headings as plain text, in order, as many as search indexes.
        opening: the beginning of the body, verbatim, as long as search indexes.
    """

    frontmatter: Mapping[str, Json]
    heading: str | None
    standing: Standing
    problems: tuple[Problem, ...]
    headings: tuple[str, ...] = ()
    opening: str = ""


class SkillFile(NamedTuple):  # made three times as fast as a frozen dataclass
    """A regular file of a root.

    Attributes:
        root: index of its root.
        location: root-relative path, `/`-separated, with links resolved.
        size: bytes.
        digest: `sha256:` and 64 hex digits of the bytes; "" if the scan could not read them.
        executable: whether its owner may execute it.
    """

    root: int
    location: str
    size: int
    digest: str = ""
    executable: bool = False


def combined_digest(digests: Mapping[str, str]) -> str:
    """Return one digest of the digests of files by path, as approvals and lock files use it."""
    combined = hashlib.sha256()
    for path, digest in sorted(digests.items()):
        combined.update(path.encode() + b"\0" + digest.encode() + b"\n")
    return f"sha256:{combined.hexdigest()}"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Skill:
    """A directory with a SKILL.md, as a scan found it. Unchanged means the same object.

    Attributes:
        path: the skill path, `acme/billing/refunds`.
        root: index of its root.
        directory: root-relative path, "" if the root itself is the skill.
        reading: the content of SKILL.md.
        files: every file by its path in the skill, in path order, SKILL.md and nested skills' files
            included.
        findings: problems of the directory rather than of SKILL.md.
        standing: level up to which it is served.
        empty: directories without a served file, by their path in the skill.
        origin: the site or archive that it comes from, also when `fetch` put it into a folder; None
            for a skill of the operator's own. It may be a local path: others see `identity.origin`.
        nested: directories in it that hold anything named SKILL.md, by their path in the skill.
        whole: the skill with the files that a client is not served, too; None if none are missing.
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
    whole: Skill | None = None

    @property
    def frontmatter(self) -> Mapping[str, Json]:
        """The frontmatter, verbatim."""
        return self.reading.frontmatter

    @property
    def name(self) -> str:
        """The frontmatter's name, or the directory's name without one."""
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
        """All problems, of SKILL.md and of the directory."""
        return self.reading.problems + self.findings

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each readable file, by path."""
        return {path: file.digest for path, file in self.files.items() if file.digest}

    def has_same_content(self, other: Skill) -> bool:
        """Tell whether two skills of one path differ in nothing that a listing or a read shows."""
        return self is other or (
            self.reading is other.reading
            and self.files == other.files
            and self.findings == other.findings
            and self.empty == other.empty
            and self.standing == other.standing
            and self.origin == other.origin
        )


@lru_cache(1024)  # the files of one skill are read one after the other
def whole_digest(skill: Skill) -> str:
    """Return the digest of all files of a skill, "" if the scan could not read one.

    It is the same for every client, also for one that may read only a part of the skill.
    """
    whole = skill.whole or skill
    digests = whole.digests
    return combined_digest(digests) if len(digests) == len(whole.files) else ""
