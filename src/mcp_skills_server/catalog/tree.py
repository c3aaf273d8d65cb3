"""The boundary to the disk: walking a root and opening its files without ever following a link.

Directories are opened one inside the other, by descriptor where the platform can, so that a directory that is swapped
for a link during a walk is refused and not walked. Files are opened with O_NOFOLLOW and must carry the signature of
the scan. Client text never comes here: callers pass names that this module itself found.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format.ignored import FIRSTS, LASTS, is_entered, is_ignored
from mcp_skills_server.model import SKILL_MD, SkillFile

_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_COMMON: Final[int] = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FILE: Final[int] = _COMMON | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_DIRECTORY: Final[int] = _COMMON | _NOFOLLOW | getattr(os, "O_DIRECTORY", 0)
_BY_DESCRIPTOR: Final = os.scandir in os.supports_fd and os.open in os.supports_dir_fd
MOST_LEVELS: Final = 64
"""How deep a walk goes below a root, whatever is asked for: one open descriptor and a few frames for each level."""
_SETTLED_NS: Final = 2_000_000_000
"""A file older than this at its scan cannot be rewritten under the same time stamps, not even on FAT."""

GONE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
"""What opening a directory fails with when there is none in its place (any more)."""
_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))

Handle: TypeAlias = "int | str"
"""An open directory: a descriptor, or its path on platforms that cannot open relative to one."""

_SKILL_MD_FOLDED: Final = SKILL_MD.lower()


@dataclass(slots=True)
class Directory:
    """One directory as the walk found it. Paths are from the root, `/`-separated, "" for the root itself."""

    path: str
    files: dict[str, SkillFile]
    directories: list[Directory]
    links: Sequence[str] = ()
    irregular: Sequence[str] = ()
    foreign: Sequence[str] = ()
    """Hard links to files of another user than the folder's."""
    unnamed: Sequence[str] = ()
    dotted: Sequence[str] = ()
    """Folders outside of every skill that were passed over for the dot that begins their names."""
    denied: Sequence[str] = ()
    """Names that are there and cannot be looked at: the directory may be read but not entered."""
    unreadable: bool = False
    overfull: int = 0
    """How many more files there are than were kept."""
    cut: bool = False
    """Deeper than the walk goes: what lies below is not known."""


def signature(found: os.stat_result) -> tuple[int, ...]:
    """What tells one content of a file from the next without reading it.

    Size and modification time are not enough: an rsync-style rewrite keeps both.
    """
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)


def file_from(found: os.stat_result, root: int, location: str, now: int) -> SkillFile:
    """The SkillFile of a stat result that was taken at `now`, in nanoseconds."""
    mark = signature(found)
    young = now - _SETTLED_NS
    executable = bool(found.st_mode & stat.S_IXUSR)
    return SkillFile(root, location, mark[0], mark, mark[1] < young and mark[2] < young, executable=executable)


def is_foreign(found: os.stat_result, handle: Handle) -> bool:
    """Whether a file is a hard link to a file of somebody else than the owner of the directory that it is found in.

    Who may write into a folder could else have the server read what is not theirs. Hard links within one owner's files
    are what package stores and backups are made of.
    """
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and found.st_uid != _owner(handle)


def _owner(handle: Handle) -> int:
    return os.stat(handle).st_uid


@contextmanager
def open_directory(root_path: str, path: str) -> Generator[Handle]:
    """Open a directory below a root, one step at a time, following no link.

    Raises:
        OSError: it is not there, not a directory, or a link stands in the way.
    """
    handle = _enter(None, root_path, follow=True)
    try:
        for step in path.split("/") if path else ():
            inner = _enter(handle, step)
            _close(handle)
            handle = inner
        yield handle
    finally:
        _close(handle)


