"""The types that every room speaks.

The model follows the newest specification (SEP-2640, Agent Skills); older and other protocols adapt in `dialects/`.
Nothing here changes after it was built, with one exception that is named where it stands: the digest of a file's bytes,
once it is known. Whoever derives more from a skill keeps it by the skill's identity, in a WeakKeyDictionary of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Severity: TypeAlias = Literal["error", "warning"]

SKILL_MD = "SKILL.md"
ORIGIN = "mcp-skills-server/origin"
"""Under which key a protocol's `_meta` tells where a skill comes from; the extension's prefix is not ours (S40-31)."""
LONGEST_PATH: Final = 4096
"""Characters of a skill path and a file path together, and of a name: PATH_MAX of Linux, which no path that a program
names exceeds. What is longer is unknown without a look."""
DEEPEST_PATH: Final = LONGEST_PATH // 2
"""Segments of such a path: each takes a character and a slash at least."""


class Standing(IntEnum):
    """How far a skill may be shown. Higher is better."""

    UNUSABLE = 0
    """SKILL.md cannot be read, or a limit is exceeded: never served."""
    LENIENT = 1
    """SKILL.md can be read but breaks the specification: only `--dialect sep-2076` and the runtime tools show it."""
    VALID = 2
    """Keeps the specification: served everywhere (S40-5)."""


def printable(text: str) -> str:
    """The text with control characters written out, for a terminal or a log; file names may hold anything."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\u{{{ord(each):x}}}" for each in text)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a skill or a root, told so that a person can fix it.

    Attributes:
        code: a stable word from `format.codes`.
        severity: "error" or "warning".
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
        """This problem with its place filled in."""
        return replace(self, path=path, skill=skill)

    @property
    def text(self) -> str:
        """The message and the hint as one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __str__(self) -> str:
        """All of it as one line: place, severity, what is wrong and what to do."""
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return printable(f"{place}: {self.severity}: {self.text} [{self.code}]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What SKILL.md says, as far as it could be read.

    Attributes:
        frontmatter: all fields, verbatim, JSON-safe (S40-13); empty when it could not be read.
        heading: the body's first level-1 heading as plain text, if it has one.
        standing: what the file alone allows; limits of the bundle can still lower it.
        problems: everything wrong in the file.
        headings: the body's headings as plain text, in order and not more than a search needs.
    """

    frontmatter: Mapping[str, Json]
    heading: str | None
    standing: Standing
    problems: tuple[Problem, ...]
    headings: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class SkillFile:
    """One regular file of a root.

    `signature`, `digest` and `executable` are memos, not content: a rescan that finds the same bytes under a new time
    stamp renews the signature, and the digest is filled in when somebody first asks for it.

    Attributes:
        root: index of the root it lies in.
        location: path from the root, `/`-separated, with links resolved.
        size: bytes.
        signature: (size, mtime_ns, ctime_ns, inode, device) at the scan.
        mtime_reliable: False if the file was so young at the scan that a later write could leave the same signature.
        digest: `sha256:` and 64 hex digits of the bytes (S40-18), or None while nobody asked.
        executable: whether its owner may execute it. No listing tells this, so a change of it is no news.
    """

    root: int
    location: str
    size: int
    signature: tuple[int, ...]
    mtime_reliable: bool
    digest: str | None = None
    executable: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Skill:
    """A directory with a SKILL.md, as one scan found it. Compared by identity: unchanged means the same object.

    Attributes:
        path: the skill path, `acme/billing/refunds`.
        root: index of the root it lies in.
        directory: path from the root, "" when the root itself is the skill.
        reading: what SKILL.md says.
        files: every file by its path in the skill, in path order, SKILL.md and nested skills' files included (S40-16).
        findings: problems of the directory rather than of SKILL.md.
        standing: how far it may be shown.
        empty: directories without a file that is served, by their path in the skill.
        origin: the site or the archive that it comes from, also when `fetch` put it into a folder; None for a
            skill of the operator's own.
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

    @property
    def frontmatter(self) -> Mapping[str, Json]:
        """The frontmatter, verbatim."""
        return self.reading.frontmatter

    @property
    def name(self) -> str:
        """The frontmatter's name, or the directory's where there is none."""
        name = self.reading.frontmatter.get("name")
        return name if isinstance(name, str) and name else self.path.rpartition("/")[2]

    @property
    def description(self) -> str:
        """The frontmatter's description, or ""."""
        description = self.reading.frontmatter.get("description")
        return description if isinstance(description, str) else ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything wrong with it."""
        return self.reading.problems + self.findings

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class Changes:
    """One snapshot minus another.

    Attributes:
        before: the skills that were removed or replaced, by skill path.
        after: the skills that were added or that replaced one, by skill path.
    """

    before: Mapping[str, Skill]
    after: Mapping[str, Skill]

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def then(self, later: Changes) -> Changes:
        """Both as one: the snapshot after the later ones minus that before these."""
        before = {path: skill for path, skill in later.before.items() if path not in self.after}
        after = {path: skill for path, skill in self.after.items() if path not in later.before}
        return Changes({**self.before, **before}, {**after, **later.after})

    @cached_property
    def files(self) -> frozenset[tuple[str, str]]:
        """(skill path, file path) of every file that was added, removed or has other bytes."""
        out: set[tuple[str, str]] = set()
        for path in self.before.keys() | self.after.keys():
            old = self.before[path].files if path in self.before else dict[str, SkillFile]()
            new = self.after[path].files if path in self.after else dict[str, SkillFile]()
            out |= {(path, each) for each in old.keys() | new.keys() if old.get(each) is not new.get(each)}
        return frozenset(out)


class Snapshot:
    """All skills at one moment. Never changes; `replacing` makes the next one.

    Attributes:
        skills: by skill path, unusable ones included.
        problems: problems that belong to no served skill: shadowed skills, roots that cannot be read.

    The dict that it is made from belongs to it from then on.
    """

    def __init__(self, skills: dict[str, Skill], problems: tuple[Problem, ...] = ()) -> None:
        self.skills = MappingProxyType(skills)
        self.problems = problems

    def replacing(self, after: Mapping[str, Skill], gone: Iterable[str], problems: tuple[Problem, ...]) -> Snapshot:
        """The snapshot with some skills replaced or added and some gone. What still holds is carried over."""
        skills: dict[str, Skill] = self.skills.copy()
        same_face = True
        for path in gone:
            del skills[path]
            same_face = False
        for path, skill in after.items():
            old = skills.get(path)
            skills[path] = skill
            same_face = same_face and old is not None and (old.name, old.standing) == (skill.name, skill.standing)
        snapshot = Snapshot(skills, problems)
        if same_face:
            # An edit seldom adds or renames a skill, and sorting ten thousand paths costs more than the edit.
            for memo in ("_paths", "_names", "_deepest"):
                if memo in self.__dict__:
                    snapshot.__dict__[memo] = self.__dict__[memo]
        return snapshot

    @cached_property
    def _paths(self) -> dict[Standing, list[str]]:
        ordered = sorted(self.skills)
        return {least: [path for path in ordered if self.skills[path].standing >= least] for least in Standing}

    @cached_property
    def _names(self) -> dict[Standing, dict[str, list[str]]]:
        names: dict[Standing, dict[str, list[str]]] = {}
        for least in Standing:
            by_name = names[least] = {}
            for path in self._paths[least]:
                by_name.setdefault(self.skills[path].name, []).append(path)
        return names

    def paths(self, least: Standing) -> list[str]:
        """Skill paths in code point order, of the skills that stand at `least` there. Do not change the list."""
        return self._paths[least]

    def named(self, name: str, least: Standing) -> list[str]:
        """Skill paths of the skills that carry this frontmatter name. Do not change the list."""
        return self._names[least].get(name, [])

    def page(self, after: str | None, size: int, least: Standing) -> tuple[list[Skill], str | None]:
        """Up to `size` skills whose path is greater than `after`, and the path to go on from, if any are left.

        Paging by key and not by position keeps every skill that stays in its place, whatever else comes or goes.
        """
        paths = self._paths[least]
        start = 0 if after is None else bisect_left(paths, after + "\0")
        chosen = paths[start : start + size]
        more = chosen[-1] if start + size < len(paths) else None
        return [self.skills[path] for path in chosen], more

    def find(self, segments: tuple[str, ...], least: Standing) -> tuple[Skill, str] | None:
        """The skill and the file path that these segments name: the innermost skill wins.

        Lookups only: the segments never become a path on disk.
        """
        path = "/".join(segments)
        return self._file(path, self._holders(path, least))

    def children(self, segments: tuple[str, ...], least: Standing) -> dict[str, tuple[Skill, str] | None] | None:
        """The direct children of a directory by name: (skill, file path) of a file, None for a directory.

        None when it is no directory of a served skill nor a prefix of one's path.
        """
        directory = "/".join(segments)
        holders = self._holders(directory, least)
        if holders:
            return self._inside(directory, holders)
        prefix = directory + "/"
        paths = self._paths[least]
        found: dict[str, tuple[Skill, str] | None] = {}
        position = bisect_left(paths, prefix)
        while position < len(paths) and paths[position].startswith(prefix):
            name, slash, _ = paths[position][len(prefix) :].partition("/")
            found[name] = None
            # What lies below this child comes in one piece, and none of it is a child: "0" is the character behind "/".
            position = bisect_left(paths, f"{prefix}{name}0", position) if slash else position + 1
        return found or None

    @cached_property
    def _deepest(self) -> int:
        """Segments of the skill path that has the most."""
        return max((path.count("/") + 1 for path in self.skills), default=0)

    def _holders(self, path: str, least: Standing) -> list[Skill]:
        """The skills at or above this path, the outermost first. No more looks than a skill path has segments."""
        found: list[Skill] = []
        end = -1
        for _ in range(self._deepest if len(path) <= LONGEST_PATH else 0):
            end = path.find("/", end + 1)
            skill = self.skills.get(path if end < 0 else path[:end])
            if skill is not None and skill.standing >= least:
                found.append(skill)
            if end < 0:
                break
        return found

    @staticmethod
    def _file(path: str, holders: list[Skill]) -> tuple[Skill, str] | None:
        for skill in reversed(holders):
            file_path = path[len(skill.path) + 1 :]
            if file_path in skill.files:
                return skill, file_path
        return None

    def _inside(self, directory: str, holders: list[Skill]) -> dict[str, tuple[Skill, str] | None] | None:
        outer = holders[0]
        within = directory[len(outer.path) + 1 :]
        prefix = f"{within}/" if within else ""
        found: dict[str, tuple[Skill, str] | None] = {}
        for path in outer.empty:
            if path.startswith(prefix):
                found[path[len(prefix) :].split("/", 1)[0]] = None
        for path in outer.files:
            if path.startswith(prefix):
                name, slash, _ = path[len(prefix) :].partition("/")
                found[name] = None if slash else self._file(f"{directory}/{name}", holders)
        return dict(sorted(found.items())) if found or within in outer.empty or not within else None

    @property
    def all_problems(self) -> list[Problem]:
        """Every problem, skills' first, by skill path."""
        return [p for path in self._paths[Standing.UNUSABLE] for p in self.skills[path].problems] + list(self.problems)
