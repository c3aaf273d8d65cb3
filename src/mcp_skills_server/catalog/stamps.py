"""Which skill folders of a root are as they were: one stamp for each, from names and stat results alone.

Nothing is opened but directories, and no object is made for a skill. What a stat result does not tell (where a link
leads, what is written to a young file) gives no stamp to rely on. Where names leave a mark in the times of their
directory, a second look lists nothing: each directory and file is as it was, or its skill is looked at anew.
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from mcp_skills_server.catalog.disk import Handle, close, enter, is_settled, signature
from mcp_skills_server.catalog.mounts import timed_device
from mcp_skills_server.catalog.tree import MOST_LEVELS
from mcp_skills_server.format.ignored import FIRSTS, LASTS, is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD

OUTSIDE: Final = "/"
"""Where the stamp of all stands that lies in no skill; no folder has this name."""
YOUNG: Final = "young"
"""The stamp of a skill of which a file is so young that a later write could leave the same signature."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()
_CLOCK_SET_NS: Final = 1_000_000_000
_BETWEEN: Final = b"\0\0\0"


class Stamps(NamedTuple):
    """The stamps of a root, and what a second look needs. All of it can be written as JSON.

    Attributes:
        found: as `stamps` gives them.
        names: for the same places, where a second look need not list them, their directories and files.
        marks: for the same, one text for the stat results of all these.
    """

    found: Mapping[str, str]
    names: Mapping[str, str] = {}
    marks: Mapping[str, str] = {}


def stamps_again(root_path: str, *, hidden: bool, before: Stamps) -> Stamps | None:
    """As `stamps`, after an earlier look at the same root with the same options. Costs a stat of each file."""
    with suppress(OSError):
        handle = enter(None, root_path, follow=True)
        try:
            again = _again(handle, root_path, hidden=hidden, before=before)
            if again is not None:
                return again
        finally:
            close(handle)
    return stamps(root_path, hidden=hidden)


def _again(handle: Handle, root_path: str, *, hidden: bool, before: Stamps) -> Stamps | None:
    """The stamps of skills that lie where they lay; None where one does not."""
    walk = _Walk(hidden=hidden, device=timed_device(root_path))
    for path in sorted(before.found, key=lambda each: each != OUTSIDE):  # what lies outside says whether all are there
        if path in before.names and _mark(handle, before.names[path]) == before.marks.get(path, ""):
            walk.found[path] = before.found[path]
            walk.names[path], walk.marks[path] = before.names[path], before.marks[path]
            continue
        if path == OUTSIDE:
            return None
        opened = [handle]
        try:
            for part in path.split("/") if path else ():
                opened.append(enter(opened[-1], part))
            walk.look(opened[-1], path, None, MOST_LEVELS - len(opened) + 1)
        finally:
            for each in opened[1:]:
                close(each)
        if walk.outside or path not in walk.found:
            return None
    return walk.done() if walk.found.keys() == before.found.keys() else None


def _mark(handle: Handle, names: str) -> str | None:
    """One text for what the system says of these places below an open root, None where there is none."""
    if not isinstance(handle, int):
        return None
    numbers = array("q")
    try:
        for name in names.split("\0"):
            numbers.extend(_numbers(os.stat(name, dir_fd=handle, follow_symlinks=False)))
    except (OSError, ValueError, OverflowError):
        return None
    return _stamp(numbers)


def _numbers(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev, found.st_mode)


def stamps(root_path: str, *, hidden: bool) -> Stamps | None:
    """A stamp for each outermost folder with a SKILL.md, by its place below the root, and one for `OUTSIDE`.

    A stamp changes with the name, place, signature or kind of anything that a scan looks at. It is "" where the folder
    alone does not say what its skill is, for there are links in it, and `YOUNG` where a change could leave it the same.
    None where either holds for what lies outside, or a folder cannot be listed.

    Args:
        root_path: the root, absolute and resolved.
        hidden: dot folders are entered, outside of skills.
    """
    walk = _Walk(hidden=hidden, device=timed_device(root_path))
    try:
        handle = enter(None, root_path, follow=True)
        try:
            walk.look(handle, "", None, MOST_LEVELS)
        finally:
            close(handle)
    except OSError:
        return None
    if walk.unsure:
        return None
    walk.found[OUTSIDE] = _stamp(_BETWEEN.join(walk.outside))
    walk.keep(OUTSIDE, walk.outside_entries)
    return walk.done()


