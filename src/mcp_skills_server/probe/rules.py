"""The rules of the probe, which `rules.toml` has as data, and the verdicts about a server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, cast

from mcp_skills_server.model import Problem
from mcp_skills_server.model.decoding import load_toml
from mcp_skills_server.server.eras import Shape

_TYPES: Final = {"string": str, "boolean": bool, "integer": int, "object": dict}


@cache
def rules() -> dict[str, dict[str, Any]]:
    """Return the rules by their IDs in docs/requirements.md, as the head of the file says."""
    text = files("mcp_skills_server.probe").joinpath("rules.toml").read_text(encoding="utf-8")
    return load_toml(text)


def rules_with(key: str, method: str) -> list[str]:
    """Return the rules that name a method under a key."""
    return [id_ for id_, rule in rules().items() if method in rule.get(key, ())]


def shape_of(value: Any) -> Shape:
    """Return a shape of `rules.toml` in the form of `shape_error`."""
    if isinstance(value, str):
        return frozenset(value[1:].split("|")) if value[0] == "=" else _TYPES[value]
    if isinstance(value, list):
        return [shape_of(item) for item in cast("list[Any]", value)]
    if "anyOf" in value:
        return tuple(map(shape_of, value["anyOf"]))
    return {key: shape_of(inner) for key, inner in value.items()}


class Verdicts:
    """The judgements about a server in one era.

    Attributes:
        judged: the rules for which there was something to judge.
        faults: pairs of a rule and what is wrong, as keys.
        stopped: why not everything was judged, if so.
        skills: the URIs of the listed skills.
    """

    def __init__(self) -> None:
        self.judged: set[str] = set()
        self.faults: dict[tuple[str, str], None] = {}
        self.stopped: list[str] = []
        self.skills: set[str] = set()

    def judge(self, rule: str, is_kept: object, fault: str) -> bool:
        """Record whether a rule is kept, with the fault if it is not, and return it."""
        self.judged.add(rule)
        if not is_kept:
            self.faults[rule, fault] = None
        return bool(is_kept)


def problems_of(verdicts: Mapping[str, Verdicts], target: str) -> list[Problem]:
    """Return the faults in the order of the rules; those of only one era name it."""
    problems: dict[Problem, None] = {}
    for era, own in verdicts.items():
        for id_, fault in own.faults:
            rule = rules()[id_]
            is_common = all((id_, fault) in other.faults for other in verdicts.values())
            message = fault if is_common else f"{era} era: {fault}"
            hint = f"{rule['says']} ({rule['source']})"
            severity = "error" if rule["level"] == "MUST" else "warning"
            problems[Problem(id_, severity, message, hint, path=target)] = None
    order = list(rules())
    return sorted(problems, key=lambda problem: order.index(problem.code))
