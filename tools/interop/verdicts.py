"""What the referees looked at, each check by itself, and how that compares with what is expected. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a referee looked at."""

    scenario: str
    id: str
    status: str
    message: str = ""

    @property
    def good(self) -> bool:
        return self.status in {"SUCCESS", "INFO"}


def parse_checks(scenario: str, raw: object) -> list[Check]:
    """The checks of a `checks.json`, or of a client of ours, which write the same.

    Raises:
        ValueError: it is not a list of checks, or an empty one.
    """
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{scenario}: no checks")
    out: list[Check] = []
    for each in raw:
        if not isinstance(each, dict) or not isinstance(each.get("id"), str) or not isinstance(each.get("status"), str):
            raise ValueError(f"{scenario}: not a check: {each!r:.200}")
        out.append(Check(scenario, each["id"], each["status"], str(each.get("errorMessage") or "")))
    return out


def all_there(scenario: str, checks: Iterable[Check], wanted: Mapping[str, int]) -> Check:
    """Whether a client saw as many skills, files and so on as there are, by the first word of its checks."""
    kinds = Counter(check.id.split(" ", 1)[0] for check in checks)
    seen, there = (", ".join(f"{count[kind]} x {kind}" for kind in wanted) for count in (kinds, wanted))
    if seen == there:
        return Check(scenario, "all there", "SUCCESS")
    return Check(scenario, "all there", "FAILURE", f"{seen}; there is {there}")


Baseline = Mapping[tuple[str, str, str], str]
"""(suite, scenario, check) -> the reason why it is expected not to pass."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks of one run come to.

    Attributes:
        counts: checks by status.
        expected: how many did not pass, as expected.
        unexpected: those that did not pass and are not expected so.
        stale: (scenario, check) that are expected not to pass, and did or were not seen though their scenario was run.
    """

    counts: Counter[str]
    expected: int
    unexpected: list[Check]
    stale: list[tuple[str, str]]


def read_baseline(raw: object) -> Baseline:
    """The baseline out of its YAML.

    Raises:
        ValueError: a reason is missing or too short to be one, or a check stands twice.
    """
    out: dict[tuple[str, str, str], str] = {}
    if not isinstance(raw, list):
        raise ValueError("the baseline must be a list of reasons")
    for group in raw:
        reason = " ".join(str(group.get("reason") or "").split())
        if len(reason.split()) < 5:
            raise ValueError(f"say in a sentence why these are expected: {reason!r}")
        for suite, scenarios in group["suites"].items():
            for scenario, identifiers in scenarios.items():
                for identifier in identifiers:
                    key = (suite, scenario, identifier)
                    if key in out:
                        raise ValueError(f"stands twice: {' / '.join(key)}")
                    out[key] = reason
    return out


def judge(suite: str, checks: Sequence[Check], baseline: Baseline, may_skip: frozenset[str] = frozenset()) -> Verdict:
    """Compare checks with what is expected. A warning or a skip needs an expectation as a failure does."""
    ran = {check.scenario for check in checks if check.id != "ran"}
    wanted = {key[1:] for key in baseline if key[0] == suite and key[1] in ran}
    missed: set[tuple[str, str]] = set()
    expected = 0
    unexpected: list[Check] = []
    for check in checks:
        if check.good:
            continue
        key = (check.scenario, check.id)
        missed.add(key)
        if key in wanted or (check.status == "SKIPPED" and check.id in may_skip):
            expected += 1
        else:
            unexpected.append(check)
    return Verdict(Counter(check.status for check in checks), expected, unexpected, sorted(wanted - missed))
