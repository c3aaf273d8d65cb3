"""Gates: each judges a skill that is new or has changed before it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.codes import problem
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Problem, Skill


class GateRefusal(NamedTuple):
    """A skill is not served.

    Attributes:
        problem: why; None where nothing is to be said beside what the skill's own problems say: it
            is unusable, or the same skill is served from elsewhere.
    """

    problem: Problem | None


Gate: TypeAlias = Callable[[Reader, Skill], "GateRefusal | None"]
"""Returns None for a skill that passes. It may raise what reading the skill's files raises."""


def all_of(gates: Sequence[Gate]) -> Gate | None:
    """Return one gate that a skill passes if it passes all of these; None where there are none."""
    if len(gates) < 2:
        return next(iter(gates), None)

    def judge(reader: Reader, skill: Skill) -> GateRefusal | None:
        return next(
            (refusal for gate in gates if (refusal := gate(reader, skill)) is not None), None
        )

    return judge


def by_root(gates: Mapping[str, Gate]) -> Gate:
    """Return one gate for all roots: the gate of its root's given folder judges each skill."""

    def judge(reader: Reader, skill: Skill) -> GateRefusal | None:
        gate = gates.get(reader.roots[skill.root].given)
        if gate is None:
            return None
        return gate(reader, skill)

    return judge


class Selection:
    """Serves the skills that patterns choose; a pattern fits a skill's path, its name or one of its
    tags.

    Args:
        include: patterns in the manner of a shell, `*` also for slashes, of which one must fit;
            none for all.
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
            return GateRefusal(
                problem("switched-off", f"exclude has the pattern {excluded!r}, which fits it")
            )
        if self._include and not any(_fits(each, texts) for each in self._include):
            return GateRefusal(problem("switched-off", "no pattern of include fits it"))
        return None


def _fits(pattern: str, texts: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for text in texts)
