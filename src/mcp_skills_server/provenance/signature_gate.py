"""Gate of the registry: serve only skills that are signed as the operator demands.

Verification takes long, so proofs are kept for the next start: an empty file for each skill, named after what was
proved. A proof is as good as who may write it. So folder and file must belong to this user and be writable by nobody
else. Only what passed is kept, and all of it may be deleted at any time.
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
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.codes import problem
from mcp_skills_server.durable import why_untrusted
from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.provenance.signatures import UnsignedError, Verifier

_MOST_PROVED: Final = 100_000
_UNUSED_S: Final = 30 * 86400.0


class Proofs:
    """The proofs of one user. A folder that cannot be used holds none and takes none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, asked: str, digest: str) -> bool:
        """Tell whether the skill with this digest over its files passed what was asked: by which keys, on which day."""
        place = self._place(asked)
        try:
            return _is_ours(place, stat.S_ISDIR) and _is_ours(place / _sha256(digest), stat.S_ISREG)
        except OSError:
            return False

    def keep(self, asked: str, digest: str) -> None:
        """Keep the proof that a skill passed what was asked."""
        place = self._place(asked)
        with suppress(OSError):
            if not place.is_dir():
                place.mkdir(mode=0o700, parents=True)
                self._remove_unused(place)
            if _is_ours(place, stat.S_ISDIR):
                os.utime(place)
                os.close(os.open(place / _sha256(digest), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def _place(self, asked: str) -> Path:
        # Another version may ask more of a signature.
        return self._folder / _sha256(f"{__version__} {asked}")

    def _remove_unused(self, but: Path) -> None:
        for each in self._folder.iterdir():
            if each != but and time.time() - each.lstat().st_mtime > _UNUSED_S:
                shutil.rmtree(each, ignore_errors=True)


class SignatureGate:
    """Refuses skills that are not signed as they should be, and proves each only once."""

    def __init__(self, verifier: Verifier, proofs: Proofs | None = None) -> None:
        self._verifier = verifier
        self._kept = proofs
        self._asked: str | None = None
        """What `_proved` depends on: the keys, and the day if one of them is a certificate."""
        self._proved: dict[str, GateRefusal | None] = {}

    def __call__(self, reader: Reader, skill: Skill) -> GateRefusal | None:
        """Return why this skill is not served, or None if it is signed as it is."""
        if skill.standing is Standing.UNUSABLE:  # it may be of any size, and is not served
            return GateRefusal(None)
        digest, asked = reader.digest_over(skill), self._verifier.asked()
        if asked != self._asked or len(self._proved) >= _MOST_PROVED:
            self._asked = asked
            self._proved.clear()
        if digest not in self._proved:
            self._proved[digest] = self._judge(reader, skill, digest, asked)
        return self._proved[digest]

    def _judge(self, reader: Reader, skill: Skill, digest: str, asked: str | None) -> GateRefusal | None:
        if self._kept is not None and asked is not None and self._kept.has(asked, digest):
            return None
        try:
            self._verifier.check(reader.read_all(skill))
        except UnsignedError as error:
            return GateRefusal(problem(error.code, str(error)))
        if self._kept is not None and asked is not None:
            self._kept.keep(asked, digest)
        return None


def _is_ours(path: Path, is_kind: Callable[[int], bool]) -> bool:
    found = os.lstat(path)
    return is_kind(found.st_mode) and not why_untrusted(found)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
