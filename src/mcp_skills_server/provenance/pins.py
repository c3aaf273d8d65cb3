"""Gate of the registry: serve only skills that the lock file names, and report the others."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Skill, Standing


class Pins:
    """The skills that may be served, as a gate of the registry.

    Args:
        skills: digest over all files by skill path, by the folder that a root is given as, absolute. Of a root that is
            not there nothing is served.
        elsewhere: by the same folders, the skill paths that the lock file takes from another revision of that source.
    """

    def __init__(self, skills: Mapping[str, Mapping[str, str]], elsewhere: Mapping[str, frozenset[str]]) -> None:
        self.replace(skills, elsewhere)

    def replace(self, skills: Mapping[str, Mapping[str, str]], elsewhere: Mapping[str, frozenset[str]]) -> None:
        """Have these in force for what is judged from now on."""
        self._skills = skills
        self._elsewhere = elsewhere

    def __call__(self, reader: Reader, skill: Skill) -> GateRefusal | None:
        """Return why this skill is not served, or None if it is the one that was locked."""
        root = reader.roots[skill.root].given
        # One that is unusable may be of any size, and is not served. Nor does it hide one of a later root.
        if skill.standing is Standing.UNUSABLE:
            return GateRefusal(None)
        locked = self._skills.get(root, {}).get(skill.path)
        if locked is None:
            if skill.path in self._elsewhere.get(root, ()):
                return GateRefusal(None)
            return GateRefusal(problem("lock-missing", "the lock file does not name this skill"))
        if reader.digest_over(skill) != locked:
            return GateRefusal(problem("lock-differs", "its files are not those that the lock file names"))
        return None

    def unserved(self, reader: Reader, served: Mapping[str, Skill]) -> list[str]:
        """Return the paths of locked skills that are not served."""
        index = {root.given: root.index for root in reader.roots}
        return [
            path
            for root, locked in self._skills.items()
            for path in locked
            if (skill := served.get(path)) is None
            or skill.root != index.get(root)
            or skill.standing is Standing.UNUSABLE
        ]
