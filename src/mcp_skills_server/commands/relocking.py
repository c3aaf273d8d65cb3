"""Reload the lock file of a running server, and poll all of its sources on request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.provenance.lock import LockedSource
    from mcp_skills_server.provenance.pins import Pins
    from mcp_skills_server.sources.mirrors import Mirrors

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FollowedSources:
    """The sources of a running server.

    Attributes:
        registry: serves them.
        mirrors: keeps those current that are no folders; None where all are.
        lock: the lock file; None where none is kept to.
        roots: the roots that were given beside it.
        entries: what the lock file said when it was last read, by the folder that the registry serves, absolute.
        pins: the gate that keeps to it.
    """

    registry: Registry
    mirrors: Mirrors | None
    lock: str | None = None
    roots: Sequence[str] = ()
    entries: Mapping[str, LockedSource] = field(default_factory=dict[str, "LockedSource"])
    pins: Pins | None = None

    def look(self) -> None:
        """Poll every source now. Blocks for as long as a scan of the folders."""
        if self.mirrors is not None:
            self.mirrors.look()
        if self.registry.loaded.is_set():
            self.registry.refresh()
        logger.info("looking at every source now")

    def relock(self) -> str:
        """Serve what the lock file says now, and return why that is refused, "" where it is not.

        What cannot be had leaves what was locked before in service.
        """
        if self.lock is None or self.pins is None:
            return ""
        from mcp_skills_server.commands.pinning import locked_roots  # not for every start
        from mcp_skills_server.sources.faults import SourceError

        try:
            entries = _placed(self.entries, locked_roots(self.lock, self.roots), self.lock)
            if entries == self.entries:
                return ""
            moved = {
                folder: each.revision
                for folder, each in entries.items()
                if each.revision != self.entries[folder].revision
            }
            switch = self.mirrors.repinned(moved) if self.mirrors is not None else None
        except (UsageError, SourceError) as error:
            return f"{error}; what was locked before stays in service"
        self.entries = entries
        self.pins.replace(*pinned(entries))
        if switch is not None:
            switch()
        self.registry.loaded.wait()
        self.registry.refresh()
        count = sum(len(each.skills) for each in entries.values())
        logger.info("%s was read again; it names %s skills", self.lock, f"{count:,}")
        for path in self.pins.unserved(self.registry, self.registry.snapshot.skills):
            logger.warning("%s: %s cannot be served", self.lock, path)
        return ""


def pinned(entries: Mapping[str, LockedSource]) -> tuple[dict[str, Mapping[str, str]], dict[str, frozenset[str]]]:
    """Return the locked skills of each folder, and those that another revision of its source has."""
    from mcp_skills_server.commands.pinning import elsewhere

    locked = [*entries.values()]
    return (
        {folder: each.skills for folder, each in entries.items()},
        {folder: elsewhere(locked, each) for folder, each in entries.items()},
    )


def _placed(before: Mapping[str, LockedSource], locked: Sequence[LockedSource], lock: str) -> dict[str, LockedSource]:
    """Assign the new entries to the folders that are served. An entry that is gone leaves its folder without a skill.

    Raises:
        UsageError: a source or a revision has come to stand there that has no folder.
    """
    after = {folder: replace(each, skills={}) for folder, each in before.items()}
    free = dict(before)
    for each in sorted(locked, key=lambda each: each not in free.values()):
        same = [folder for folder, known in free.items() if known.given == each.given]
        if not same:
            raise UsageError(
                f"{lock}: {each.given} stands there with a revision more than at the start; restart the server for it"
            )
        folder = next((found for found in same if free[found].revision == each.revision), same[0])
        del free[folder]
        after[folder] = each
    return after
