"""An archive as a folder: unpacked into a private directory, and unpacked anew when the archive changes.

The folder is a link that is moved once the new tree is whole, so that nobody sees half of one; an archive that is
refused leaves the last good tree where it is.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.ignored import some_of, unserved

logger = logging.getLogger(__name__)

LIMITS: Final = UnpackLimits(files=50_000, bytes=1 << 30, file=64 << 20)
"""Of an archive that holds many skills; the limits of a skill are the scan's matter."""


class Unpacked:
    """One archive of the operator's.

    Args:
        path: the archive.
        hidden: skills in dot folders are served, too.

    Raises:
        UsageError: it cannot be read, or is refused.
    """

    def __init__(self, path: str, *, hidden: bool = False) -> None:
        self._path = path
        self._hidden = hidden
        self._seen: tuple[int, ...] | None = None
        self._digest = ""
        self._top = Path(tempfile.mkdtemp(prefix="mcp-skills-archive-"))
        atexit.register(self.close)
        try:
            self._unpack()
        except (OSError, ArchiveRefusedError) as error:
            self.close()
            raise UsageError(f"{path}: cannot be unpacked ({_why(error)}); give another archive or a folder") from None

    @property
    def folder(self) -> str:
        """Where it is unpacked."""
        return str(self._top / "skills")

    def refresh(self) -> None:
        """Unpack it anew if it changed. What is wrong with it is told in the log, once."""
        try:
            self._unpack()
        except (OSError, ArchiveRefusedError) as error:
            logger.warning("%s: cannot be unpacked (%s); serving what it held before", self._path, _why(error))

    def close(self) -> None:
        """Remove what was unpacked."""
        shutil.rmtree(self._top, ignore_errors=True)
        atexit.unregister(self.close)

    def _unpack(self) -> None:
        found = os.stat(self._path)
        seen = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        raw = Path(self._path).read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        if digest == self._digest:
            return
        files = archive.unpack(raw, LIMITS)
        left_out = unserved(files, hidden=self._hidden)
        if left_out:  # an archive of a repository has some, and nobody signed it as a whole
            logger.warning("%s: left out what is never served: %s", self._path, some_of(left_out))
            for path in left_out:
                del files[path]
        tree = self._top / digest
        _write(tree, files)
        self._point_to(tree)
        before, self._digest = self._digest, digest
        if before:
            shutil.rmtree(self._top / before, ignore_errors=True)

    def _point_to(self, tree: Path) -> None:
        link, fresh = self._top / "skills", self._top / "fresh"
        fresh.unlink(missing_ok=True)
        try:
            fresh.symlink_to(tree.name, target_is_directory=True)
        except OSError:  # Windows wants a privilege for links
            shutil.rmtree(link, ignore_errors=True)
            shutil.copytree(tree, link)
        else:
            os.replace(fresh, link)


def _write(tree: Path, files: Files) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    for path, (raw, executable) in files.items():
        file = tree.joinpath(*path.split("/"))  # `unpack` lets no name out of the tree
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
        file.chmod(0o755 if executable else 0o644)


def _why(error: OSError | ArchiveRefusedError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