def walk(
    handle: Handle,
    path: str,
    root: int,
    *,
    depth: int,
    most_files: int,
    hidden: bool = False,
    inside: bool = False,
) -> Directory:
    """Everything below an open directory: `depth` levels, at most `most_files` files kept in any one directory.

    Args:
        handle: the open directory.
        path: where it lies below the root.
        root: index of the root.
        depth: levels below it, at most `MOST_LEVELS`.
        most_files: files kept of one directory.
        hidden: enter folders whose names begin with a dot, too, outside of skills.
        inside: the directory lies in a skill.

    Raises:
        OSError: the directory cannot be listed, or the process ran out of descriptors or memory.
    """
    files: dict[str, SkillFile] = {}
    here = Directory(path, files, [])
    prefix = f"{path}/" if path else ""
    inner: list[str] = []
    dotted: list[str] = []
    here.links = links = list[str]()
    here.irregular = irregular = list[str]()
    here.unnamed = unnamed = list[str]()
    here.denied = denied = list[str]()
    now = time.time_ns()
    with os.scandir(handle) as entries:
        for entry in entries:
            name = entry.name
            try:
                if (name[0] in FIRSTS or name[-1] in LASTS) and is_ignored(name):
                    if not inside and is_entered(name, hidden=True) and entry.is_dir(follow_symlinks=False):
                        dotted.append(name)
                elif not name.isascii() and not is_utf8(name):
                    unnamed.append(spelled(name))
                elif entry.is_dir(follow_symlinks=False):
                    inner.append(name)
                elif entry.is_file(follow_symlinks=False):
                    if len(files) > most_files and name.lower() != _SKILL_MD_FOLDED:
                        here.overfull += 1
                        continue
                    found = entry.stat(follow_symlinks=False) if _BY_DESCRIPTOR else os.lstat(entry.path)
                    if found.st_nlink > 1 and is_foreign(found, handle):
                        here.foreign = (*here.foreign, name)
                        continue
                    files[name] = file_from(found, root, prefix + name, now)
                elif entry.is_symlink():
                    links.append(name)
                else:
                    irregular.append(name)
            except OSError as error:
                if error.errno in _PASSING:
                    raise
                if error.errno not in GONE:  # else it vanished meanwhile
                    denied.append(name)
    if not inside and (inner or dotted):
        inside = _makes_skill(here, inner)
    if dotted and not inside:
        here.dotted = [name for name in dotted if is_utf8(name)]
        if hidden:
            inner += here.dotted
            here.dotted = ()
    if depth <= 0:
        here.cut = bool(inner)
        return here
    for name in inner:
        try:
            opened = _enter(handle, name)
            try:
                below = walk(
                    opened, prefix + name, root, depth=depth - 1, most_files=most_files, hidden=hidden, inside=inside
                )
                here.directories.append(below)
            finally:
                _close(opened)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in _PASSING:
                raise  # or half a tree would be taken for gone
            here.directories.append(Directory(prefix + name, {}, [], unreadable=True))
    return here


def _makes_skill(here: Directory, inner: Sequence[str]) -> bool:
    """Whether the names in a directory make it a skill, be it a broken one: nothing in it is a collection any more."""
    if any(SKILL_MD in names for names in (here.files, here.links, here.irregular, here.foreign, here.denied, inner)):
        return True
    return any(name.lower() == _SKILL_MD_FOLDED for name in here.files)


def count_skills(root_path: str, path: str, *, most_names: int) -> tuple[int, int]:
    """How many skills a walk that enters dot folders would find at or below a directory, by names alone.

    Returns the number of skills and of the names that were looked at. Those are at most `most_names`; when they are
    as many, the number of skills may be too small.
    """
    skills = names = 0
    todo = [(path, False)]
    while todo and names < most_names:
        place, inside = todo.pop()
        inner: list[str] = []
        dotted: list[str] = []
        found = False
        with suppress(OSError), open_directory(root_path, place) as handle, os.scandir(handle) as entries:
            for entry in entries:
                names += 1
                if names >= most_names:
                    break
                name = entry.name
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if not is_ignored(name):
                            inner.append(name)
                        elif is_entered(name, hidden=True):
                            dotted.append(name)
                    elif name == SKILL_MD and entry.is_file(follow_symlinks=False):
                        found = True
        skills += found
        inside = inside or found
        if place.count("/") < MOST_LEVELS:
            todo += [(f"{place}/{name}", inside) for name in (inner if inside else inner + dotted)]
    return skills, names


def ignored_in(root_path: str, directory: str, *, most_names: int) -> list[str]:
    """The files and folders below a skill that are no part of it for their names, by their paths in it, in order.

    Of an ignored folder the folder alone is named. Skills within are passed over. At most `most_names` names are looked
    at, and what cannot be opened is left out.
    """
    found: list[str] = []
    names, todo = 0, [""]
    while todo and names < most_names:
        place = todo.pop()
        prefix = f"{place}/" if place else ""
        here: list[str] = []
        inner: list[str] = []
        where = "/".join(filter(None, (directory, place)))
        with suppress(OSError), open_directory(root_path, where) as handle, os.scandir(handle) as entries:
            for entry in entries:
                names += 1
                if names > most_names:
                    break
                folder = entry.is_dir(follow_symlinks=False)
                if is_ignored(entry.name):
                    here.append(f"{prefix}{spelled(entry.name)}{'/' if folder else ''}")
                elif folder:
                    inner.append(prefix + entry.name)
                elif place and entry.name == SKILL_MD:
                    here, inner = [], []
                    break
        found += here
        todo += [path for path in inner if path.count("/") < MOST_LEVELS]
    return sorted(found)


