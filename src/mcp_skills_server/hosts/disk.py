"""The only place that touches a host's file: read it whole, replace it whole, keep what it was.

A reader of the file sees the old one or the new one, whatever happens. The new one is never written over a file that
somebody else has changed since it was read.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import read_regular, sync_path
from mcp_skills_server.errors import UsageError

MAX_SIZE: Final = 16 << 20
_NAME: Final = "name the host's file with --config"


@dataclass(frozen=True, slots=True)
class HostFile:
    """A configuration as it was found.

    Attributes:
        target: the file itself, links followed.
        raw: its bytes, None when it is not there.
        status: of the file, None when it is not there.
    """

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
        raw, status = read_regular(target, MAX_SIZE)
    except FileNotFoundError:
        return HostFile(target, None, None)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}; {_NAME}") from None
    if len(raw) > MAX_SIZE:
        raise UsageError(f"larger than {MAX_SIZE >> 20} MiB; {_NAME}")
    return HostFile(target, raw, status)


def replace(found: HostFile, new: bytes) -> Path | None:
    """Put `new` in the place of what was found; the path of the backup, None when there was nothing to keep.

    Raises:
        UsageError: it cannot be written, or it changed meanwhile. The old file is untouched.
    """
    temporary = found.target.with_name(f".{found.target.name}.{secrets.token_hex(6)}.tmp")
    try:
        found.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(temporary, new, found.status)
            if read(found.target).raw != found.raw:
                raise UsageError("it changed while it was edited; run the command again")
            backup = _back_up(found)
            os.replace(temporary, found.target)
        finally:
            with suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror or error}") from None
    sync_path(found.target.parent)
    return backup


def _back_up(found: HostFile) -> Path | None:
    """Return a copy of the old file beside it. One that says the same already is enough; no other is written over."""
    if found.raw is None:
        return None
    number = 0
    while True:
        backup = found.target.with_name(f"{found.target.name}.bak{f'.{number}' if number else ''}")
        try:
            _write(backup, found.raw, found.status)
        except FileExistsError:
            with suppress(UsageError):
                if read(backup).raw == found.raw:
                    return backup
            number += 1
        else:
            return backup


def _write(path: Path, raw: bytes, like: os.stat_result | None) -> None:
    """A new file with the mode and, where that is allowed, the owner of another."""
    # A file that may hold secrets is open to nobody else at any moment.
    mode = 0o666 if like is None else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with open(descriptor, "wb") as stream:
            if like is not None and sys.platform != "win32":
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    with suppress(OSError):
                        os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            stream.write(raw)
            stream.flush()
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
