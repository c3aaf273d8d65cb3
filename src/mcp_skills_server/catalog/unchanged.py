"""Skill folders that are as an earlier process left them, known by stat results alone: no directory is listed.

Where names leave a mark in the times of their directory, a directory of the same signature holds the same names, so a
look at each that was known is enough. A skill has a mark of that kind where nothing else says what it is: no link, no
other skill in it, no problem of its folder, nothing young. What an index says is text of a file: every name is judged
again before it becomes a path.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import Final

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.bundle import over_limits
from mcp_skills_server.catalog.fetched import Origins
from mcp_skills_server.catalog.mounts import timed_device
from mcp_skills_server.catalog.path_index import above
from mcp_skills_server.catalog.reading import located
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.stored_root import StoredFolder, StoredRoot, StoredSkill, directories_in
from mcp_skills_server.catalog.tree import Entering
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.model import SKILL_MD, Skill, SkillFile

_CLOCK_SET_NS: Final = 1_000_000_000
_INNER: Final = f"/{SKILL_MD}"


class Moment:
    """When it was made, by a clock that can be set and by one that cannot."""

    def __init__(self) -> None:
        self.ns = time.time_ns()
        self._monotonic_ns = time.monotonic_ns()

    def is_comparable(self) -> bool:
        """Whether times of files may be compared with it: the clock that they are of was not set since."""
        return abs((time.time_ns() - self.ns) - (time.monotonic_ns() - self._monotonic_ns)) < _CLOCK_SET_NS


def may_have_mark(skill: Skill) -> bool:
    """Whether a look at each of its directories and files can say that a skill without others in it is the same."""
    prefix = f"{skill.directory}/"
    return (
        bool(skill.directory)
        and not skill.findings
        and all(file.location == prefix + path for path, file in skill.files.items())
        and not any(path.endswith(_INNER) for path in skill.files)
    )


class FolderMarks:
    """Marks of the folders of a root's skills.

    A directory of which the last change lies before the scan that read its names, and that by more than its times may
    be wrong by, holds these names still.

    Args:
        root_path: the root.
        skills: all of its skills.
        since: when the last scan of all of it began; parts of it may have been scanned again.
    """

    def __init__(self, root_path: str, skills: Sequence[Skill], since: Moment) -> None:
        self._root_path = root_path
        self._since = since
        self._device = timed_device(root_path)
        places = {skill.directory for skill in skills}
        self._outer = {up for place in places for up in above(place) if up != place and up in places}

    def of(self, skill: Skill) -> bytes:
        """The mark of this skill's folder, b"" where it has none."""
        if skill.directory in self._outer or self._device is None or not may_have_mark(skill):
            return b""
        lines: list[str] = []
        top = os.path.join(self._root_path, skill.directory)
        try:
            for each in ("", *directories_in(skill)):
                found = os.lstat(f"{top}{os.sep}{each}" if each else top)
                known = disk.settled_signature(found, self._since.ns)
                if not known or found.st_dev != self._device or not stat.S_ISDIR(found.st_mode):
                    return b""
                lines.append(f"{known} {each}")
        except OSError:
            return b""
        return _mark(lines) if self._since.is_comparable() else b""


def _mark(lines: list[str]) -> bytes:
    """Of the directories of a skill, each with its signature and its place in the skill, in the order of places."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).digest()


class UnchangedSkills:
    """The skills of a root that need no scan, because an earlier process made one and nothing has changed since.

    Args:
        root: the root, which is no skill itself.
        stored: what the earlier process knew.
        limits: what a skill may measure.
        origins: where skills come from.
        device: of the file system on which names leave a mark.
        entering: called with the place of each directory of a skill but its own before that is looked at.
    """

    def __init__(
        self,
        root: Root,
        stored: StoredRoot,
        limits: Limits,
        origins: Origins,
        *,
        device: int,
        entering: Entering | None,
    ) -> None:
        self._root = root
        self._stored = stored
        self._limits = limits
        self._origins = origins
        self._device = device
        self._entering = entering
        self._holders: dict[str, str | None] = {}
        """Many skills have files of the same paths: for each path what `_holder` says."""

    def find(self, handle: disk.Handle, name: str, place: str) -> Skill | None:
        """The skill in a directory, None where it must be scanned.

        Args:
            handle: the open directory above it.
            name: its name in that.
            place: the same from the root.
        """
        if not isinstance(handle, int) or place not in self._stored:
            return None
        known = self._stored.skill(place)
        folder, reading = known.folder, known.reading
        if folder is None or reading is None or self._origins.is_copy(place):
            return None
        try:
            if not self._is_same(handle, name, place, folder):
                return None
            files = self._files(handle, name, place, known, folder)
        except (OSError, ValueError, TypeError, AttributeError):  # it is gone, or the index is made up
            return None
        if files is None or any(over_limits(place, files, self._limits)):
            return None
        reading = located(reading, self._root, place, place)
        origin, empty = self._origins.of(place), tuple(folder.empty)
        return Skill(place, self._root.index, place, reading, files, (), reading.standing, empty, origin=origin)

    def _is_same(self, handle: int, name: str, place: str, folder: StoredFolder) -> bool:
        """Whether its directories are those that were listed, with the names that they had then."""
        now, entering, device = time.time_ns(), self._entering, self._device
        directories = ("", *folder.inner)
        lines: list[str] = []
        for number, each in enumerate(directories):
            path = name
            if number:
                if self._holder(each) not in directories:
                    return False
                if entering is not None:
                    entering(f"{place}/{each}")
                path = f"{name}/{each}"
            found = os.stat(path, dir_fd=handle, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode) or found.st_dev != device:
                return False
            lines.append(f"{disk.settled_signature(found, now)} {each}")
        return _mark(lines) == folder.mark

    def _files(
        self, handle: int, name: str, place: str, known: StoredSkill, folder: StoredFolder
    ) -> dict[str, SkillFile] | None:
        """Its files if each is the one that was there, by its path in the skill."""
        now, root, cut = time.time_ns(), self._root.index, len(place) + 1
        directories = ("", *folder.inner)
        out: dict[str, SkillFile] = {}
        for location, (digest, signature) in known.digests.items():
            path = location[cut:]
            if location[:cut] != f"{place}/" or self._holder(path) not in directories:
                return None
            found = os.stat(f"{name}/{path}", dir_fd=handle, follow_symlinks=False)
            file = disk.file_from(found, root, location, now)
            if file.signature != signature or not file.mtime_reliable or not stat.S_ISREG(found.st_mode):
                return None
            if found.st_nlink > 1 or not disk.is_digest(digest):  # a hard link may be somebody else's: the scan judges
                return None
            file.digest = digest
            out[sys.intern(path)] = file
        manifest = out.get(SKILL_MD)
        if manifest is None or manifest.signature != known.signature or manifest.size > self._limits.skill_md:
            return None
        return out

    def _holder(self, path: str) -> str | None:
        """The directory that must be one of the skill's for a walk to come to this path; None where none does."""
        if path not in self._holders:
            above, _, name = path.rpartition("/")
            is_served = name and not is_ignored(name) and disk.is_utf8(name)
            self._holders[path] = above if is_served else None
        return self._holders[path]
