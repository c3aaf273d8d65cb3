"""Immutable snapshots of all skills, and the difference of two."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from mcp_skills_server.model.skill import MAX_PATH, Problem, Skill, SkillFile, Standing


@dataclass(frozen=True)
class Changes:
    """Difference of two snapshots.

    Attributes:
        before: the skills that were removed or replaced, by skill path.
        after: the skills that were added or that replaced one, by skill path.
    """

    before: Mapping[str, Skill]
    after: Mapping[str, Skill]

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def then(self, later: Changes) -> Changes:
        """Return these changes followed by later ones, as one difference."""
        before = {path: skill for path, skill in later.before.items() if path not in self.after}
        after = {path: skill for path, skill in self.after.items() if path not in later.before}
        return Changes({**self.before, **before}, {**after, **later.after})

    @cached_property
    def files(self) -> frozenset[tuple[str, str]]:
        """(skill path, file path) of every file that was added, removed or changed."""
        old, new = _files_of(self.before), _files_of(self.after)
        return frozenset(file for file in old | new if old.get(file) != new.get(file))


def _files_of(skills: Mapping[str, Skill]) -> dict[tuple[str, str], SkillFile]:
    return {
        (path, relative): file
        for path, skill in skills.items()
        for relative, file in skill.files.items()
    }


class Snapshot:
    """Immutable state of all skills at one time.

    Most lookups take a minimum `Standing`: `VALID` for skills that every protocol serves, `LENIENT`
    for readable ones, `UNUSABLE` for all.

        for path in snapshot.paths(Standing.VALID):
            print(path, snapshot.skills[path].description)

    Args:
        skills: by skill path; the dict belongs to the snapshot from then on.

    Attributes:
        skills: by skill path, unusable ones included.
        problems: problems of no served skill: shadowed skills, unreadable roots.
    """

    def __init__(self, skills: dict[str, Skill], problems: tuple[Problem, ...] = ()) -> None:
        self.skills = MappingProxyType(skills)
        self.problems = problems

    def differing(self, earlier: Snapshot) -> Collection[str]:
        """Return the skill paths whose skill differs from that in an earlier snapshot."""
        old, new = earlier.skills, self.skills
        return {path for path in old.keys() | new.keys() if old.get(path) is not new.get(path)}

    @cached_property
    def _paths(self) -> dict[Standing, list[str]]:
        ordered = sorted(self.skills)
        return {
            least: [path for path in ordered if self.skills[path].standing >= least]
            for least in Standing
        }

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """The skill paths, in order, by the frontmatter's name."""
        names: dict[str, list[str]] = {}
        for path in self._paths[Standing.UNUSABLE]:
            names.setdefault(self.skills[path].name, []).append(path)
        return names

    def paths(self, least: Standing) -> list[str]:
        """Return the paths of skills of `least` standing, sorted. Do not change the list."""
        return self._paths[least]

    def named(self, name: str, least: Standing) -> list[str]:
        """Return the paths of the skills with this frontmatter name, in order."""
        return [path for path in self._names.get(name, ()) if self.skills[path].standing >= least]

    def page(self, after: str | None, size: int, least: Standing) -> tuple[list[Skill], str | None]:
        """Return a page of up to `size` skills in path order, and the cursor of the next page.

        Keyset pagination: skills that come or go between two pages neither skip nor repeat others.

        Args:
            after: the skill path that ended the page before; None for the first page.
            size: skills of one page, at least 1.
            least: the minimum standing.

        Returns:
            The skills, and the path to pass as `after` next, None after the last page.
        """
        paths = self._paths[least]
        start = 0 if after is None else bisect_left(paths, after + "\0")
        chosen = paths[start : start + size]
        next_after = chosen[-1] if start + size < len(paths) else None
        return [self.skills[path] for path in chosen], next_after

    def find(self, segments: tuple[str, ...], least: Standing) -> tuple[Skill, str] | None:
        """Return the innermost skill that has the file of this path, and its path in it, or None.

        Dict lookups only: the segments never become a path on disk.

        Args:
            segments: the skill path and the file's path in the skill, split at the slashes.
            least: the minimum standing.
        """
        path = "/".join(segments)
        return self._file(path, self._holders(path, least))

    def children(
        self, segments: tuple[str, ...], least: Standing
    ) -> dict[str, tuple[Skill, str] | None] | None:
        """Return the direct children of a directory in or above skills.

        Args:
            segments: the path of the directory, split at the slashes.
            least: the minimum standing of a skill.

        Returns:
            By name, in order: (skill, path in it) of a file, None for a directory. None if there is
            no such directory.
        """
        directory = "/".join(segments)
        holders = self._holders(directory, least)
        if holders:
            return self._inside(directory, holders)
        prefix = directory + "/"
        paths = self._paths[least]
        children: dict[str, tuple[Skill, str] | None] = {}
        position = bisect_left(paths, prefix)
        while position < len(paths) and paths[position].startswith(prefix):
            name, slash, _ = paths[position][len(prefix) :].partition("/")
            children[name] = None
            position += 1
            # Skip the paths below this child, which are contiguous: "0" is the character after "/".
            if slash:
                position = bisect_left(paths, f"{prefix}{name}0", position)
        return children or None

    @cached_property
    def _deepest(self) -> int:
        """Number of segments of the deepest skill path."""
        return max((path.count("/") + 1 for path in self.skills), default=0)

    def _holders(self, path: str, least: Standing) -> list[Skill]:
        """Return the skills at or above this path, the outermost first.

        Bounded by the depth of the skill paths, however long `path` is.
        """
        holders: list[Skill] = []
        end = -1
        for _ in range(self._deepest if len(path) <= MAX_PATH else 0):
            end = path.find("/", end + 1)
            skill = self.skills.get(path if end < 0 else path[:end])
            if skill is not None and skill.standing >= least:
                holders.append(skill)
            if end < 0:
                break
        return holders

    @staticmethod
    def _file(path: str, holders: list[Skill]) -> tuple[Skill, str] | None:
        for skill in reversed(holders):
            file_path = path[len(skill.path) + 1 :]
            if file_path in skill.files:
                return skill, file_path
        return None

    def _inside(
        self, directory: str, holders: list[Skill]
    ) -> dict[str, tuple[Skill, str] | None] | None:
        outer = holders[0]
        within = directory[len(outer.path) + 1 :]
        prefix = within and f"{within}/"
        children: dict[str, tuple[Skill, str] | None] = {}
        # an empty directory ends with a slash here, so that it reads as one that holds a file
        for path in (*(f"{empty}/" for empty in outer.empty), *outer.files):
            if path.startswith(prefix):
                name, slash, _ = path[len(prefix) :].partition("/")
                if name:
                    children[name] = None if slash else self._file(f"{directory}/{name}", holders)
        if children or within in outer.empty or not within:
            return dict(sorted(children.items()))
        return None

    @property
    def all_problems(self) -> list[Problem]:
        """All problems, those of skills first, by skill path."""
        skills = (self.skills[path] for path in self._paths[Standing.UNUSABLE])
        return [*(problem for skill in skills for problem in skill.problems), *self.problems]
