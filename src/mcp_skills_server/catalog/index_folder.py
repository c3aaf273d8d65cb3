"""The folder where indexes lie between two processes: who may have written a file of it, and how one is replaced.

What is in a file is only as good as who may write it, so the folder and the file must be this user's and nobody else's
to write. A file is written aside and moved, so who reads it has the old one or the new one, whole. Everything here may
be deleted at any time.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final

from mcp_skills_server.durable import why_untrusted
from mcp_skills_server.errors import SkillsServerError

_READ: Final[int] = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
_ABANDONED_S: Final = 3600.0
_UNUSED_S: Final = 30 * 86400.0


class UnusableFileError(SkillsServerError):
    """A file of an index that must not be used. The message says why."""


class IndexFolder:
    """The index files of one user.

    Args:
        path: of the folder; it is made when the first file is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, name: str) -> BufferedReader:
        """A file of it to be read, from its beginning.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
            UnusableFileError: somebody else may have written it.
        """
        self._check_folder()
        path = self.path / name
        file = open(os.open(path, _READ), "rb")  # noqa: SIM115 - the caller closes it
        try:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UnusableFileError("it is no regular file")
            _check_owner(found, "it")
            with suppress(OSError):
                os.utime(path)  # it is in use
        except BaseException:
            file.close()
            raise
        return file

    def replace(self, name: str, put: Callable[[BinaryIO], bool]) -> bool:
        """Put a file in place, whole; whether it was. A folder that cannot be written, or should not be, is none.

        Args:
            name: of the file. Files with the same ending that nobody used for a month are removed.
            put: writes it; returns whether it wrote all of it.
        """
        try:
            self.make()
        except (OSError, UnusableFileError):
            return False
        with suppress(OSError):
            return self._write(self.path / name, put)
        return False

    def _write(self, path: Path, put: Callable[[BinaryIO], bool]) -> bool:
        aside = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        for left in self.path.glob(f"{path.stem}.*-*"):
            if left == aside or _age_s(left) > _ABANDONED_S:
                left.unlink(missing_ok=True)  # by a process that was killed while it wrote
        for other in self.path.glob(f"*{path.suffix}"):
            if _age_s(other) > _UNUSED_S:
                other.unlink(missing_ok=True)  # of a root that nobody serves any more
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if not put(file):
                    return False
            os.replace(aside, path)
            return True
        finally:
            aside.unlink(missing_ok=True)

    def make(self) -> None:
        """Make the folder where it is missing.

        Raises:
            OSError: it cannot be made or written.
            UnusableFileError: others may write in it.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder()
        if not os.access(self.path, os.W_OK):
            raise PermissionError(str(self.path))

    def _check_folder(self) -> None:
        found = os.lstat(self.path)
        if not stat.S_ISDIR(found.st_mode):
            raise UnusableFileError("its folder is a link or no folder")
        _check_owner(found, "its folder")


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _check_owner(found: os.stat_result, what: str) -> None:
    reason = why_untrusted(found)
    if reason:
        raise UnusableFileError(f"{what} {reason}")