def read(root_path: str, file: SkillFile) -> bytes:
    """The bytes of a file, exactly those that its signature stands for.

    Raises:
        StaleFileError: it is gone, unreadable, or not the file that was scanned.
    """
    path = os.path.join(root_path, file.location)
    try:
        descriptor = os.open(path, _FILE)
    except OSError as error:
        raise StaleFileError(path, error.strerror, gone=error.errno in GONE) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or signature(found) != file.signature:
            raise StaleFileError(path)
        raw = _read_all(descriptor, file.size)
        if len(raw) != file.size or signature(os.fstat(descriptor)) != file.signature:
            raise StaleFileError(path)
    except StaleFileError:
        raise
    except OSError as error:
        raise StaleFileError(path, error.strerror) from None
    finally:
        os.close(descriptor)
    return raw


def is_fresh(root_path: str, file: SkillFile) -> bool:
    """Whether the file on disk still has the signature of the scan."""
    try:
        return signature(os.lstat(os.path.join(root_path, file.location))) == file.signature
    except OSError:
        return False


def look_again(root_path: str, file: SkillFile) -> SkillFile | None:
    """The file that now lies at this place, or None when no regular file does."""
    return _file_at(root_path, file.root, file.location)


def resolve_link(root_path: str, root: int, directory: str, name: str) -> SkillFile | None:
    """The regular file inside its root that a link stands for, or None.

    None for a link that leaves the root, leads to a directory or a device, is broken, or passes an ignored name. A dot
    folder in which the link itself lies is not ignored, since the walk went there.
    """
    target = os.path.realpath(os.path.join(root_path, directory, name))
    if os.path.commonpath((target, root_path)) != root_path or target == root_path:
        return None
    location = os.path.relpath(target, root_path).replace(os.sep, "/")
    parts, ours = location.split("/"), directory.split("/")
    common = next((n for n, (part, own) in enumerate(zip(parts, ours, strict=False)) if part != own), len(ours))
    if any(is_ignored(part) for part in parts[common:]) or not is_utf8(location):
        return None
    return _file_at(root_path, root, location)


def _file_at(root_path: str, root: int, location: str) -> SkillFile | None:
    found = look(root_path, location)
    if found is None or not stat.S_ISREG(found.st_mode):
        return None
    return file_from(found, root, location, time.time_ns())


def look(root_path: str, location: str) -> os.stat_result | None:
    """What lies at a place below a root when no link is followed, or None when nothing does that may be served."""
    parent, _, last = location.rpartition("/")
    try:
        with open_directory(root_path, parent) as handle:
            if isinstance(handle, int):
                found = os.stat(last, dir_fd=handle, follow_symlinks=False)
            else:
                found = os.lstat(f"{handle}/{last}")
            return None if is_foreign(found, handle) else found
    except OSError:
        return None


def _read_all(descriptor: int, size: int) -> bytes:
    raw = os.read(descriptor, size) if size else b""
    if len(raw) == size:
        return raw
    parts = [raw]
    missing = size - len(raw)
    while missing > 0 and parts[-1]:
        parts.append(os.read(descriptor, missing))
        missing -= len(parts[-1])
    return b"".join(parts)


def _enter(parent: Handle | None, name: str, *, follow: bool = False) -> Handle:
    if not _BY_DESCRIPTOR:
        path = name if parent is None else f"{parent}/{name}"
        if not stat.S_ISDIR((os.stat if follow else os.lstat)(path).st_mode):
            raise NotADirectoryError(path)
        return path
    flags = _DIRECTORY & ~_NOFOLLOW if follow else _DIRECTORY
    return os.open(name, flags, dir_fd=parent if isinstance(parent, int) else None)


def _close(handle: Handle) -> None:
    if isinstance(handle, int):
        os.close(handle)


def is_utf8(name: str) -> bool:
    """Whether this name, as the file system gave it, is UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def spelled(name: str) -> str:
    """The name, with escapes for the bytes that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