class _Moment:
    """When it was made, by a clock that can be set and by one that cannot."""

    def __init__(self) -> None:
        self.ns = time.time_ns()
        self._monotonic_ns = time.monotonic_ns()

    def is_comparable(self) -> bool:
        """Tell whether times of files may be compared with it: the clock that they are of was not set since."""
        return abs((time.time_ns() - self.ns) - (time.monotonic_ns() - self._monotonic_ns)) < _CLOCK_SET_NS


class _Entries:
    """Directories and files as they are found, for a mark of them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers = array("q")
        self.sure = True
        """Whether a later look at each of them is enough."""


class _Walk:
    def __init__(self, *, hidden: bool, device: int | None) -> None:
        self.found: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.marks: dict[str, str] = {}
        self.outside_entries = _Entries()
        self._entries = self.outside_entries
        self._device = device
        self._since = _Moment()
        self.outside: list[bytes] = []
        self.unsure = False
        """Whether what lies outside of skills may change without another stamp."""
        self._hidden = hidden
        self._now = time.time_ns()
        self._young = False
        """Whether a young file was found since the last skill."""

    def done(self) -> Stamps:
        """What was found; nothing for a second look where the clock was set meanwhile."""
        comparable = self._since.is_comparable()
        return Stamps(self.found, self.names if comparable else {}, self.marks if comparable else {})

    def keep(self, path: str, entries: _Entries) -> None:
        """Have a second look at what lies there list nothing, where it need not."""
        if entries.sure:
            self.names[path] = "\0".join(entries.names)
            self.marks[path] = _stamp(entries.numbers)

    def look(self, handle: Handle, path: str, unit: list[bytes] | None, depth: int) -> bool:
        """Look at an open directory, of the skill with the listings `unit` if it lies in one. Whether all is sure."""
        here: list[str] = []
        inner: list[str] = []
        dotted: list[str] = []
        by_descriptor, now = isinstance(handle, int), self._now
        sure, begins = depth > 0, False
        seen: list[tuple[str, os.stat_result]] = []
        with os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                ignored = (name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name)
                begins = begins or (len(name) == len(SKILL_MD) and name.lower() == _SKILL_MD_FOLDED)
                if entry.is_dir(follow_symlinks=False):
                    here.append(f"{name}/")
                    if not ignored:
                        inner.append(name)
                    elif is_entered(name, hidden=True):
                        dotted.append(name)
                elif ignored:
                    here.append(name)
                elif entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False) if by_descriptor else os.lstat(entry.path)
                    here.append(f"{name}\0{signature(found)}")
                    seen.append((name, found))
                    sure = sure and found.st_nlink == 1
                    self._young = self._young or not is_settled(found, now)
                else:
                    here.append(name)
                    sure = False
        here.sort()
        try:
            listing = "\0\0".join((path, *here)).encode()
        except UnicodeEncodeError:
            listing, sure = b"", False
        outer = unit
        if unit is None and begins:
            unit, self._entries = [], _Entries()
        if self._entries.sure:
            self._note(handle, path, seen)
        if unit is None and dotted:
            inner += dotted if self._hidden else ()
            sure = sure and self._hidden  # a run says which skills lie in them
        (self.outside if unit is None else unit).append(listing)
        if unit is None:
            self.unsure = self.unsure or self._young or not sure
            self._young = False
        for name in inner if depth > 0 else ():
            opened = enter(handle, name)
            try:
                within = self.look(opened, f"{path}/{name}" if path else name, unit, depth - 1)
            finally:
                close(opened)
            sure = sure and (within or unit is None)
        if unit is not None and outer is None:
            self.found[path] = (YOUNG if self._young else _stamp(_BETWEEN.join(unit))) if sure else ""
            if sure and not self._young:
                self.keep(path, self._entries)
            self._entries = self.outside_entries
            self._young = False
        return sure

    def _note(self, handle: Handle, path: str, files: list[tuple[str, os.stat_result]]) -> None:
        """Have a directory and its files looked at again, where that is enough to know that there are no others."""
        entries = self._entries
        found = os.fstat(handle) if isinstance(handle, int) else None
        if found is None or found.st_dev != self._device or not is_settled(found, self._since.ns):
            entries.sure = False
            return
        prefix = f"{path}/" if path else ""
        try:
            for name, each in ((path or ".", found), *((prefix + name, each) for name, each in files)):
                entries.names.append(name)
                entries.numbers.extend(_numbers(each))
        except OverflowError:
            entries.sure = False


def _stamp(what: bytes | array[int]) -> str:
    return hashlib.blake2b(what, digest_size=16).hexdigest()
