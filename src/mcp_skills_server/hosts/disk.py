"""Read and replace the configuration files of hosts: a reader sees the old one or the new one,
whatever happens."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import read_regular, replace_file
from mcp_skills_server.errors import UsageError

_MAX_SIZE: Final = 16 << 20
_NAME: Final = "name the host's file with --config"


@dataclass(frozen=True, slots=True)
class HostFile:
    """A configuration as it was found: the file itself, links followed; no bytes and status when it
    is not there."""

    target: Path
    raw: bytes | None
    status: os.stat_result | None


def read(path: Path) -> HostFile:
    """Return the file at this path, or that there is none.

    Raises:
        UsageError: it is not a regular file, too large, or unreadable.
    """
    target = Path(os.path.realpath(path))
    try:
        raw, status = read_regular(target, _MAX_SIZE)
    except FileNotFoundError:
        return HostFile(target, None, None)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}; {_NAME}") from None
    if len(raw) > _MAX_SIZE:
        raise UsageError(f"larger than {_MAX_SIZE >> 20} MiB; {_NAME}")
    return HostFile(target, raw, status)


def replace(found: HostFile, new: bytes) -> Path | None:
    """Put `new` in the place of what was found. Return the path of the backup, None when there was
    nothing to keep.

    Raises:
        UsageError: it cannot be written, or it changed meanwhile. The old file is untouched.
    """
    if read(found.target).raw != found.raw:
        raise UsageError("it changed while it was edited; run the command again")
    try:
        found.target.parent.mkdir(parents=True, exist_ok=True)
        backup = _back_up(found)
        _write(found.target, new, found.status)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}") from None
    return backup


def _back_up(found: HostFile) -> Path | None:
    """Return a copy of the old file beside it. An equal copy from before is enough; no other one is
    written over."""
    if found.raw is None:
        return None
    for number in count():
        suffix = f".bak.{number}" if number else ".bak"
        backup = found.target.with_name(found.target.name + suffix)
        if not os.path.lexists(backup):
            _write(backup, found.raw, found.status)
            return backup
        with suppress(UsageError):
            if read(backup).raw == found.raw:
                return backup
    return None


def _write(path: Path, raw: bytes, like: os.stat_result | None) -> None:
    """Replace a file, with the mode and, where that is allowed, the owner of another."""
    replace_file(path, raw, None if like is None else stat.S_IMODE(like.st_mode))
    if like is None:
        return
    if sys.platform != "win32" and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(OSError):
            os.chown(path, like.st_uid, like.st_gid)
