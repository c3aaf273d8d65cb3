"""Comparison of a lock file with its sources as they are now, and the entries of an update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill
from mcp_skills_server.provenance.difference import Files
from mcp_skills_server.provenance.lock import LockedSource, is_pinned_elsewhere

Kind: TypeAlias = Literal["changed", "added", "removed"]
KINDS: Final[tuple[Kind, ...]] = ("changed", "added", "removed")


class SourceOffer(NamedTuple):
    """A source at one moment, with the skills served of it; `revision` is "" for a folder."""

    given: str
    revision: str
    skills: dict[str, Skill]
    registry: Registry

    def locked(self) -> LockedSource:
        """Return the source's entry of a lock file."""
        digests = {path: self.registry.digest_over(skill) for path, skill in self.skills.items()}
        return LockedSource(self.given, self.revision, digests)

    def files(self, path: str) -> Files | None:
        """Return the files of a skill, or None if the source has no such skill."""
        skill = self.skills.get(path)
        if skill is None:
            return None
        contents = self.registry.read_all(skill)
        return {name: (raw, skill.files[name].executable) for name, raw in contents.items()}


class SourceChange(NamedTuple):
    """A source: its locked entry, its newest entry, its offer now, and the kind of each change."""

    source: LockedSource
    newest: LockedSource
    offer: SourceOffer
    kinds: Mapping[str, Kind]

    def paths(self, kind: Kind) -> list[str]:
        """Return the paths of the skills with this kind of change."""
        return [path for path, known in self.kinds.items() if known == kind]

    def entries(self, chosen: Collection[str], *, keeps_history: bool) -> list[LockedSource]:
        """Return the entries of the source once the skills at the `chosen` paths are updated.

        A source that keeps its history has two entries, if only some of its changes are chosen.
        """
        if self.kinds.keys() <= set(chosen):
            return [self.newest]
        if not chosen:
            return [self.source]
        now = {path: digest for path, digest in self.newest.skills.items() if path in chosen}
        kept = {path: digest for path, digest in self.source.skills.items() if path not in chosen}
        if keeps_history:
            return [replace(self.source, skills=kept), replace(self.newest, skills=now)]
        return [replace(self.newest, skills=kept | now)]


def compare_sources(
    locked: Sequence[LockedSource], offers: Iterable[SourceOffer]
) -> list[SourceChange]:
    """Return each source compared with its lock.

    If a source has two revisions, each entry keeps its own skills; the last one gets new skills.
    """
    newest = {offer.given: (offer, offer.locked()) for offer in offers}
    last = {source.given: number for number, source in enumerate(locked)}
    changes: list[SourceChange] = []
    for number, source in enumerate(locked):
        offer, now = newest[source.given]
        wanted = {path for path in now.skills if not is_pinned_elsewhere(path, source, locked)}
        if last[source.given] != number:
            wanted = now.skills.keys() & source.skills.keys()
        skills = {path: digest for path, digest in now.skills.items() if path in wanted}
        kinds = _change_kinds(source.skills, skills)
        changes.append(SourceChange(source, replace(now, skills=skills), offer, kinds))
    return changes


def _change_kinds(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, Kind]:
    """Return the kind of change of each skill whose digest differs, by path, in their order."""
    kinds: dict[str, Kind] = dict.fromkeys(now.keys() - before.keys(), "added")
    kinds |= dict.fromkeys(before.keys() - now.keys(), "removed")
    for path in before.keys() & now.keys():
        if before[path] != now[path]:
            kinds[path] = "changed"
    return dict(sorted(kinds.items()))


def merge_entries(sources: Iterable[LockedSource]) -> list[LockedSource]:
    """Merge entries of the same source and revision; drop one without skills beside others."""
    merged: dict[tuple[str, str], LockedSource] = {}
    for source in sources:
        key = source.given, source.revision
        if key in merged:
            merged[key] = replace(source, skills={**merged[key].skills, **source.skills})
        else:
            merged[key] = source
    counts = Counter(given for given, _ in merged)
    return [source for source in merged.values() if source.skills or counts[source.given] == 1]


def without_hidden(sources: Iterable[LockedSource]) -> tuple[list[LockedSource], list[str]]:
    """Drop skills whose path an earlier source has; return the entries, and a line for each skill.

    An update of one source may bring a skill that an earlier source hides.
    """
    owners: dict[str, str] = {}
    kept: list[LockedSource] = []
    hidden: list[str] = []
    for source in sources:
        skills: dict[str, str] = {}
        for path, digest in sorted(source.skills.items()):
            owner = owners.setdefault(path, source.given)
            if owner == source.given:
                skills[path] = digest
            else:
                hidden.append(f"{path} of {source.given}, which is hidden by that of {owner}")
        kept.append(replace(source, skills=skills))
    return kept, hidden
