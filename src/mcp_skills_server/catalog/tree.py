"""Walks a root: what lies in each directory, by kind, and nothing of what it means."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from mcp_skills_server.catalog.disk import (
    GONE,
    PASSING,
    Handle,
    close,
    enter,
    file_from,
    is_foreign,
    is_utf8,
    look,
    open_directory,
    spelled,
)
from mcp_skills_server.format.ignored import ENVIRONMENT, FIRSTS, LASTS, is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD, SkillFile

MOST_LEVELS: Final = 64
"""Levels below a root at which a walk ends in any case: each takes one open descriptor and a few
frames."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()

Entering: TypeAlias = Callable[[str], None]
"""Called with the place of each directory below the root just before it is opened, so that a watch
can begin there."""


@dataclass(slots=True)
class Directory:
    """One directory as the walk found it.

    Attributes:
        path: from the root, `/`-separated, "" for the root itself.
        files: by their names.
        odd: the kind of every other name that is no directory to enter: "link"; "irregular" for
            what is no file; "foreign" for a hard link to a file of another user than the folder's;
            "unnamed" for a name that is not UTF-8, with escapes; "denied" where the directory may
            be read but not entered; "ignored" and "ignored folder" for names that are never part of
            a skill; "dotted" for a folder outside of every skill that was passed over for the dot
            that begins its name.
        directories: below a skill a sequence; elsewhere they can be had once, while the walk's
            first directory is open.
        holds_manifest: something here has the name SKILL.md, be it a file, a directory or anything
            else.
        folder_as_manifest: it is a directory.
        unreadable: nothing is known of what it holds.
        overfull: how many more files there are than were kept.
        cut: deeper than the walk goes: what lies below is not known.
        is_withheld: it was a nested skill and has no SKILL.md now, so the skill around it has none
            of its files.
    """

    path: str
    files: dict[str, SkillFile] = field(default_factory=dict[str, SkillFile])
    odd: dict[str, str] = field(default_factory=dict[str, str])
    directories: Iterable[Directory] = ()
    holds_manifest: bool = False
    folder_as_manifest: bool = False
    unreadable: bool = False
    overfull: int = 0
    cut: bool = False
    is_withheld: bool = False

    def named(self, kind: str) -> list[str]:
        """Return the names of a kind of `odd`."""
        return [name for name, each in self.odd.items() if each == kind]


class Walk:
    """A walk below an open directory.

    What lies below a directory that is no skill is looked for as it is iterated over, once, while
    that is open: a root may hold very many skills, and one is to be had at a time.

    Args:
        root: index of the root.
        most_files: files kept of one directory.
        hidden: enter folders whose names begin with a dot, too, outside of skills.
        entering: called for each directory below the first one.
    """

    def __init__(
        self, root: int, most_files: int, *, hidden: bool = False, entering: Entering | None = None
    ) -> None:
        self._root = root
        self._most_files = most_files
        self._entering = entering
        self._hidden = hidden

    def look(
        self, handle: Handle, path: str, depth: int, *, inside: bool = False
    ) -> Directory | None:
        """Return what lies in an open directory at `path` and `depth` levels below it; None in a
        Python environment.

        `inside` is whether it lies in a skill.

        Raises:
            OSError: the directory cannot be listed, or the process ran out of descriptors or
                memory; the iteration raises it, too.
        """
        here = Directory(path)
        files, odd = here.files, here.odd
        prefix = ""
        if path:
            prefix = f"{path}/"
        inner: list[str] = []
        root, now, by_descriptor = self._root, time.time_ns(), isinstance(handle, int)
        with os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                try:
                    if (name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name):
                        odd[spelled(name)] = _kind_of_ignored(entry)
                    elif not name.isascii() and not is_utf8(name):
                        odd[spelled(name)] = "unnamed"
                    elif entry.is_dir(follow_symlinks=False):
                        inner.append(name)
                    elif entry.is_file(follow_symlinks=False):
                        if len(files) > self._most_files and name.lower() != _SKILL_MD_FOLDED:
                            here.overfull += 1
                            continue
                        if by_descriptor:
                            found = entry.stat(follow_symlinks=False)
                        else:
                            found = os.lstat(entry.path)
                        if found.st_nlink > 1 and is_foreign(found, handle):
                            odd[name] = "foreign"
                            continue
                        files[name] = file_from(found, root, prefix + name, now)
                    elif entry.is_symlink():
                        odd[name] = "link"
                    else:
                        odd[name] = "irregular"
                except OSError as error:
                    if error.errno in PASSING:
                        raise
                    if error.errno not in GONE:  # else it vanished meanwhile
                        odd[name] = "denied"
        if path and ENVIRONMENT in files:
            return None
        here.folder_as_manifest = SKILL_MD in inner
        here.holds_manifest = SKILL_MD in files or SKILL_MD in odd or here.folder_as_manifest
        # Be it a broken one: nothing in a skill is a collection any more.
        inside = (
            inside or here.holds_manifest or any(name.lower() == _SKILL_MD_FOLDED for name in files)
        )
        if odd and not inside:
            dotted = [
                name for name in here.named("ignored folder") if is_entered(name, hidden=True)
            ]
            if self._hidden:
                inner += dotted
            else:
                odd.update(dict.fromkeys(dotted, "dotted"))
        if depth <= 0:
            here.cut = bool(inner)
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
                    opened = enter(handle, name)
                    below = self.look(opened, prefix + name, depth, inside=inside)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno in PASSING:
                        raise  # or half a tree would be taken for gone
                    below = Directory(prefix + name, unreadable=True)
                if below is not None:
                    yield below
            finally:
                if opened is not None:
                    close(opened)


def _kind_of_ignored(entry: os.DirEntry[str]) -> str:
    if entry.is_dir(follow_symlinks=False) and is_utf8(entry.name):
        return "ignored folder"
    return "ignored"


def instead(root_path: str, path: str, error: OSError) -> Directory | None:
    """Return what a walk of the whole root would find at a directory that cannot be opened, None
    when it finds nothing.
    """
    if isinstance(error, PermissionError):
        return Directory(path, unreadable=True)
    if error.errno in GONE:
        return link_at(root_path, path)
    return None


def link_at(root_path: str, path: str) -> Directory | None:
    """Return the directory above a place, with nothing but the link that stands there; None where
    none does."""
    found = look(root_path, path)
    if found is None or not stat.S_ISLNK(found.st_mode):
        return None
    parent, _, name = path.rpartition("/")
    return Directory(parent, odd={name: "link"})


def ignored_in(root_path: str, directory: str) -> list[str]:
    """Return the files and folders below a skill that are no part of it for their names, by their
    paths in it, in order.

    Of an ignored folder the folder alone is named. Skills within are passed over, and so is what
    cannot be opened.
    """
    found: list[str] = []

    def collect(here: Directory, prefix: str) -> None:
        found.extend(f"{prefix}{name}" for name in here.named("ignored"))
        found.extend(
            f"{prefix}{name}/" for kind in ("ignored folder", "dotted") for name in here.named(kind)
        )
        for inner in here.directories:
            if not inner.holds_manifest:
                collect(inner, f"{prefix}{inner.path.rpartition('/')[2]}/")

    with suppress(OSError), open_directory(root_path, directory) as handle:
        here = Walk(0, 0).look(handle, "", MOST_LEVELS, inside=True)
        if here is not None:
            collect(here, "")
    return sorted(found)
