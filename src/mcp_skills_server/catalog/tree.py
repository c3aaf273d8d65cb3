"""Walks a root: what lies in each directory, by kind, and nothing of what it means."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
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
"""Levels below a root at which a walk ends in any case: each takes one open descriptor and a few frames."""
_SKILL_MD_FOLDED: Final = SKILL_MD.lower()

Entering: TypeAlias = Callable[[str], None]
"""Called with the place of each directory below the root just before it is opened, so that a watch can begin there."""


class Directory:
    """One directory as the walk found it. Most have files and directories alone, so the rest stays what it is here.

    Args:
        path: from the root, `/`-separated, "" for the root itself.
        files: by their names.
        links: as below.
        unreadable: as below.

    Attributes:
        path: as given.
        files: as given.
        directories: below a skill a sequence; elsewhere they can be had once, while the walk's first directory is open.
        links: names of symbolic links.
        irregular: names of what is no file, no directory and no link.
        foreign: names of hard links to files of another user than the folder's.
        unnamed: names that are not UTF-8, with escapes.
        denied: names that are there and cannot be looked at: the directory may be read but not entered.
        dotted: folders outside of every skill that were passed over for the dot that begins their names.
        holds_manifest: something here has the name SKILL.md, be it a file, a directory or anything else.
        folder_as_manifest: it is a directory.
        unreadable: nothing is known of what it holds.
        overfull: how many more files there are than were kept.
        cut: deeper than the walk goes: what lies below is not known.
        is_environment: a Python environment, which is passed over.
        is_withheld: it was a nested skill and has no SKILL.md now, so the skill around it has none of its files.
        is_plain: there are files and directories alone, and all of them are known.
    """

    directories: Iterable[Directory] = ()
    irregular: Sequence[str] = ()
    foreign: Sequence[str] = ()
    unnamed: Sequence[str] = ()
    denied: Sequence[str] = ()
    dotted: Sequence[str] = ()
    holds_manifest = False
    folder_as_manifest = False
    overfull = 0
    cut = False
    is_environment = False
    is_withheld = False
    is_plain = False

    def __init__(
        self, path: str, files: dict[str, SkillFile], *, links: Sequence[str] = (), unreadable: bool = False
    ) -> None:
        self.path = path
        self.files = files
        self.links = links
        self.unreadable = unreadable


def walk(
    handle: Handle,
    path: str,
    root: int,
    *,
    depth: int,
    most_files: int,
    hidden: bool = False,
    entering: Entering | None = None,
) -> Directory:
    """Everything below an open directory: `depth` levels, at most `most_files` files kept in any one directory.

    What lies below a directory that is no skill is looked for as it is iterated over, once, while `handle` is open: a
    root may hold very many skills, and one is to be had at a time.

    Args:
        handle: the open directory.
        path: where it lies below the root.
        root: index of the root.
        depth: levels below it, at most `MOST_LEVELS`.
        most_files: files kept of one directory.
        hidden: enter folders whose names begin with a dot, too, outside of skills.
        entering: called for each directory below this one.

    Raises:
        OSError: the directory cannot be listed, or the process ran out of descriptors or memory; the iteration raises
            it, too.
    """
    return _Walk(root, most_files, entering, hidden=hidden).look(handle, path, depth, inside=False)


class _Walk:
    """One walk: what is the same for all of its directories."""

    def __init__(
        self,
        root: int,
        most_files: int,
        entering: Entering | None,
        *,
        hidden: bool,
    ) -> None:
        self._root = root
        self._most_files = most_files
        self._entering = entering
        self._hidden = hidden

    def look(self, handle: Handle, path: str, depth: int, *, inside: bool) -> Directory:
        """Return what lies in an open directory; `inside` is whether it lies in a skill."""
        files: dict[str, SkillFile] = {}
        here = Directory(path, files)
        prefix = ""
        if path:
            prefix = f"{path}/"
        inner: list[str] = []
        dotted: list[str] = []
        rare: list[tuple[str, str]] = []
        root, now, by_descriptor = self._root, time.time_ns(), isinstance(handle, int)
        with os.scandir(handle) as entries:
            for entry in entries:
                name = entry.name
                try:
                    if (name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name):
                        if not inside and is_entered(name, hidden=True) and entry.is_dir(follow_symlinks=False):
                            dotted.append(name)
                    elif not name.isascii() and not is_utf8(name):
                        rare.append(("unnamed", spelled(name)))
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
                            rare.append(("foreign", name))
                            continue
                        files[name] = file_from(found, root, prefix + name, now)
                    elif entry.is_symlink():
                        rare.append(("links", name))
                    else:
                        rare.append(("irregular", name))
                except OSError as error:
                    if error.errno in PASSING:
                        raise
                    if error.errno not in GONE:  # else it vanished meanwhile
                        rare.append(("denied", name))
        if path and ENVIRONMENT in files:
            files.clear()
            here.is_environment = True
            return here
        for kind in dict(rare) if rare else ():
            setattr(here, kind, [name for each, name in rare if each == kind])
        here.folder_as_manifest = SKILL_MD in inner
        here.holds_manifest = SKILL_MD in files or here.folder_as_manifest
        if rare and not here.holds_manifest:
            here.holds_manifest = any(name == SKILL_MD for _, name in rare)
        if not inside and (inner or dotted):
            # Be it a broken one: nothing in a skill is a collection any more.
            inside = here.holds_manifest or any(name.lower() == _SKILL_MD_FOLDED for name in files)
        if dotted and not inside:
            here.dotted = [name for name in dotted if is_utf8(name)]
            if self._hidden:
                inner += here.dotted
                here.dotted = ()
        here.is_plain = not rare and not here.overfull and (depth > 0 or not inner)
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
                    below = Directory(prefix + name, {}, unreadable=True)
                if not below.is_environment:
                    yield below
            finally:
                if opened is not None:
                    close(opened)


def instead(root_path: str, path: str, error: OSError) -> Directory | None:
    """Return what a walk of the whole root would find at a directory that cannot be opened, None when it finds
    nothing.
    """
    if isinstance(error, PermissionError):
        return Directory(path, {}, unreadable=True)
    if error.errno in GONE:
        return link_at(root_path, path)
    return None


def link_at(root_path: str, path: str) -> Directory | None:
    """Return the directory above a place, with nothing but the link that stands there; None where none does."""
    found = look(root_path, path)
    if found is None or not stat.S_ISLNK(found.st_mode):
        return None
    parent, _, name = path.rpartition("/")
    return Directory(parent, {}, links=[name])


def ignored_in(root_path: str, directory: str, *, most_names: int) -> list[str]:
    """Return the files and folders below a skill that are no part of it for their names, by their paths in it, in
    order.

    Of an ignored folder the folder alone is named. Skills within are passed over. At most `most_names` names are looked
    at, and what cannot be opened is left out.
    """
    left = most_names

    def look(handle: Handle, prefix: str) -> list[str]:
        nonlocal left
        found: list[str] = []
        inner: list[str] = []
        with suppress(OSError), os.scandir(handle) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    break
                name = entry.name
                if (name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name):
                    found.append(f"{prefix}{spelled(name)}{'/' if entry.is_dir(follow_symlinks=False) else ''}")
                elif entry.is_dir(follow_symlinks=False):
                    inner.append(name)
                elif prefix and name == SKILL_MD:
                    return []
        for name in inner if prefix.count("/") < MOST_LEVELS else ():
            if left <= 0:
                break
            with suppress(OSError):
                opened = enter(handle, name)
                try:
                    found += look(opened, f"{prefix}{name}/")
                finally:
                    close(opened)
        return found

    with suppress(OSError), open_directory(root_path, directory) as handle:
        return sorted(look(handle, ""))
    return []
