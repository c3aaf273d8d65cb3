"""Gate of the registry: single skills that the operator switches on and off, by patterns."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.catalog.root_index import GateRefusal
from mcp_skills_server.codes import problem
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Skill


class Selection:
    """Serves the skills that patterns choose; a pattern fits a skill's path, its name or one of its tags.

    Args:
        include: patterns in the manner of a shell, `*` also for slashes, of which one must fit; none for all.
        exclude: patterns of which none may fit.
    """

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = include
        self._exclude = exclude

    def __call__(self, _: Reader, skill: Skill) -> GateRefusal | None:
        """Return why this skill is not served, or None if it is chosen."""
        texts = [skill.path, skill.name, *map(str, tags_of(skill.frontmatter))]
        excluded = next((each for each in self._exclude if _fits(each, texts)), None)
        if excluded is not None:
            return GateRefusal(problem("switched-off", f"exclude has the pattern {excluded!r}, which fits it"))
        if self._include and not any(_fits(each, texts) for each in self._include):
            return GateRefusal(problem("switched-off", "no pattern of include fits it"))
        return None


def _fits(pattern: str, texts: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for text in texts)
