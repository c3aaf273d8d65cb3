"""What rules and marks come to beside each other, in lines. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tools.requirements.rules import Rule


def unknown_ids(rules: Iterable[Rule], tests: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each test that names a rule which does not exist."""
    known = {rule.id for rule in rules}
    return [f"{test}: there is no rule {name}" for test, ids in tests.items() for name in ids if name not in known]


def unproved(rules: Sequence[Rule], proofs: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> list[str]:
    """One line for each rule with neither a test nor a reason, with both, and for each reason for no rule."""
    known = {rule.id for rule in rules}
    lines = [f"{name}: a reason for a rule that does not exist" for name in reasons if name not in known]
    for rule in rules:
        if rule.id in reasons and proofs[rule.id]:
            lines.append(f"{rule.id}: it has a test, and stands among those that no test proves")
        elif rule.id not in reasons and not proofs[rule.id]:
            lines.append(f"{rule.id}: neither a test nor a reason why there is none")
    return lines


def skipped_only(rules: Iterable[Rule], proofs: Mapping[str, Sequence[str]], outcomes: Mapping[str, str]) -> list[str]:
    """One line for each rule none of whose tests passed when it last ran, though one of them was skipped."""
    lines: list[str] = []
    for rule in rules:
        seen = {outcome for test in proofs[rule.id] for outcome in _outcomes(test, outcomes)}
        if "skipped" in seen and "passed" not in seen:
            lines.append(f"  {rule.id:8} {rule.level:9} {_cut(rule.text, 100)}")
    return lines


def _outcomes(test: str, outcomes: Mapping[str, str]) -> Iterator[str]:
    """How a test ended, in each of its parametrisations."""
    return (outcome for node, outcome in outcomes.items() if node.partition("[")[0] == test)


def tests_by_rule(rules: Iterable[Rule], tests: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The tests of each rule, in the order of the rules."""
    out: dict[str, list[str]] = {rule.id: [] for rule in rules}
    for test, ids in tests.items():
        for name in ids:
            if name in out:
                out[name].append(test)
    return out


def summary(rules: Sequence[Rule], proofs: Mapping[str, Sequence[str]]) -> list[str]:
    """The table of sections."""
    counts: dict[str, Counter[str]] = {}
    for rule in rules:
        tested = bool(proofs[rule.id])
        for section in (rule.section, "all"):
            count = counts.setdefault(section, Counter())
            count["rules"] += 1
            count["tested"] += tested
            count["binding"] += rule.binding
            count["proven"] += rule.binding and tested
    rows = [(section, count) for section, count in counts.items() if section != "all"]
    rows.append(("all", counts.get("all", Counter())))
    width = max(len(_cut(section, 44)) for section, _ in rows)
    lines = [f"{'section':{width}}  rules  with test  MUST for a server  with test"]
    for section, count in rows:
        numbers = f"{count['rules']:5}  {count['tested']:9}  {count['binding']:17}  {count['proven']:9}"
        lines.append(f"{_cut(section, 44):{width}}  {numbers}")
    return lines


def missing(rules: Iterable[Rule], proofs: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each MUST, MUST NOT, SHALL or SHALL NOT for a server that no test proves."""
    bare = [rule for rule in rules if rule.binding and not proofs[rule.id]]
    return [f"  {rule.id:8} {rule.level:9} {_cut(rule.text, 100)}" for rule in bare]


def every_rule(rules: Iterable[Rule], proofs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each rule with its tests."""
    lines: list[str] = []
    section = ""
    for rule in rules:
        if rule.section != section:
            section = rule.section
            lines += ["", section] if lines else [section]
        lines.append(f"  {rule.id:8} {rule.level:10} {rule.binds:6}  {rule.text}")
        lines += [f"             {test}" for test in proofs[rule.id]]
    return lines


def every_test(tests: Mapping[str, Sequence[str]]) -> list[str]:
    """Each test with its rules."""
    return [f"{test}  {' '.join(ids) or '-'}" for test, ids in tests.items()]


def _cut(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")
