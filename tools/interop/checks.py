"""Checks: what the referees looked at, each by itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
        """Whether it passed, or only says what was seen."""
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
