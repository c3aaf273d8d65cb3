"""Safe reading of the files that untrusted scripts leave, without following links.

Each path component is opened relative to the descriptor of its parent (`openat`), which prevents
symlink races (TOCTOU). A file with more than one hard link is not read, because it may be a file
outside of the directory. On systems without `openat` (Windows), each step first checks for a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import printable

BY_DESCRIPTOR: Final = (
    hasattr(os, "O_NOFOLLOW") and hasattr(os, "O_DIRECTORY") and os.open in os.supports_dir_fd
)
_MAX_DEPTH: Final = 32
_MAX_ENTRIES: Final = 20_000
_MAX_PATH: Final = 4096
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """The relative, `/`-separated path of a file in a work directory, and its size in bytes."""

    path: str
    size: int


class OutputDirectory:
    """An open directory, for a `with` statement."""

    def __init__(self, descriptor: int | None, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def __enter__(self) -> OutputDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def open_subdirectory(self, name: str) -> OutputDirectory | None:
        """Open a subdirectory; return None if it does not exist."""
        return _opened(name, self._descriptor, os.path.join(self._path, name))

    def names(self, most: int) -> list[str]:
        """Return up to `most` names of entries, unsorted."""
        with os.scandir(self._path if self._descriptor is None else self._descriptor) as entries:
            return [entry.name for entry in islice(entries, most)]

    def lstat(self, name: str) -> os.stat_result | None:
        """Return the `lstat` result of an entry, or None if it does not exist."""
        with _nothing_if_absent():
            if self._descriptor is None:
                return os.lstat(os.path.join(self._path, name))
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        return None

    def read(self, name: str, most: int) -> bytes | None:
        """Return the bytes of a plain file of at most `most` bytes; None for other entries."""
        found = self.lstat(name)
        if found is None or not is_plain(found):
            return None
        path, flags = name, os.O_RDONLY
        if self._descriptor is None:
            path, flags = os.path.join(self._path, name), flags | getattr(os, "O_BINARY", 0)
        else:
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        file = -1
        with _nothing_if_absent():
            file = os.open(path, flags, dir_fd=self._descriptor)
        if file < 0:
            return None
        with suppress(OSError), os.fdopen(file, "rb") as opened:
            found = os.fstat(file)
            if is_plain(found) and found.st_size <= most:
                raw = opened.read(most + 1)
                if len(raw) <= most:
                    return raw
        return None


def is_plain(found: os.stat_result) -> bool:
    """Return True for a regular file with a single hard link."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def open_directory(path: str) -> OutputDirectory | None:
    """Open one of the server's own directories by path; return None if it is missing or a link."""
    return _opened(path, None, path)


@contextmanager
def _nothing_if_absent() -> Generator[None]:
    """Suppress OSErrors of an entry, but raise RequestError if no descriptors are left."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            raise RequestError(
                f"The work directory cannot be read now ({error.strerror}); try again in a moment"
            ) from None
    except ValueError:
        return


def _opened(name: str, within: int | None, path: str) -> OutputDirectory | None:
    with _nothing_if_absent():
        if BY_DESCRIPTOR:
            return OutputDirectory(
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within), path
            )
        if stat.S_ISDIR(os.lstat(path).st_mode) and os.path.realpath(path) == os.path.abspath(path):
            return OutputDirectory(None, path)
    return None


def read(top: str, path: str, most: int) -> bytes:
    """Return the bytes of a file below `top`, by a client's relative, `/`-separated path.

    Raises:
        RequestError: the path is invalid, or the file is missing, not plain, longer than `most`
            bytes, or not readable now. The message says which.
    """
    shown = printable(path[:200])
    *above, name = path.split("/")
    is_long = len(path) > _MAX_PATH or len(above) > _MAX_DEPTH
    if is_long or {"", ".", ".."} & {*above, name} or "\\" in path:
        raise RequestError(
            f"{shown!r} is not a file path in the work directory; copy it from the script's result"
        )
    here = _below(top, above)
    if here is not None:
        with here:
            raw, found = here.read(name, most), here.lstat(name)
        if raw is not None:
            return raw
        if found is not None and is_plain(found):
            raise RequestError(
                f"{shown!r} has {found.st_size:,} bytes, and at most {most:,} are read; let a "
                "script make it shorter"
            )
        if found is not None:
            kind = "a link or a special file"
            if stat.S_ISDIR(found.st_mode):
                kind = "a directory"
            raise RequestError(
                f"{shown!r} is {kind}, and only plain files of the work directory are read"
            )
    raise RequestError(f"The work directory has no file {shown!r}")


def files_since(top: str, since_ns: int, most: int) -> tuple[tuple[OutputFile, ...], int]:
    """Return up to `most` files changed since a time, sorted, and the number of further ones.

    `since_ns` is a ctime of the same disk, because scripts cannot set a ctime. RequestError: the
    directory cannot be read now.
    """
    found: list[OutputFile] = []
    hidden = 0
    for parts, state in _walk(top):
        if not is_plain(state) or state.st_ctime_ns < since_ns:
            continue
        path = "/".join(parts)
        if printable(path) == path and "\\" not in path and path.isprintable():
            found.append(OutputFile(path, state.st_size))
        else:
            hidden += 1  # a result cannot show this path
    found.sort(key=lambda file: file.path)
    return tuple(found[:most]), len(found[most:]) + hidden


def _walk(top: str) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    """Yield path and status of non-directories below `top`, with limited number and depth."""
    left = _MAX_ENTRIES
    todo: list[tuple[str, ...]] = [()]
    while todo and left > 0:
        parts = todo.pop()
        here = _below(top, parts)
        if here is None:
            continue
        with here, suppress(OSError):
            for name in here.names(left):
                left -= 1
                state = here.lstat(name)
                if state is None:
                    continue
                if stat.S_ISDIR(state.st_mode):
                    if len(parts) < _MAX_DEPTH:
                        todo.append((*parts, name))
                else:
                    yield (*parts, name), state


def _below(top: str, parts: Sequence[str]) -> OutputDirectory | None:
    here = open_directory(top)
    for part in parts:
        if here is None:
            return None
        with here:
            here = here.open_subdirectory(part)
    return here
