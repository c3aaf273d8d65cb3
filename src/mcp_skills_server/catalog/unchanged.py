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
from collections.abc import Iterable, Sequence

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.bundle import over_limits
from mcp_skills_server.catalog.fetched import Origins
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.stored_root import StoredFolder, StoredRoot, StoredSkill
from mcp_skills_server.catalog.tree import Directory, Entering
from mcp_skills_server.format.ignored import FIRSTS, LASTS, is_ignored
from mcp_skills_server.model import SKILL_MD, Reading, Skill, SkillFile


def mark_of(here: Directory) -> str:
    """The mark of a skill's folder as a walk found it, "" where a look at what lies in it would not be enough."""
    found: list[tuple[str, str]] = []
    todo: list[Directory] = [here]
    for each in todo:
        if not each.mark or each.folder_as_manifest or (each.holds_manifest and each is not here):
            return ""
        found.append((each.path, each.mark))
        todo += each.directories
    cut = len(here.path) + 1
    return _mark((path[cut:], mark) for path, mark in found)


def _mark(signatures: Iterable[tuple[str, str]]) -> str:
    """Of the directories of a skill, by their places in it, "" for its own."""
    lines = "\n".join(f"{signature} {place}" for place, signature in sorted(signatures))
    return hashlib.blake2b(os.fsencode(lines), digest_size=16).hexdigest()


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
        self, root: Root, stored: StoredRoot, limits: Limits, origins: Origins, device: int, entering: Entering | None
    ) -> None:
        self._root = root
        self._stored = stored
        self._limits = limits
        self._origins = origins
        self._device = device
        self._entering = entering

    def find(self, handle: disk.Handle, name: str, place: str) -> tuple[Skill, str] | None:
        """The skill in a directory and its mark, None where it must be scanned.

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
        except (OSError, ValueError):  # it is gone, say, or no name at all
            return None
        if files is None or any(over_limits(place, files, self._limits)):
            return None
        reading = located(reading, self._root, place, place)
        origin = self._origins.of(place)
        empty = tuple(folder.empty)
        return Skill(
            place, self._root.index, place, reading, files, (), reading.standing, empty, origin=origin
        ), folder.mark

    def _is_same(self, handle: int, name: str, place: str, folder: StoredFolder) -> bool:
        """Whether its directories are those that were listed, with the names that they had then."""
        now = time.time_ns()
        signatures: list[tuple[str, str]] = []
        for each in ("", *folder.inner):
            if each:
                if not _is_served(each, folder.inner):
                    return False
                if self._entering is not None:
                    self._entering(f"{place}/{each}")
            found = os.stat(f"{name}/{each}" if each else name, dir_fd=handle, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode) or found.st_dev != self._device:
                return False
            signatures.append((each, disk.settled_signature(found, now)))
        return _mark(signatures) == folder.mark

    def _files(
        self, handle: int, name: str, place: str, known: StoredSkill, folder: StoredFolder
    ) -> dict[str, SkillFile] | None:
        """Its files if each is the one that was there, by its path in the skill."""
        now, root, cut = time.time_ns(), self._root.index, len(place) + 1
        out: dict[str, SkillFile] = {}
        for location, (digest, signature) in known.digests.items():
            path = location[cut:]
            if location[:cut] != f"{place}/" or not _is_served(path, folder.inner):
                return None
            found = os.stat(f"{name}/{path}", dir_fd=handle, follow_symlinks=False)
            file = disk.file_from(found, root, location, now)
            if file.signature != signature or not file.mtime_reliable or not stat.S_ISREG(found.st_mode):
                return None
            if found.st_nlink > 1:  # it may come to belong to somebody else
                return None
            if not disk.is_digest(digest):
                return None
            file.digest = digest
            out[sys.intern(path)] = file
        manifest = out.get(SKILL_MD)
        if manifest is None or manifest.signature != known.signature or manifest.size > self._limits.skill_md:
            return None
        return out


def _is_served(path: str, inner: Sequence[str]) -> bool:
    """Whether a walk of the skill would come to this path: its name is served, and what holds it is among these."""
    above, _, name = path.rpartition("/")
    if not name or (above and above not in inner):
        return False
    return not ((name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name)) and (
        name.isascii() or disk.is_utf8(name)
    )


def located(reading: Reading, root: Root, directory: str, path: str) -> Reading:
    """The reading with its problems at the SKILL.md of this directory, of the skill with this path."""
    if not reading.problems:
        return reading
    place = root.show(f"{directory}/{SKILL_MD}" if directory else SKILL_MD)
    return reading._replace(problems=tuple(found.at(found.path or place, path) for found in reading.problems))
