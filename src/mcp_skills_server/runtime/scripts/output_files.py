"""Safe reading of the files that untrusted scripts leave, without following links.

Each path component is opened relative to the descriptor of its parent (`openat`), which prevents
symlink races (TOCTOU). A file with more than one hard link is not read, because it may be a file
outside of the directory. On systems without `openat` (Windows), each step first checks for a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from mcp_skills_server.catalog import disk
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import printable

_MAX_DEPTH: Final = 32
_MAX_ENTRIES: Final = 20_000
_MAX_PATH: Final = 4096


@dataclass(frozen=True, slots=True)
class OutputFile:
    """The relative, `/`-separated path of a file in a work directory, and its size in bytes."""

    path: str
    size: int


class OutputFiles(NamedTuple):
    """The listed files of a work directory, and the number of further ones."""

    listed: tuple[OutputFile, ...] = ()
    others: int = 0


def is_plain(status: os.stat_result) -> bool:
    """Return True for a regular file with a single hard link."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


@contextmanager
def skip_absent() -> Generator[None]:
    """Suppress the errors of an absent entry; raise RequestError if no descriptors are left."""
    try:
        yield
    except RequestError:  # which is a ValueError
        raise
    except OSError as error:
        if error.errno in disk.TRANSIENT_ERRORS:
            fault = f"The work directory cannot be read now ({error.strerror})"
            raise RequestError(f"{fault}; try again in a moment") from None
    except ValueError:  # a name that the system cannot encode
        return


def read_plain(directory: disk.Handle, name: str, most: int) -> bytes | None:
    """Return the bytes of a plain file; None if it is missing, not plain or longer than `most`."""
    with skip_absent():
        raw, status = disk.read(name, most, directory)
        if is_plain(status):
            return raw
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
        fault = f"{shown!r} is not a file path in the work directory"
        raise RequestError(f"{fault}; copy it from the script's result")
    with skip_absent(), disk.open_directory(top, "/".join(above), follow=False) as here:
        status = disk.lstat(here, name)
        raw = read_plain(here, name, most)
        if raw is not None:
            return raw
        if is_plain(status):
            raise RequestError(
                f"{shown!r} has {status.st_size:,} bytes, and at most {most:,} are read; let a "
                "script make it shorter"
            )
        kind = "a link or a special file"
        if stat.S_ISDIR(status.st_mode):
            kind = "a directory"
        raise RequestError(
            f"{shown!r} is {kind}, and only plain files of the work directory are read"
        )
    raise RequestError(f"The work directory has no file {shown!r}")


def files_since(top: str, since_ns: int, most: int) -> OutputFiles:
    """Return the files changed since a time, sorted, of which `most` are listed.

    `since_ns` is a ctime of the same disk, because scripts cannot set a ctime. RequestError: the
    directory cannot be read now.
    """
    files: list[OutputFile] = []
    hidden = 0
    for parts, state in _walk(top):
        if not is_plain(state) or state.st_ctime_ns < since_ns:
            continue
        path = "/".join(parts)
        if printable(path) == path and "\\" not in path and path.isprintable():
            files.append(OutputFile(path, state.st_size))
        else:
            hidden += 1  # a result cannot show this path
    files.sort(key=lambda file: file.path)
    return OutputFiles(tuple(files[:most]), len(files[most:]) + hidden)


def _walk(top: str) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    """Yield path and status of non-directories below `top`, with limited number and depth."""
    left = _MAX_ENTRIES
    todo: list[tuple[str, ...]] = [()]
    while todo and left > 0:
        parts = todo.pop()
        with skip_absent(), disk.open_directory(top, "/".join(parts), follow=False) as here:
            with os.scandir(here) as entries:
                names = [entry.name for entry in islice(entries, left)]
            left -= len(names)
            for name in names:
                with suppress(FileNotFoundError):  # removed meanwhile
                    state = disk.lstat(here, name)
                    if not stat.S_ISDIR(state.st_mode):
                        yield (*parts, name), state
                    elif len(parts) < _MAX_DEPTH:
                        todo.append((*parts, name))
