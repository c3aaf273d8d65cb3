"""Recalls: advisories that withdraw skills by digest, and the check that refuses those skills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Skill
from mcp_skills_server.model.skill import whole_digest

SEVERITIES: Final = ("low", "medium", "high", "critical")
"""The severities of an advisory, in the words of CVSS."""


class Advisory(NamedTuple):
    """A recall of one digest: of a file, or of all files of a skill as lock files have it.

    `replacement` is the path or name of the skill to load instead, "" for none.
    """

    digest: str
    reason: str
    severity: str
    replacement: str = ""

    def __str__(self) -> str:
        return f"recalled ({self.severity}): {self.reason}"


class Recalls:
    """The advisories in force. `is_locked` gives refusals the code for skills of a lock file.

    Thread-safe: `advisories`, by digest, is never changed but replaced.
    """

    def __init__(self, advisories: Iterable[Advisory] = (), *, is_locked: bool = False) -> None:
        self._code = "lock-recalled" if is_locked else "recalled"
        self._refused: dict[str, Advisory] = {}
        """The latest refusal by the path of the skill, for sessions that know only the path."""
        self.replace(advisories)

    def replace(self, advisories: Iterable[Advisory]) -> None:
        """Replace the advisories. The caller refreshes the registry, which then refuses skills."""
        self.advisories: Mapping[str, Advisory] = {
            advisory.digest: advisory for advisory in advisories
        }

    def advisory_on(self, skill: Skill | str) -> Advisory | None:
        """Return the advisory on a skill of any scan, or on the one refused at a path, or None."""
        advisories = self.advisories
        if isinstance(skill, str):
            refused = self._refused.get(skill)
            return None if refused is None else advisories.get(refused.digest)
        digests = {*skill.digests.values(), whole_digest(skill)} if advisories else set[str]()
        return next((advisories[digest] for digest in digests & advisories.keys()), None)

    def refuse(self, skill: Skill, whole: Skill) -> GateRefusal | None:
        """Refuse a recalled skill, also if only `whole`, with its refused nested skills, is."""
        advisory = self.advisory_on(skill) or self.advisories.get(whole_digest(whole))
        if advisory is None:
            return None
        self._refused[skill.path] = advisory
        return GateRefusal(problem(self._code, f"it is {advisory}"))
