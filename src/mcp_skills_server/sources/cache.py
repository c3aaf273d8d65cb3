"""Cache folders of sources, with leases and least-recently-used eviction.

    CACHE/KIND/NAME/skills/             the skills of one source
    CACHE/KIND/NAME/.mcp-skills-used/   a locked file (lease) of each process that uses them

Only a folder without a lease may be evicted, the least recently used first.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import uuid
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from mcp_skills_server.durable import untrusted_reason
from mcp_skills_server.errors import UsageError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

_USED: Final = ".mcp-skills-used"
_GONE: Final = ".gone-"
_PLAIN: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")
_READ_ONLY: Final = (errno.EROFS, errno.EACCES)
_LOCK_S: Final = 10.0
"""Seconds to wait for a process that takes a lease or evicts a folder."""


class CacheFolder:
    """Cache folder of one source: `path`, with its `skills`, leased while this object lives.

    The beginning of `origin` makes its name readable; `asked` tells copies of one origin apart.
    """

    def __init__(self, cache: Path, kind: str, origin: str, *asked: str) -> None:
        plain = re.sub(r"[^a-z0-9.-]+", "-", origin.lower().partition("://")[2])[:60].strip("-.")
        key = hashlib.sha256("\0".join((origin, *asked)).encode()).hexdigest()[:12]
        name = f"{plain}-{key}" if plain else key
        self.path = cache / kind / name
        self.skills = self.path / "skills"
        used = self.path / _USED
        try:
            with _alone(cache):
                for folder in (self.path.parent, self.path):
                    make_own(folder)
                for folder in (used, self.skills):
                    folder.mkdir(exist_ok=True)
                _is_leased(self.path)  # removes the leases of processes that were killed
                self._use = FileLock(used / f"{os.getpid()}-{uuid.uuid4().hex[:8]}", timeout=0)
                self._use.acquire()
            os.utime(used)  # `trim` evicts the folder whose mark is the oldest
        except Timeout:
            raise UsageError(
                f"{cache}: another process does not let go of it; end that, or choose another"
            ) from None
        except OSError as error:
            with suppress(OSError):  # a filled read-only copy is served: nothing can evict it
                faults = [untrusted_reason(it.lstat()) for it in (self.path.parent, self.path)]
                if error.errno in _READ_ONLY and any(self.skills.iterdir()) and not any(faults):
                    return
            reason = f"the cache cannot be written ({error.strerror or error})"
            raise UsageError(f"{self.path}: {reason}; choose another --cache-dir") from None


class PrivateFolder:
    """Temporary folder of this process, removed at its exit: `skills`.

    It is locked while this object lives, so systemd-tmpfiles does not remove its old files.
    """

    def __init__(self) -> None:
        self.skills = Path(tempfile.mkdtemp(prefix="mcp-skills-"))
        atexit.register(shutil.rmtree, self.skills, ignore_errors=True)
        if sys.platform != "win32":
            descriptor = os.open(self.skills, os.O_RDONLY)
            weakref.finalize(self, os.close, descriptor)
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)


def trim(cache: Path, most_bytes: int) -> None:
    """Evict the least recently used unleased folders until the cache has at most `most_bytes`."""
    with suppress(OSError, Timeout):
        folders = [kind for kind in cache.iterdir() if not kind.is_symlink()]
        kinds = [kind for kind in folders if _PLAIN.fullmatch(kind.name)]
        for left in (left for kind in kinds for left in kind.glob(f"{_GONE}*")):
            shutil.rmtree(left, ignore_errors=True)  # a process was killed while removing it
        # Only marked folders: the user may have named a cache directory with other content.
        marked = [used.parent for kind in kinds for used in kind.glob(f"*/{_USED}")]
        sizes = {folder: _size(folder) for folder in marked if not folder.is_symlink()}
        total = sum(sizes.values())
        for folder in sorted(sizes, key=lambda path: (path / _USED).stat().st_mtime):
            if total <= most_bytes:
                break
            gone = _take_away(cache, folder)
            if gone is not None:
                shutil.rmtree(gone, ignore_errors=True)
                total -= sizes[folder]
                logger.info("the cache is full: removed what was kept of %s", folder.name)


def make_own(folder: Path) -> None:
    """Create a folder that only this user may write, or raise OSError.

    The check matters, because its name is predictable and its contents are served.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if sys.platform != "win32" and status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
        mode = stat.S_IMODE(status.st_mode)
        if mode != mode & 0o755:  # a needless chmod would count as a change of the folder
            os.chmod(folder, mode & 0o755)
            status = os.lstat(folder)
    reason = untrusted_reason(status) if stat.S_ISDIR(status.st_mode) else "is no folder"
    if reason:
        raise OSError(errno.EPERM, f"it {reason}")


def _take_away(cache: Path, folder: Path) -> Path | None:
    """Rename a folder out of the way and return its new path, or None if it is leased."""
    with _alone(cache):
        if _is_leased(folder):
            return None
        gone = folder.with_name(f"{_GONE}{uuid.uuid4().hex[:12]}")
        os.rename(folder, gone)
        return gone


def _is_leased(folder: Path) -> bool:
    """Remove the leases of processes that have ended, and tell whether any is left."""
    is_leased = False
    for mark in [*(folder / _USED).glob("*")]:
        try:
            with FileLock(mark, timeout=0):
                pass
            mark.unlink(missing_ok=True)
        except OSError:  # Timeout is one; or the lease is another user's
            is_leased = True
    return is_leased


def _alone(cache: Path) -> FileLock:
    cache.mkdir(parents=True, exist_ok=True)
    return FileLock(cache / ".lock", timeout=_LOCK_S)


def _size(folder: Path) -> int:
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{top}/{name}").st_size
    return total
