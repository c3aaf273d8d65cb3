"""The rules of the probe, which `rules.toml` has as data, and the verdicts about a server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from mcp_skills_server.model import Problem, Severity
from mcp_skills_server.model.decoding import load_toml


class Rule(NamedTuple):
    """A rule: "MUST" or "SHOULD", the document and section behind it, and what it says."""

    level: str
    source: str
    says: str


@cache
def rules() -> dict[str, Rule]:
    """Return the rules by their IDs in docs/requirements.md."""
    text = files("mcp_skills_server.probe").joinpath("rules.toml").read_text(encoding="utf-8")
    return {id_: Rule(**row) for id_, row in load_toml(text).items()}


class Verdicts:
    """The judgements about a server in one era.

    Attributes:
        judged: the rules for which there was something to judge.
        faults: pairs of a rule and what is wrong, as keys.
        stopped: why not everything was judged, or "".
        requests: the number of requests.
        skills: the number of listed skills.
    """

    def __init__(self) -> None:
        self.judged: set[str] = set()
        self.faults: dict[tuple[str, str], None] = {}
        self.stopped = ""
        self.requests = 0
        self.skills = 0

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
        for rule, fault in own.faults:
            level, source, says = rules()[rule]
            severity: Severity = "error" if level == "MUST" else "warning"
            is_common = all((rule, fault) in other.faults for other in verdicts.values())
            message = fault if is_common else f"{era} era: {fault}"
            problems[Problem(rule, severity, message, f"{says} ({source})", path=target)] = None
    order = list(rules())
    return sorted(problems, key=lambda problem: order.index(problem.code))


def not_seen(verdicts: Mapping[str, Verdicts]) -> list[str]:
    """Return the rules that nothing was judged by, which have not passed."""
    judged = set[str]().union(*(own.judged for own in verdicts.values()))
    return [rule for rule in rules() if rule not in judged]
