"""What may keep a skill of a root from being served although nothing is wrong with it: a lock file, a signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.model import Problem, Skill


class Refusal(NamedTuple):
    """A skill is not served.

    Attributes:
        problem: why; None where nothing is to be said beside what the skill's own problems say: it is unusable, or the
            same skill is served from elsewhere.
    """

    problem: Problem | None


Gate: TypeAlias = Callable[[Reader, Skill], "Refusal | None"]
"""Judges each skill that is new or has changed, before anybody sees it; None lets it pass. It may read the skill's
files and raise what that raises."""


def all_of(gates: Sequence[Gate]) -> Gate | None:
    """One gate that a skill passes if it passes all of these; None where there are none."""
    if len(gates) < 2:
        return gates[0] if gates else None

    def judge(reader: Reader, skill: Skill) -> Refusal | None:
        return next((refusal for gate in gates if (refusal := gate(reader, skill)) is not None), None)

    return judge


def by_root(gates: Mapping[str, Gate]) -> Gate:
    """One gate that judges the skills of a root by the gate of its folder, as it was given and absolute."""

    def judge(reader: Reader, skill: Skill) -> Refusal | None:
        gate = gates.get(reader.roots[skill.root].given)
        return gate(reader, skill) if gate is not None else None

    return judge
