"""Walk a root and classify the entries of each directory, without judging skills."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import (
    MISSING_ERRORS,
    TRANSIENT_ERRORS,
    Handle,
    WalkedFile,
    is_utf8,
    to_utf8,
)
from mcp_skills_server.format.ignored import VENV_MARKER, is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD

MAX_LEVELS: Final = 64
"""Maximum depth of a walk below a root: each level takes one open descriptor and a few frames."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()
_ALWAYS_KEPT: Final = frozenset((_SKILL_MD_FOLDED, VENV_MARKER))

Entering: TypeAlias = Callable[[str], None]
"""Called with each directory's root-relative path just before it is opened, to begin a watch."""


@dataclass(slots=True)
class Directory:
    """One directory as the walk found it.

    Attributes:
        path: `/`-separated and root-relative, "" for the root itself.
        unserved: kind by name, for each name that is neither served nor entered.
            "link"; "irregular", not a regular file; "foreign", a hard link to a file of another
            user than the folder's; "unnamed", not UTF-8, the name escaped; "denied", the directory
            may be read but not entered; "folder", a SKILL.md that is a directory, which is entered;
            "ignored" and "ignored folder", names that are never part of a skill; "dotted", a dot
            folder outside of every skill that was not entered.
        directories: a list below a skill; elsewhere an iterator, usable once, while the walk's
            first directory is open.
        is_skill: as `holds_manifest`, or a file has that name in another case.
        holds_manifest: an entry has the name SKILL.md, be it a file, a directory or anything else.
        surplus: number of files beyond those kept.
        is_truncated: the directories below are deeper than the walk goes, and unknown.
        is_orphaned: a nested skill without a SKILL.md now, whose files the outer skill must not
            have.
    """

    path: str
    files: dict[str, WalkedFile] = field(default_factory=dict[str, WalkedFile])
    unserved: dict[str, str] = field(default_factory=dict[str, str])
    directories: Iterable[Directory] = ()
    is_skill: bool = False
    holds_manifest: bool = False
    unreadable: bool = False
    surplus: int = 0
    is_truncated: bool = False
    is_orphaned: bool = False

    def named(self, kind: str) -> list[str]:
        """Return the names of one kind in `unserved`."""
        return [name for name, reason in self.unserved.items() if reason == kind]


class Walk:
    """Lazy walk below an open directory.

    Directories outside of skills are visited as they are iterated over, once, while their parent is
    open: a root may hold very many skills, and only one is in memory at a time. `most_files` are
    kept of one directory, beside a SKILL.md. `hidden` also enters dot folders outside of skills.
    `entering` is called for each directory below the first one.
    """

    def __init__(
        self, most_files: int, *, hidden: bool = False, entering: Entering | None = None
    ) -> None:
        self._most_files = most_files
        self._entering, self._hidden = entering, hidden

    def read_directory(
        self, handle: Handle, path: str, depth: int, *, inside: bool = False
    ) -> Directory | None:
        """Classify the entries of an open directory; return None for a Python environment.

        `depth` is the number of levels to walk below it; `inside` is True within a skill.

        Raises:
            OSError: the directory cannot be listed, or the process ran out of descriptors or
                memory; iteration raises it, too.
        """
        here = Directory(path)
        files, unserved = here.files, here.unserved
        prefix = f"{path}/" if path else ""
        inner: list[str] = []
        now, by_descriptor = time.time_ns(), isinstance(handle, int)
        with os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                try:
                    if is_ignored(name):
                        unserved[to_utf8(name)] = _kind_of_ignored(entry)
                    elif not name.isascii() and not is_utf8(name):
                        unserved[to_utf8(name)] = "unnamed"
                    elif entry.is_dir(follow_symlinks=False):
                        inner.append(name)
                    elif entry.is_file(follow_symlinks=False):
                        if len(files) >= self._most_files and name.lower() not in _ALWAYS_KEPT:
                            here.surplus += 1
                            continue
                        if by_descriptor:  # elsewhere (Windows) an entry's own stat has no inode
                            status = entry.stat(follow_symlinks=False)
                        else:
                            status = os.lstat(entry.path)
                        if status.st_nlink > 1 and disk.is_foreign_hard_link(status, handle):
                            unserved[name] = "foreign"
                            continue
                        files[name] = disk.file_from(status, prefix + name, now)
                    elif entry.is_symlink():
                        unserved[name] = "link"
                    else:
                        unserved[name] = "irregular"
                except OSError as error:
                    if error.errno in TRANSIENT_ERRORS:
                        raise
                    if error.errno not in MISSING_ERRORS:  # otherwise it vanished meanwhile
                        unserved[name] = "denied"
        if path and VENV_MARKER in files:
            return None
        if SKILL_MD in inner:
            unserved[SKILL_MD] = "folder"
        here.holds_manifest = SKILL_MD in files or SKILL_MD in unserved
        # A broken skill counts, too: a folder in a skill is no collection of skills.
        here.is_skill = here.holds_manifest or _SKILL_MD_FOLDED in map(str.lower, files)
        inside = inside or here.is_skill
        if unserved and not inside:
            for name in here.named("ignored folder"):
                if not is_entered(name, hidden=True):
                    continue
                if self._hidden:
                    del unserved[name]
                    inner.append(name)
                else:
                    unserved[name] = "dotted"
        if depth <= 0:
            here.is_truncated = bool(inner)
        elif inner:
            below = self._below(handle, prefix, inner, depth - 1, inside=inside)
            here.directories = list(below) if inside else below
        return here

    def _below(
        self, handle: Handle, prefix: str, inner: Sequence[str], depth: int, *, inside: bool
    ) -> Iterator[Directory]:
        for name in inner:
            if self._entering is not None:
                self._entering(prefix + name)
            opened: Handle | None = None
            try:
                try:
                    opened = disk.enter(handle, name)
                    below = self.read_directory(opened, prefix + name, depth, inside=inside)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno in TRANSIENT_ERRORS:
                        raise  # otherwise half a tree would count as deleted
                    below = Directory(prefix + name, unreadable=True)
                if below is not None:
                    yield below
            finally:
                if opened is not None:
                    disk.close(opened)


def _kind_of_ignored(entry: os.DirEntry[str]) -> str:
    if entry.is_dir(follow_symlinks=False) and is_utf8(entry.name):
        return "ignored folder"
    return "ignored"


def ignored_in(root_path: str, directory: str) -> list[str]:
    """Return the sorted paths of files and folders in a skill that are not served for their names.

    An ignored folder is one entry. Nested skills and unreadable folders are skipped.
    """
    paths: list[str] = []

    def collect(here: Directory, prefix: str) -> None:
        paths.extend(f"{prefix}{name}" for name in here.named("ignored"))
        folders = (*here.named("ignored folder"), *here.named("dotted"))
        paths.extend(f"{prefix}{name}/" for name in folders)
        for inner in here.directories:
            if not inner.holds_manifest:
                collect(inner, f"{prefix}{inner.path.rpartition('/')[2]}/")

    with suppress(OSError), disk.open_directory(root_path, directory) as handle:
        here = Walk(most_files=0).read_directory(handle, "", MAX_LEVELS, inside=True)
        if here is not None:
            collect(here, "")
    return sorted(paths)
