"""Output folder of `publish`: verify, write and delete its files."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from mcp_skills_server.durable import sync_paths
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable

STAGING: Final = ".mcp-skills-server.staging"


class OutputFolder:
    """Output folder. File paths are relative to it, `/`-separated; no link in it is followed.

    Args:
        output: the folder as the operator gave it; it may be a link.
        tree: the subfolder that is never deleted, even if empty.
    """

    def __init__(self, output: str, tree: str) -> None:
        self.shown = printable(output)
        self.path = os.path.realpath(output)
        self.replaced: frozenset[str] = frozenset()
        """Paths where a file becomes a folder, or a folder a file."""
        self._tree = tree

    # Reading

    def digest(self, path: str) -> str | None:
        """Return a regular file's sha256 in hex, None if it is missing, "" for another kind."""
        if not self._has_parents(path):
            return None
        full = f"{self.path}/{path}"
        try:
            status = os.lstat(full)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None if path in self.replaced and stat.S_ISDIR(status.st_mode) else ""
        with open(full, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def digest_of_ours(self, path: str) -> str | None:
        """Return `digest`, but "" for a path through a link or a file, which is never ours."""
        try:
            return self.digest(path)
        except UsageError:
            return ""

    def _has_parents(self, path: str) -> bool:
        """Tell whether the folders of a path exist; raise UsageError if one is no folder."""
        for folder in [*parent_folders(path)][-2::-1]:  # the outermost first, but not the output
            try:
                status = os.lstat(f"{self.path}/{folder}")
            except FileNotFoundError:
                return False
            if not stat.S_ISDIR(status.st_mode):
                if folder in self.replaced:
                    return False
                raise UsageError(f"{self.shown}: {printable(folder)} is not a folder; move it away")
        return True

    def read(self, path: str) -> bytes | None:
        """Read a regular file, or return None if there is none; links are not followed."""
        full = os.path.join(self.path, path)
        try:
            if not stat.S_ISREG(os.lstat(full).st_mode):
                return None
            with open(full, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    # Writing

    def put(self, path: str, raw: bytes, *, lasting: bool) -> None:
        """Write a file atomically, and create its folders; `lasting` as for `replace`."""
        if not self._has_parents(path):
            os.makedirs(os.path.join(self.path, os.path.dirname(path)), exist_ok=True)
            self._has_parents(path)  # raises if one became a link in the meantime
        self.replace(path, raw, lasting=lasting)

    def replace(self, path: str, raw: bytes, *, lasting: bool) -> None:
        """Replace a file atomically; with `lasting` also durably, so it survives a power cut."""
        staging = os.path.join(self.path, STAGING)
        os.makedirs(staging, exist_ok=True)
        fresh = os.path.join(staging, "fresh")
        _write(fresh, raw, lasting=lasting)
        os.replace(fresh, os.path.join(self.path, path))
        if lasting:
            self.sync([], [os.path.dirname(path)])

    def delete(self, path: str, digests: set[str]) -> None:
        """Delete a file if its current digest is one of `digests`, and folders left empty."""
        raw = self.read(path)
        if raw is not None and hashlib.sha256(raw).hexdigest() in digests:
            os.unlink(os.path.join(self.path, path))
        for folder in parent_folders(path):
            if not folder.startswith(f"{self._tree}/"):
                break
            try:
                os.rmdir(os.path.join(self.path, folder))
            except FileNotFoundError:
                continue  # a killed run deleted it
            except OSError:
                break

    def sync(self, paths: Sequence[str], folders: Iterable[str] = ()) -> None:
        """Sync these files with their parent folders, and these folders, to disk."""
        holding = {os.path.dirname(path) for path in paths}
        holding |= {outer for folder in holding for outer in parent_folders(folder)}
        ordered = (*paths, *sorted(holding.union(folders), reverse=True))
        sync_paths([os.path.join(self.path, path) for path in ordered])

    def clear(self) -> None:
        """Remove the staging folder, also that of a killed run."""
        with suppress(FileNotFoundError):
            shutil.rmtree(os.path.join(self.path, STAGING))

    @contextmanager
    def locked(self) -> Generator[None]:
        if sys.platform == "win32":
            yield
            return
        import fcntl

        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fault = "another process is publishing there; wait until it ends"
                raise UsageError(f"{self.shown}: {fault}") from None
            yield
        finally:
            os.close(descriptor)


def parent_folders(folder: str) -> Iterable[str]:
    """Yield the folders above a folder, ending with "" for the outermost."""
    while folder:
        folder = os.path.dirname(folder)
        yield folder


def _write(path: str, raw: bytes, *, lasting: bool) -> None:
    with open(path, "wb") as file:
        file.write(raw)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
