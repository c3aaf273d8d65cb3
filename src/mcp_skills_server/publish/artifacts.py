"""The artifacts that editions name, set aside, and for a while those that the newest one no longer names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.dialects.wellknown import Artifact
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import UnpackLimits
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.publish.edition import Edition, Published
from mcp_skills_server.publish.spool import Slot, Spool

GRACE_S: Final = 3600.0
_OWN: Final = UnpackLimits(files=1 << 30, bytes=1 << 40, file=1 << 40)
"""What we have packed ourselves has been through the catalogue's limits."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long artifacts stay that the newest index no longer names.

    Attributes:
        seconds: of age since then.
        number: at once; the oldest go first.
        bytes: of all of them; the oldest go first.
    """

    seconds: float = GRACE_S
    number: int = 20_000
    bytes: int = 512 << 20


class Artifacts:
    """The artifacts of the latest edition and of those not long before. Written under the publication's lock.

    Args:
        keeping: how long artifacts stay that the newest index no longer names.
        clock: seconds that only grow.
        segment: bytes of one of the temporary files.
    """

    def __init__(self, keeping: RetentionPolicy, clock: Callable[[], float], segment: int) -> None:
        self._keeping = keeping
        self._clock = clock
        self._spool = Spool(segment)
        self._artifacts: dict[str, Artifact] = {}
        self._slots: dict[str, Slot] = {}
        self._retired: dict[str, float] = {}
        self._former: dict[str, Published] = {}
        self._unpacked: tuple[str, archive.Files] = ("", {})

    def __contains__(self, artifact: Artifact) -> bool:
        return artifact.path in self._slots

    def put(self, artifact: Artifact, raw: bytes) -> None:
        """Set an artifact aside.

        Raises:
            OSError: there is no place for it.
        """
        if artifact.path not in self._slots:
            self._slots[artifact.path] = self._spool.write(raw)
            self._artifacts[artifact.path] = artifact

    def get(self, path: str) -> tuple[Artifact, Slot] | None:
        """The artifact that is served here and its bytes, None where there is none or its time is over."""
        artifact, slot = self._artifacts.get(path), self._slots.get(path)
        return (artifact, slot) if artifact and slot and self._is_kept(path) else None

    def read(self, artifact: Artifact) -> bytes:
        """The bytes of an artifact.

        Raises:
            StaleFileError: it was never set aside, or is not kept any more.
        """
        if artifact.path not in self._slots:
            raise StaleFileError(artifact.path)
        return self._slots[artifact.path].read()

    def unpacked(self, artifact: Artifact) -> archive.Files:
        """The files of an artifact that was set aside.

        Raises:
            KeyError: it is not kept any more.
        """
        path, files = self._unpacked
        if path != artifact.path:
            raw = self._slots[artifact.path].read()
            files = archive.unpack(raw, _OWN) if artifact.kind == "archive" else {SKILL_MD: (raw, False)}
            self._unpacked = (artifact.path, files)
        return files

    def former(self, name: str) -> Published | None:
        """What was published under a name before, as long as its artifact is kept."""
        former = self._former.get(name)
        return former if former is not None and self._is_kept(former.artifact.path) else None

    def renew(self, before: Edition | None, made: Edition) -> None:
        """This edition follows that one: keep what it names, and decide what becomes of all else."""
        now = self._clock()
        named = {each.artifact.path for each in made.skills.values()}
        for each in before.skills.values() if before else ():
            if each.artifact.path not in named and each.artifact.path in self._slots:
                self._retired.pop(each.artifact.path, None)
                self._retired[each.artifact.path] = now
                self._former[each.skill.name] = each
        for path in named & self._retired.keys():
            del self._retired[path]
        self._forget(now)
        kept = named | self._retired.keys()
        for path in self._slots.keys() - kept:
            del self._slots[path], self._artifacts[path]
        for name in [name for name, each in self._former.items() if each.artifact.path not in self._retired]:
            del self._former[name]
        with suppress(OSError):  # no place for a copy: the waste stays
            self._slots |= self._spool.tidy(self._slots)

    def _forget(self, now: float) -> None:
        keeping = self._keeping
        size = sum(self._slots[path].size for path in self._retired)
        for path, since in list(self._retired.items()):  # the oldest first
            if now - since < keeping.seconds and len(self._retired) <= keeping.number and size <= keeping.bytes:
                break
            size -= self._slots[path].size
            del self._retired[path]

    def _is_kept(self, path: str) -> bool:
        since = self._retired.get(path)
        return since is None or self._clock() - since < self._keeping.seconds
