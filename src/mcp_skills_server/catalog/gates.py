"""Gates: checks that decide whether a skill is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.codes import problem
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Problem, Skill


class GateRefusal(NamedTuple):
    """Refusal by a gate: the skill is not served.

    Attributes:
        problem: the reason; None if the skill's own problems explain the refusal (it is unusable),
            or if the same skill is served from another place.
    """

    problem: Problem | None


Gate: TypeAlias = Callable[[SkillReader, Skill], GateRefusal | None]
"""Return None for a skill that passes. A gate may raise what reading the skill's files raises."""


def all_of(gates: Sequence[Gate]) -> Gate | None:
    """Combine gates into one that a skill passes if it passes each; return None for no gates."""
    if not gates:
        return None

    def gate_of_all(reader: SkillReader, skill: Skill) -> GateRefusal | None:
        for gate in gates:
            refusal = gate(reader, skill)
            if refusal is not None:
                return refusal
        return None

    return gate_of_all


def by_root(gates: Mapping[str, Gate]) -> Gate:
    """Return one gate for all roots: a skill must pass the gate of its root's `given` path."""

    def gate_of_root(reader: SkillReader, skill: Skill) -> GateRefusal | None:
        gate = gates.get(reader.roots[skill.root].given)
        return None if gate is None else gate(reader, skill)

    return gate_of_root


class Selection:
    """Gate that selects skills by shell patterns over their path, name and tags.

    At least one of `include`, if there are any, and none of `exclude` must match. `*` also matches
    slashes.
    """

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = include
        self._exclude = exclude

    def __call__(self, _: SkillReader, skill: Skill) -> GateRefusal | None:
        """Return why this skill is not served, or None if it is chosen."""
        texts = [skill.path, skill.name, *map(str, tags_of(skill.frontmatter))]
        excluded = next((pattern for pattern in self._exclude if _matches(pattern, texts)), None)
        if excluded is not None:
            reason = f"the exclude pattern {excluded!r} matches it"
        elif self._include and not any(_matches(pattern, texts) for pattern in self._include):
            reason = "no include pattern matches it"
        else:
            return None
        return GateRefusal(problem("switched-off", reason))


def _matches(pattern: str, texts: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for text in texts)
