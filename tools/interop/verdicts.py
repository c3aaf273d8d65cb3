"""Checks of the referees, and their comparison with the expected failures. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a referee."""

    scenario: str
    id: str
    status: str
    message: str = ""

    @property
    def good(self) -> bool:
        return self.status in {"SUCCESS", "INFO"}


def parse_checks(scenario: str, raw: object) -> list[Check]:
    """Parse the checks of a `checks.json`, or of a client of ours, which writes the same format.

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
    """Check that a client saw every skill, file and so on; the first word of a check's ID is the kind."""
    kinds = Counter(check.id.split(" ", 1)[0] for check in checks)
    seen, expected = (", ".join(f"{count[kind]} x {kind}" for kind in wanted) for count in (kinds, wanted))
    if seen == expected:
        return Check(scenario, "all there", "SUCCESS")
    return Check(scenario, "all there", "FAILURE", f"{seen}; there is {expected}")


Baseline = Mapping[tuple[str, str, str], str]
"""(suite, scenario, check) -> the reason why it is expected to fail."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evaluation of the checks of a run.

    Attributes:
        counts: checks by status.
        expected: the number of expected failures.
        unexpected: the unexpected failures.
        stale: (scenario, check) that is expected to fail, but passed or was not run with its scenario.
    """

    counts: Counter[str]
    expected: int
    unexpected: list[Check]
    stale: list[tuple[str, str]]


def read_baseline(raw: object) -> Baseline:
    """Parse the YAML of the baseline.

    Raises:
        ValueError: a reason is missing or shorter than five words, or a check is listed twice.
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
    """Compare checks with the baseline. Warnings and skips need an expectation like failures."""
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
