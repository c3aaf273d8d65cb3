"""Read and atomically replace the configuration files of hosts."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import read_regular, replace_file
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts.table import HOSTS, Platform, location

_MAX_SIZE: Final = 16 << 20
_REMEDY: Final = "name the host's file with --config"


@dataclass(frozen=True, slots=True)
class HostFile:
    """A host's configuration file, links resolved; `raw` and `status` are None if it is missing."""

    target: Path
    raw: bytes | None
    status: os.stat_result | None


def this_platform() -> Platform:
    """Return the folders of this machine and user."""
    try:
        return Platform.for_system(sys.platform, Path.home(), Path.cwd(), os.environ)
    except RuntimeError:
        raise UsageError("there is no home folder; name the host's file with --config") from None


def installed_hosts() -> set[str]:
    """Return the keys of the hosts that have a configuration file of this user."""
    installed: set[str] = set()
    for key, host in HOSTS.items():
        with suppress(UsageError, OSError):
            if location(host, this_platform()).is_file():
                installed.add(key)
    return installed


def read(path: Path) -> HostFile:
    """Return the configuration file at `path`, symlinks resolved.

    Raises:
        UsageError: the file is not regular, too large, or unreadable.
    """
    target = Path(os.path.realpath(path))
    try:
        raw, status = read_regular(target, _MAX_SIZE)
    except FileNotFoundError:
        return HostFile(target, None, None)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}; {_REMEDY}") from None
    return HostFile(target, raw, status)


def check_links(project: Path, path: Path) -> None:
    """Raise UsageError, with the target, if links of a project, such as a clone, are on `path`."""
    target = os.path.realpath(path)
    if target != os.path.join(os.path.realpath(project), os.path.relpath(path, project)):
        raise UsageError(f"a link leads to {target}; remove the link, or {_REMEDY}")


def replace(file: HostFile, new: bytes) -> Path | None:
    """Replace a file atomically with `new`; return the path of the backup, None for a new file.

    Raises:
        UsageError: the file cannot be written, or changed since it was read. It stays untouched.
    """
    if read(file.target).raw != file.raw:
        raise UsageError("it changed while it was edited; run the command again")
    try:
        file.target.parent.mkdir(parents=True, exist_ok=True)
        backup = _back_up(file)
        _write(file.target, new, file.status)
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror}); apply --dry-run by hand") from None
    return backup


def _back_up(file: HostFile) -> Path | None:
    """Copy the file to the first free `.bak` name, or reuse an equal backup; return its path."""
    if file.raw is None:
        return None
    number = 0
    while True:
        suffix = f".bak.{number}" if number else ".bak"
        backup = file.target.with_name(file.target.name + suffix)
        if not os.path.lexists(backup):
            _write(backup, file.raw, file.status)
            return backup
        with suppress(UsageError):
            if read(backup).raw == file.raw:
                return backup
        number += 1


def _write(path: Path, raw: bytes, like: os.stat_result | None) -> None:
    """Replace a file; take the mode and, if permitted, the owner from `like`."""
    replace_file(path, raw, None if like is None else stat.S_IMODE(like.st_mode))
    if like is None:
        return
    if sys.platform != "win32" and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(OSError):
            os.chown(path, like.st_uid, like.st_gid)
