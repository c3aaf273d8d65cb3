"""The directories of scripts: a work directory per session, and a directory per run.

Each run gets a new copy of its skills, from bytes that the registry verified by digest, so that the
scanned content runs.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Skill, printable
from mcp_skills_server.runtime.scripts import output_files
from mcp_skills_server.runtime.scripts.interpreters import is_program
from mcp_skills_server.runtime.scripts.trees import discard, empty, exceeds

logger = logging.getLogger(__name__)

_MAX_LISTED: Final = 50
_MAX_WORKDIR_BYTES: Final = 512
_DIRECTORY: Final = 0 if os.name == "nt" else os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Workspace:
    """A session's private work directory, whose files persist from run to run.

    It is emptied and removed only while no script runs in it, because a running script could
    redirect the walk by a symlink. `path` is absolute and resolved; `close` clears `is_open`.
    """

    def __init__(
        self, path: str, on_close: Callable[[Workspace], None], owner: int | None = None
    ) -> None:
        self.path = path
        self.is_open = True
        self._on_close = on_close
        self._owner = owner
        self._lock = threading.Lock()
        self._runs = 0
        with suppress(OSError):  # the next `prepare` tries again, and its error is reported
            make_directory(path, owner)

    def begin_run(self) -> None:
        """Register a run, which must call `end_run`; block while the directory is being emptied."""
        with self._lock:
            self._runs += 1

    def end_run(self, most: int) -> bool:
        """Unregister a run, and return True if the directory had to be emptied.

        After the last run it is emptied if it exceeds `most` bytes, and removed if it is closed.
        """
        with self._lock:
            self._runs -= 1
            if self._runs:
                return False
            if not self.is_open:
                discard(self.path)
                return False
            if not exceeds([self.path], most):
                return False
            try:
                empty(self.path)
            except OSError as error:
                logger.warning("%s cannot be emptied (%s)", self.path, error.strerror)
            return True

    def fill(self, put: Callable[[str], None]) -> None:
        """Call `put` to write files, then `chown` all to the scripts' user. No script may run."""
        put(self.path)
        if self._owner is not None:
            for top, directories, files in os.walk(self.path):
                for path in (os.path.join(top, name) for name in (*directories, *files)):
                    os.chown(path, self._owner, self._owner, follow_symlinks=False)

    def prepare(self, workdir: str) -> str:
        """Create the relative path `workdir` in this directory, and return its absolute path.

        Raises:
            RequestError: it is not relative, leads outside, or cannot be a directory.
        """
        if len(workdir.encode()) > _MAX_WORKDIR_BYTES:
            fault = f"workdir is longer than {_MAX_WORKDIR_BYTES} bytes"
            raise RequestError(f"{fault}; choose a shorter one")
        self._restore()
        if os.path.isabs(workdir) or ".." in workdir.replace("\\", "/").split("/"):
            raise RequestError(
                f"workdir {printable(workdir)!r} must be a relative path without '..', below the "
                "session's work directory; leave it out to run there"
            )
        # Resolve first: a script may have left a symlink that leads elsewhere.
        path = os.path.realpath(os.path.join(self.path, workdir))
        if path != self.path and not path.startswith(self.path + os.sep):
            fault = f"workdir {printable(workdir)!r} leads out of the work directory"
            raise RequestError(f"{fault}; choose another")
        try:
            _make_inside(self.path, os.path.relpath(path, self.path).split(os.sep), self._owner)
        except OSError as error:
            problem = f"cannot be a directory ({error.strerror}); choose another"
            raise RequestError(f"workdir {printable(workdir[:200])!r} {problem}") from None
        return path

    def _restore(self) -> None:
        """Recreate the directory if a script or a cleaner of /tmp removed or replaced it."""
        if os.path.islink(self.path) or os.path.isfile(self.path):
            os.unlink(self.path)
        if os.path.isdir(self.path):
            os.chmod(self.path, 0o700)
        else:
            make_directory(self.path, self._owner)

    def read(self, path: str, most: int) -> bytes:
        """Return the bytes of an output file: see `output_files.read`."""
        return output_files.read(self.path, path, most)

    def close(self) -> None:
        """Remove the directory, at once or at the end of its last run. Safe to call twice."""
        with self._lock:
            if self.is_open:
                self.is_open = False
                self._on_close(self)
                if not self._runs:
                    discard(self.path)


class RunDirectory:
    """The directory of one run, with its skills, temporary files and shared memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._begun = os.path.join(path, "begun")
        self.skills = os.path.join(path, "skills")
        self.temporary = os.path.join(path, "tmp")
        self.shared = os.path.join(path, "shm")

    def make(self, owner: int | None) -> None:
        """Create the directory, for scripts of this user id; None for that of this process."""
        os.mkdir(self._path, 0o700)
        os.mkdir(self._begun)  # its ctime is the start of the run
        make_directory(self.temporary, owner)
        make_directory(self.shared, owner)
        os.mkdir(self.skills)
        os.chmod(self.skills, 0o755)  # noqa: S103 - for another user; the parent is private

    def files_made(self, workspace: str) -> output_files.OutputFiles:
        """Return the files changed in `workspace` since `make`."""
        with suppress(OSError, RequestError):
            since = os.lstat(self._begun).st_ctime_ns
            return output_files.files_since(workspace, since, _MAX_LISTED)
        return output_files.OutputFiles()

    def discard(self) -> None:
        """Remove the directory, if it exists."""
        discard(self._path)


def make_directory(path: str, owner: int | None) -> None:
    """Create a directory with mode 0700, owned by a user and group id; None for this process's."""
    os.mkdir(path, 0o700)
    if owner is not None:
        os.chown(path, owner, owner)


def _make_inside(top: str, parts: Iterable[str], owner: int | None) -> None:
    """Create missing nested directories, without following symlinks.

    `openat` and `mkdirat` prevent a race with a running script that replaces one of them.
    """
    if os.name == "nt":
        os.makedirs(os.path.join(top, *parts), exist_ok=True)
        return
    here = os.open(top, _DIRECTORY)
    try:
        for part in parts:
            made = False
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=here)
                made = True
            inner = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
            if made and owner is not None:
                os.fchown(here, owner, owner)
    finally:
        os.close(here)


def lay_out(registry: Registry, skill: Skill, script: str | None, top: str) -> None:
    """Copy a skill's files into a new read-only directory; the script and programs are executable.

    Raises:
        OSError: a file has changed since the scan, or cannot be written.
    """
    os.makedirs(top, 0o700)
    directories = {top}
    for path, file in skill.files.items():
        raw = registry.read(file)
        target = os.path.join(top, *path.split("/"))
        parent = os.path.dirname(target)
        if parent not in directories:
            os.makedirs(parent, 0o700, exist_ok=True)
            while parent not in directories:
                directories.add(parent)
                parent = os.path.dirname(parent)
        with open(target, "xb") as made:
            made.write(raw)
        os.chmod(target, 0o555 if is_program(raw) or path == script else 0o444)
    for directory in directories:
        os.chmod(directory, 0o555)  # noqa: S103 - read-only
