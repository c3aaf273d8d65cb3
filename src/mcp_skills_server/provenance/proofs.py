"""Which skills were proved to be signed, for the next start: an empty file for each, named after what was proved.

A proof is as good as who may write it, so folder and file must be this user's and nobody else's to write. Only what
passed is kept. Everything here may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from mcp_skills_server import __version__
from mcp_skills_server.durable import why_untrusted

_UNUSED_S: Final = 30 * 86400.0


class Proofs:
    """The proofs of one user. A folder that cannot be used holds none and takes none.

    Args:
        folder: where they lie; it is made when the first is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, asked: str, digest: str) -> bool:
        """Whether the skill with this digest over its files passed what was asked: by which keys, on which day."""
        place = self._place(asked)
        try:
            return _is_ours(place, stat.S_ISDIR) and _is_ours(place / _name(digest), stat.S_ISREG)
        except OSError:
            return False

    def keep(self, asked: str, digest: str) -> None:
        """It did."""
        place = self._place(asked)
        with suppress(OSError):
            if not place.is_dir():
                place.mkdir(mode=0o700, parents=True)
                self._remove_unused(place)
            if _is_ours(place, stat.S_ISDIR):
                os.utime(place)
                os.close(os.open(place / _name(digest), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def _place(self, asked: str) -> Path:
        # Another version may ask more of a signature.
        return self._folder / _name(f"{__version__} {asked}")

    def _remove_unused(self, but: Path) -> None:
        for each in self._folder.iterdir():
            if each != but and time.time() - each.lstat().st_mtime > _UNUSED_S:
                shutil.rmtree(each, ignore_errors=True)


def _is_ours(path: Path, is_kind: Callable[[int], bool]) -> bool:
    found = os.lstat(path)
    return is_kind(found.st_mode) and not why_untrusted(found)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
