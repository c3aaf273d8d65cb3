"""Publication of a catalogue by Agent Skills Discovery: an immutable edition of each snapshot.

All artifacts of an edition are spooled before its index is visible. So a client can fetch whatever
an index names, with the listed digest, despite later changes on disk. A skill is packed again only
when it changes. No HTTP here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from mcp_skills_server import codes
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import FilteredSkills
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError
from mcp_skills_server.model import EVALS, SIGNATURE_FILE, SKILL_MD, Skill, Snapshot, Standing
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.publish.artifacts import (
    Artifacts,
    ArtifactSlot,
    Edition,
    Item,
    Published,
    RetentionPolicy,
)

_RETRY_S: Final = 1.0
"""Seconds until an edition is made again after a file could not be read."""
_BASE_WEIGHT: Final = 50
"""Weight of a publication without skills."""


@dataclass(frozen=True, slots=True)
class _Selection:
    """The skills of a snapshot by name, (skill path, reason) of the others, and stale files."""

    snapshot: Snapshot
    skills: dict[str, Published]
    left_out: list[tuple[str, str]]
    stale: list[StaleFileError]


class Publication:
    """The editions of a catalogue. Thread-safe.

    Args:
        registry: the catalogue. Its first scan must be done before the first edition.
        base: prefix of the artifacts' paths in the index: "", or the URL of the tree.
        keeping: retention of artifacts that the newest index does not name.
        progress: yields the skills to pack, and shows how far it is.
        evals: also publish the folder `evals` of each skill.
    """

    def __init__(
        self,
        registry: Registry | FilteredSkills,
        base: str = "",
        *,
        keeping: RetentionPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[Sequence[Skill]], Iterable[Skill]] | None = None,
        evals: bool = False,
    ) -> None:
        self.registry = registry
        self._progress = progress
        self._evals = evals
        self._base = base
        self._clock = clock
        self._lock = threading.Lock()
        self._packed: dict[Skill, Published | str] = {}
        """The result of packing a skill, or the reason for its refusal."""
        self._artifacts = Artifacts(keeping or RetentionPolicy(), clock)
        self._made_at = 0.0
        self._settled = True
        """Whether all files of the latest edition could be read."""
        self.latest: Edition | None = None

    @property
    def weight(self) -> int:
        """Number of packed skills, and some more."""
        return len(self._packed) + _BASE_WEIGHT

    # Editions

    @property
    def current(self) -> Edition | None:
        """The edition of the current snapshot, or None if it must be made first."""
        made = self.latest
        if made is None or made.snapshot is not self.registry.snapshot:
            return None
        if not self._settled and self._clock() >= self._made_at + _RETRY_S:
            return None
        return made

    def edition(self) -> Edition:
        """Return the edition of the current snapshot; an OSError leaves `latest` unchanged."""
        with self._lock:
            edition = self.current
            if edition is None:
                edition, before = self._make(), self.latest
                self.latest, self._made_at = edition, self._clock()
                self._artifacts.renew(before, edition)
            return edition

    def _make(self) -> Edition:
        picked = self._select()
        if picked.stale:  # retry once, from the new snapshot
            for error in picked.stale:
                self.registry.rescan(error.path)
            picked = self._select()
        self._settled = not picked.stale
        skills = picked.skills
        older = wellknown.publishable_0_1(entry.skill for entry in skills.values())
        entries = [(entry.skill, entry.artifact) for entry in skills.values()]
        index = wellknown.encode(wellknown.index(entries, self._base))
        digests = [(skill, skills[skill.name].artifact.digest) for skill in older.skills]
        index_0_1 = wellknown.encode(wellknown.index_0_1(digests))
        return Edition(
            snapshot=picked.snapshot,
            skills=skills,
            older=frozenset(skill.name for skill in older.skills),
            index=index,
            digest=digest_of(index),
            index_0_1=index_0_1,
            digest_0_1=digest_of(index_0_1),
            left_out=tuple(sorted(picked.left_out)),
            left_out_0_1=older.left_out,
        )

    def _select(self) -> _Selection:
        snapshot = self.registry.snapshot
        choice = wellknown.publishable(snapshot)
        picked = _Selection(snapshot, {}, [*choice.left_out, *_broken(snapshot)], [])
        # Forget a skill that is left out: its artifact may be gone when it is published again.
        packed = self._packed
        self._packed = {name: packed[name] for name in choice.skills if name in packed}
        for skill in choice.skills if self._progress is None else self._progress(choice.skills):
            try:
                packed_or_reason = self._pack(skill)
            except StaleFileError as error:
                picked.stale.append(error)
                # Its last published version stays until the file stops changing.
                reason = f"a file cannot be read ({error.reason or 'it keeps changing'})"
                packed_or_reason = self._published_before(skill) or reason
            if isinstance(packed_or_reason, str):
                picked.left_out.append((skill.path, packed_or_reason))
            else:
                picked.skills[skill.name] = packed_or_reason
        return picked

    def _published_before(self, skill: Skill) -> Published | None:
        former = self.latest.skills.get(skill.name) if self.latest else None
        return former if former is not None and former.skill.path == skill.path else None

    def _pack(self, skill: Skill) -> Published | str:
        """Pack and spool a skill, or return why it cannot be published."""
        packed_or_reason = self._packed.get(skill)
        if packed_or_reason is None:
            try:
                packed_or_reason = self._pack_anew(skill if self._evals else without_evals(skill))
            except ArchiveRefusedError as refused:
                packed_or_reason = str(refused)
            self._packed[skill] = packed_or_reason
        return packed_or_reason

    def _pack_anew(self, skill: Skill) -> Published:
        archive.check_paths(skill.files)
        read = {path: self.registry.read(file) for path, file in skill.files.items()}
        if wellknown.kind(skill) == "archive":
            files = {path: (raw, skill.files[path].executable) for path, raw in read.items()}
            suffix, raw = archive.pack(files)
        else:
            suffix, raw = "", read[SKILL_MD]
        artifact = wellknown.artifact(skill.name, digest_of(raw), suffix)
        published = Published(skill, artifact)
        self._artifacts.put(published, raw)
        return published

    # The content of editions

    def artifact(self, path: str) -> tuple[Published, ArtifactSlot] | None:
        """Return an artifact and its bytes by path, of the latest or a recent edition, or None."""
        kept = self._artifacts.get(path)
        return None if kept is None or self._is_recalled(kept[0]) else kept

    def file(self, edition: Edition, name: str, path: str) -> Published | None:
        """Return the skill of discovery 0.1.0 with this file, of this edition or a recent one."""
        current = edition.skills[name] if name in edition.older else None
        for published in (current, self._artifacts.former(name)):
            if published is not None and path in published.skill.files:
                return None if self._is_recalled(published) else published
        return None

    def _is_recalled(self, published: Published) -> bool:
        """Tell whether a skill was recalled after it was packed."""
        return self.registry.advisory_on(published.skill) is not None

    def read(self, published: Published, path: str) -> bytes:
        """Read a file's bytes as published, or raise KeyError if they are not retained."""
        try:
            return self.registry.read(published.skill.files[path])
        except StaleFileError:
            return self.unpacked(published)[path][0]

    def unpacked(self, published: Published) -> archive.Files:
        """Return a skill's files as published, or raise KeyError if they are not retained."""
        return self._artifacts.unpacked(published.artifact)

    def tree(self, edition: Edition) -> Iterator[Item]:
        """Yield every file of an edition, the indexes last.

        Bytes are read from the spool, so later changes on disk do not matter.
        """
        for published in edition.skills.values():
            artifact = published.artifact
            yield Item(artifact.path, artifact.digest, partial(self._artifacts.read, artifact))
            name = published.skill.name
            if name in edition.older:
                for path, file in published.skill.files.items():
                    address = f"{wellknown.DIRECTORY_0_1}{name}/{path}"
                    yield Item(address, file.digest, partial(self.read, published, path))
        older = wellknown.DIRECTORY_0_1 + wellknown.INDEX
        yield Item(older, edition.digest_0_1, lambda: edition.index_0_1)
        yield Item(wellknown.DIRECTORY + wellknown.INDEX, edition.digest, lambda: edition.index)


def without_evals(skill: Skill) -> Skill:
    """Return a skill without its author's evals, as skill-creator packs it.

    A signed skill is unchanged, since its signature covers all files.
    """
    if SIGNATURE_FILE in skill.files or not any(path.startswith(EVALS) for path in skill.files):
        return skill
    files = {path: file for path, file in skill.files.items() if not path.startswith(EVALS)}
    return replace(skill, files=files, whole=skill.whole or skill)


def _broken(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    """Yield (skill path, reason) of every skill that breaks the specification."""
    for path in snapshot.paths(Standing.UNUSABLE):
        skill = snapshot.skills[path]
        if skill.standing < Standing.VALID:
            problem = codes.unlisting_problem(skill.problems)
            yield path, problem.message if problem is not None else "it is not valid"
