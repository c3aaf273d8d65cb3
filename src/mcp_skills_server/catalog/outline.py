"""A first look at the roots: which skills there seem to be, by the names of their directories, within a bounded time.

A host asks what there is before a large folder is scanned, and asks once. So this looks only for directories that hold
a SKILL.md, and reads the few whose names a model gets first. It is a guess that the scan replaces: nothing is
served from it.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index, StoredSkills
from mcp_skills_server.catalog.path_index import join
from mcp_skills_server.catalog.roots import Limits, Root, merge
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format.ignored import is_entered
from mcp_skills_server.model import SKILL_MD, Reading, Skill, Snapshot, Standing

WALK_S: Final = 0.15
READ_S: Final = 0.1
LEAST_READ: Final = 50
"""So many are read however long it takes: some milliseconds, and on a busy machine there are names all the same."""

_NAMES: Final = 50
"""After so many names of one directory the time is looked at: it may have very many, or lie on a slow disk."""
_UNREAD: Final = Reading({}, None, Standing.LENIENT, ())

Order = Callable[[Sequence[Skill]], Iterable[Skill]]


class Outline(NamedTuple):
    """What a first look found.

    Attributes:
        snapshot: a skill for each directory that holds a SKILL.md; those that were not read have no frontmatter, and
            none has files.
        read: paths of the skills whose SKILL.md was read.
        cut: whether the time was over before every directory was seen.
    """

    snapshot: Snapshot
    read: frozenset[str] = frozenset()
    cut: bool = False


def outline(
    roots: Sequence[Root],
    limits: Limits,
    order: Order,
    characters: int,
    *,
    now: Callable[[], float] = time.monotonic,
    index: Index | None = None,
) -> Outline:
    """Look at the roots.

    Args:
        roots: the earlier one wins.
        limits: what a skill may measure.
        order: in which order a model gets the names of skills.
        characters: how much text that is at the most: reading ends when the names are as long together.
        now: seconds of a clock that never goes back.
        index: what an earlier process knew. It stands for what the time does not suffice to look at, and a SKILL.md
            that has not changed since is not read.
    """
    begun = now()
    stored = {} if index is None else {root.index: index.skills(root.path) for root in roots}
    known = {rank: each for rank, each in stored.items() if each is not None}
    walk = _FirstLook(roots, limits, known)
    cut = not walk.go_on(lambda: now() - begun < WALK_S)
    if cut and len(known) == len(roots):
        cut = False
        for root, found in zip(roots, walk.found, strict=True):
            found.extend(filter(walk.may_hold_skill, known[root.index].directories))
    skills = merge(_supposed(root, dict.fromkeys(found)) for root, found in zip(roots, walk.found, strict=True))[0]
    read: set[str] = set()
    begun = now()
    for skill in order([skills[path] for path in sorted(skills)]):
        if characters < 0 or (now() - begun >= READ_S and len(read) >= LEAST_READ):
            break
        seen = _read(roots[skill.root], skill, limits, known.get(skill.root))
        if seen is not None:
            skills[skill.path] = seen
            read.add(skill.path)
            characters -= len(seen.name) + 2 if seen.standing > Standing.UNUSABLE else 0
    return Outline(Snapshot(skills), frozenset(read), cut)


class _FirstLook:
    """Goes through directories, the upper ones first, and not into skills: what lies in them only a scan finds."""

    def __init__(self, roots: Sequence[Root], limits: Limits, known: Mapping[int, StoredSkills]) -> None:
        self.found: list[list[str]] = [[] for _ in roots]
        """Directories of skills, by root."""
        self._known = known
        self._depth = limits.depth
        self._hidden = limits.hidden
        self._todo: deque[tuple[Root, str]] = deque()
        for root in roots:
            self._note(root, "", is_skill=_holds_skill(root.path, "."))

    def go_on(self, may: Callable[[], bool]) -> bool:
        """Go on while it may, and return whether everything was seen."""
        while self._todo:
            if not may():
                return False
            root, directory = self._todo.popleft()
            try:
                with disk.open_directory(root.path, directory) as handle:
                    inner = _directories(handle, hidden=self._hidden) if self._is_in_reach(directory) else ()
                    for number, name in enumerate(inner, 1):
                        if number % _NAMES == 0 and not may():
                            return False
                        place = join(directory, name)
                        is_known = root.index in self._known and place in self._known[root.index]
                        self._note(root, place, is_skill=is_known or _holds_skill(handle, name))
            except OSError:
                continue
        return True

    def _note(self, root: Root, directory: str, *, is_skill: bool) -> None:
        if is_skill:
            self.found[root.index].append(directory)
        elif not (root.namespace and directory):  # of a plugin only what lies right below its skills folder
            self._todo.append((root, directory))

    def may_hold_skill(self, directory: str) -> bool:
        """Tell whether a skill in this directory would be looked for."""
        steps = directory.split("/") if directory else []
        return len(steps) <= self._depth and all(is_entered(step, hidden=self._hidden) for step in steps)

    def _is_in_reach(self, directory: str) -> bool:
        return (directory.count("/") + 1 if directory else 0) < self._depth


def _directories(handle: disk.Handle, *, hidden: bool) -> Iterator[str]:
    with os.scandir(handle) as entries:
        for entry in entries:
            name = entry.name
            if is_entered(name, hidden=hidden) and entry.is_dir(follow_symlinks=False) and disk.is_utf8(name):
                yield name


def _holds_skill(handle: disk.Handle, name: str) -> bool:
    place = f"{name}/{SKILL_MD}"
    try:
        if isinstance(handle, int):
            found = os.stat(place, dir_fd=handle, follow_symlinks=False)
        else:
            found = os.lstat(f"{handle}/{place}")
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)


def _supposed(root: Root, directories: Collection[str]) -> Iterator[Skill]:
    """Yield a skill for each of these directories, by the rule that it has the directory's name."""
    namespace = disk.spelled(os.path.basename(root.path)) if "" in directories else root.namespace
    for directory in directories:
        path = "/".join(part for part in (namespace, directory) if part) or "root"
        yield Skill(path, root.index, directory, _UNREAD, {}, (), Standing.LENIENT, origin=root.origin)


def _read(root: Root, skill: Skill, limits: Limits, stored: StoredSkills | None) -> Skill | None:
    """Return the skill with what its SKILL.md says, None where that cannot be known (yet)."""
    location = join(skill.directory, SKILL_MD)
    found = disk.look(root.path, location)
    if found is None or not stat.S_ISREG(found.st_mode):
        return None
    file = disk.file_from(found, root.index, location, time.time_ns())
    fields = None
    if file.size <= limits.skill_md:
        before = None if stored is None else stored.skill(skill.directory)
        try:
            if before is not None and before.reading is not None and before.signature == file.signature:
                fields = before.reading.frontmatter if before.reading.standing > Standing.UNUSABLE else None
            else:
                from mcp_skills_server.format import frontmatter

                fields = frontmatter.parse(disk.read(root.path, file)).frontmatter
        except StaleFileError:
            return None
    standing = Standing.UNUSABLE if fields is None else Standing.LENIENT
    reading = Reading(fields or {}, None, standing, ())
    return Skill(skill.path, root.index, skill.directory, reading, {}, (), standing, origin=root.origin)
