"""Skills by their dotted names and versions, for one snapshot.

Dotted names live here and in no other package. Only skills with a sound manifest are in it; for the others there
is a Problem. A catalogue never changes: the next snapshot has its own, which reuses every manifest of an unchanged
skill.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog.path_index import join
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.codes import problem
from mcp_skills_server.dialects.skills_protocol import GUIDE_SKILL
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import manifest as manifests
from mcp_skills_server.format import versions
from mcp_skills_server.format.manifest import SKILL_TOML, Findings, Manifest
from mcp_skills_server.model import SKILL_MD, Json, Problem, Skill, Snapshot, Standing
from mcp_skills_server.rpc import guide

logger = logging.getLogger(__name__)

_LOGGED_AT_ONCE: Final = 20
_MOST_LOGGED: Final = 10_000
_findings: Final[WeakKeyDictionary[Skill, Findings]] = WeakKeyDictionary()
"""What was read in the manifest of a skill."""

Key: TypeAlias = tuple[str, versions.Key]
"""What a list is sorted by: the name, then the version, older ones first."""


@dataclass(frozen=True, slots=True, eq=False)
class SkillVersion:
    """One version of one skill.

    Attributes:
        manifest: what it says of itself.
        frontmatter: that of its SKILL.md.
        skill: where its files are; None for the built-in one.
    """

    manifest: Manifest
    frontmatter: Mapping[str, Json]
    skill: Skill | None

    @property
    def key(self) -> Key:
        """Its place in the list."""
        return self.manifest.name, self.manifest.version.key


class Catalogue:
    """The skills of one snapshot.

    Args:
        entries: in the order of their rank: of two with the same name and version the first one counts.

    Attributes:
        shadowed: the entries that another one hides.
    """

    def __init__(self, entries: Iterable[SkillVersion]) -> None:
        found: dict[tuple[str, str], SkillVersion] = {}
        self.shadowed: list[SkillVersion] = []
        for entry in entries:
            place = entry.manifest.name, entry.manifest.version.text
            if found.setdefault(place, entry) is not entry:
                self.shadowed.append(entry)
        self._ordered = sorted(found.values(), key=lambda entry: entry.key)
        self._by_name: dict[str, list[SkillVersion]] = {}
        self._by_namespace: dict[str, list[SkillVersion]] = {}
        for entry in self._ordered:
            self._by_name.setdefault(entry.manifest.name, []).append(entry)
            self._by_namespace.setdefault(entry.manifest.namespace, []).append(entry)

    def page(
        self, namespace: str | None, after: Key | None, size: int
    ) -> tuple[list[SkillVersion], SkillVersion | None]:
        """Up to `size` entries behind a key, and the last of them if there are more."""
        entries = self._ordered if namespace is None else self._by_namespace.get(namespace, [])
        start = 0 if after is None else bisect_right(entries, after, key=lambda entry: entry.key)
        chosen = entries[start : start + size]
        return chosen, chosen[-1] if start + size < len(entries) else None

    def versions(self, name: str) -> Sequence[SkillVersion]:
        """All versions of a skill, the latest last."""
        return self._by_name.get(name, ())

    def names(self) -> Iterable[str]:
        """Return the names of all skills."""
        return self._by_name


class Catalogues:
    """Makes the catalogue of the current snapshot, once.

    Args:
        skill_set: the skills.
        logged: what others have logged of the same files, where this is a part of what they have.

    Attributes:
        problems: what is wrong with the manifests of the last snapshot, by place.
        logged: what has been logged of it.
    """

    def __init__(self, skill_set: SkillSet, logged: set[Problem] | None = None) -> None:
        self._skill_set = skill_set
        self._lock = threading.Lock()
        self._made: tuple[Snapshot, Catalogue] | None = None
        self.logged: set[Problem] = set() if logged is None else logged
        self.problems: tuple[Problem, ...] = ()

    def known(self, snapshot: Snapshot) -> Catalogue | None:
        """Return the catalogue of this snapshot, if it was made already."""
        made = self._made
        return made[1] if made is not None and made[0] is snapshot else None

    def make(self, snapshot: Snapshot, *, last: bool) -> Catalogue:
        """Return the catalogue of this snapshot. Reads every `skill.toml` that was not read yet.

        Args:
            snapshot: the skills.
            last: leave out a skill whose `skill.toml` cannot be read.

        Raises:
            StaleFileError: a `skill.toml` changed, unless it is the last try.
        """
        with self._lock:
            known = self.known(snapshot)
            if known is not None:
                return known
            problems: list[Problem] = []
            skills = [snapshot.skills[path] for path in snapshot.paths(Standing.LENIENT)]
            described, fields = guide.described()
            entries = [SkillVersion(described, fields, None)]
            for skill in sorted(skills, key=lambda skill: (skill.root, skill.path)):
                found = self._read(skill, last=last)
                problems += [self._placed(each, skill) for each in found.problems]
                if found.manifest is None:
                    continue
                if found.manifest.name == GUIDE_SKILL:  # else a later version would take the place of the built-in one
                    problems.append(self._hidden(skill, f"{GUIDE_SKILL} is the name of the built-in skill"))
                else:
                    entries.append(SkillVersion(found.manifest, skill.frontmatter, skill))
            catalogue = Catalogue(entries)
            for entry in catalogue.shadowed:
                if entry.skill is not None:
                    same = f"{entry.manifest.name} {entry.manifest.version.text} is that of another skill, too"
                    problems.append(self._hidden(entry.skill, same))
            self._log(problems)
            self._made = snapshot, catalogue
            return catalogue

    def _read(self, skill: Skill, *, last: bool) -> Findings:
        kept = _findings.get(skill)
        if kept is not None:
            return kept
        file = skill.files.get(SKILL_TOML)
        try:
            raw = None if file is None else self._skill_set.read(file)
        except StaleFileError as stale:
            if not last:
                raise
            message = f"the file cannot be read ({stale.reason or 'it changed'})"
            return Findings(None, (problem("unreadable", message),))
        found = _findings[skill] = manifests.read(raw, skill.frontmatter, skill.path, skill.files)
        return found

    def _hidden(self, skill: Skill, message: str) -> Problem:
        hint = "give it another name or version; until then the Skills Protocol does not serve it"
        return self._placed(problem("shadowed", message, hint=hint), skill)

    def _placed(self, found: Problem, skill: Skill) -> Problem:
        file = SKILL_TOML if SKILL_TOML in skill.files else SKILL_MD
        return found.at(self._skill_set.roots[skill.root].show(join(skill.directory, file)), skill.path)

    def _log(self, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda each: (each.path, each.line or 0, each.code)))
        fresh = [each for each in self.problems if each not in self.logged]
        if self._skill_set.permissions is None or len(self.logged) > _MOST_LOGGED:
            self.logged.clear()  # what was put right is news when it comes again
        self.logged.update(self.problems)
        for each in fresh[:_LOGGED_AT_ONCE]:
            logger.warning("%s", each)
        if len(fresh) > _LOGGED_AT_ONCE:
            logger.warning("and %d more problems with manifests", len(fresh) - _LOGGED_AT_ONCE)
