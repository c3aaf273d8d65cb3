"""Recalls: advisories that withdraw skills by digest, and the check that refuses those skills.

The digest of an advisory is that of one file, or that of all files of a skill as lock files have
it. The advisories of a source apply to its own skills alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Skill

SEVERITIES: Final = ("low", "medium", "high", "critical")
"""The severities of an advisory, in the words of CVSS."""


class Advisory(NamedTuple):
    """A recall of one digest.

    Attributes:
        digest: of a file, or of all files of a skill.
        reason: why it is recalled, in one line.
        severity: one of `SEVERITIES`.
        replacement: the path or name of the skill to load instead; "" for none.
    """

    digest: str
    reason: str
    severity: str
    replacement: str = ""

    def __str__(self) -> str:
        return f"recalled ({self.severity}): {self.reason}"


class Recalls:
    """The advisories in force. Thread-safe: a replaced table is never changed.

    `is_locked` tells whether a lock file names the skills, which gives refusals a code of their
    own.
    """

    def __init__(self, *, is_locked: bool = False) -> None:
        self._code = "lock-recalled" if is_locked else "recalled"
        self._tables: dict[str, Mapping[str, Advisory]] = {}
        """The advisories by digest, by the `given` path of their root; "" for all roots."""
        self._refused: dict[str, Advisory] = {}
        """The latest refusal by the path of the skill, for sessions that know only the path."""

    def replace(self, advisories: Iterable[Advisory], root: str = "") -> bool:
        """Replace the advisories of a root, "" for those of all roots; tell whether they differ.

        The caller refreshes the registry, which then refuses what is recalled.
        """
        table = {advisory.digest: advisory for advisory in advisories}
        tables = {**self._tables, root: table}
        if not table:
            del tables[root]
        is_new, self._tables = tables != self._tables, tables
        return is_new

    def find(self, reader: SkillReader, skill: Skill) -> Advisory | None:
        """Return the advisory on a skill or on one of its files, or None."""
        if not self._tables:
            return None
        return self._find(reader, skill, [*skill.digests.values(), skill.whole_digest])

    def refuse(self, reader: SkillReader, skill: Skill, whole: Skill) -> GateRefusal | None:
        """Refuse a recalled skill, also if only `whole`, with its refused nested skills, is."""
        if not self._tables:
            return None
        advisory = self.find(reader, skill) or self._find(reader, skill, [whole.whole_digest])
        if advisory is None:
            return None
        self._refused[skill.path] = advisory
        return GateRefusal(problem(self._code, f"it is {advisory}"))

    def refused_at(self, path: str) -> Advisory | None:
        """Return the advisory of the latest refusal of a skill at this path, or None."""
        advisory = self._refused.get(path)
        is_in_force = any(advisory in table.values() for table in self._tables.values())
        return advisory if is_in_force else None

    def _find(self, reader: SkillReader, skill: Skill, digests: Sequence[str]) -> Advisory | None:
        for root in ("", reader.roots[skill.root].given):
            table = self._tables.get(root, {})
            for digest in digests:
                if digest in table:
                    return table[digest]
        return None
