"""Compare the rules of docs/requirements.md with the marks of the tests, in both directions.

Every rule has a test, or a row in the page's table of rules that no test here can prove, with the reason. A test that
was skipped in its last run is no proof, and is counted separately. Tests are collected, not run.

Exits with 1 if a rule has neither a test nor a reason, or both, or if a mark names no rule.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tools.pages import table

ROOT: Final = Path(__file__).resolve().parent.parent
_BINDING: Final = frozenset({"MUST", "MUST NOT", "SHALL", "SHALL NOT"})
_RULE: Final = re.compile(r"^([A-Z0-9]+-\d+) \| ")
_REASON: Final = re.compile(r"^\| ((?:[A-Z0-9]+-\d+(?:, )?)+) \| (.+) \|$", re.MULTILINE)
_SECTION: Final = re.compile(r"^## (\d+\. .+)$")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of docs/requirements.md; `section` is the level-2 heading above it."""

    id: str
    level: str
    binds: str
    text: str
    section: str

    @property
    def is_binding(self) -> bool:
        return self.level in _BINDING and self.binds in {"server", "both"}

    def __str__(self) -> str:
        return f"  {self.id:8} {self.level:9} {textwrap.shorten(self.text, 100, placeholder=' ...')}"


def parse_rules(text: str) -> tuple[list[Rule], list[str]]:
    """Return the rules, and a message for each malformed rule."""
    rules: list[Rule] = []
    errors: list[str] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _SECTION.match(line):
            section = heading[1]
        elif _RULE.match(line):
            columns = line.split(" | ", 3)
            tail = columns[3].rsplit(" |", 2) if len(columns) == 4 else []
            if len(tail) != 3 or columns[0] in {rule.id for rule in rules}:
                errors.append(f"line {number}: {columns[0]} stands twice, or has not the six columns of a rule")
                continue
            rules.append(Rule(*columns[:3], tail[0].strip(), section))
    return rules, errors


def parse_reasons(text: str) -> set[str]:
    """Return the IDs in the first column of the table of rules without a test."""
    return {name for row in _REASON.finditer(text) for name in row[1].split(", ")}


class _Collector:
    """Plugin of pytest that collects all tests, and the tests of each rule."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, None]] = {}
        self.all: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            self.all.add(test)
            for mark in item.iter_markers("requirement"):
                for name in mark.args:
                    self.tests.setdefault(name, {})[test] = None


def problems(rules: Sequence[Rule], tests: Mapping[str, Iterable[str]], reasons: Iterable[str]) -> list[str]:
    """Return a message for each rule with neither test nor reason, or with both, and for each unknown ID."""
    known = {rule.id for rule in rules}
    out = [f"{name}: a reason for a rule that does not exist" for name in reasons if name not in known]
    out += [f"{', '.join(tests[name])}: there is no rule {name}" for name in tests if name not in known]
    for rule in rules:
        if rule.id in reasons and rule.id in tests:
            out.append(f"{rule.id}: it has a test, and stands among those that no test proves")
        elif rule.id not in reasons and rule.id not in tests:
            out.append(f"{rule.id}: neither a test nor a reason why there is none")
    return out


def skipped_only(rules: Iterable[Rule], tests: Mapping[str, Iterable[str]], root: Path) -> list[str]:
    """Return lines about the rules whose tests were all skipped in the last run."""
    try:
        kept = json.loads((root / ".pytest_cache" / "v" / "outcomes").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ["No run is known: which tests were skipped shows after `make test`."]
    outcomes: dict[str, set[str]] = {}
    for node, outcome in kept.items():
        outcomes.setdefault(node.partition("[")[0], set()).add(outcome)
    bare: list[str] = []
    for rule in rules:
        seen = {outcome for test in tests.get(rule.id, ()) for outcome in outcomes.get(test, ())}
        if "skipped" in seen and "passed" not in seen:
            bare.append(str(rule))
    if not bare:
        return ["No rule rests on skipped tests alone, as of the last run."]
    return [f"Proved by skipped tests alone in the last run ({len(bare)}):", *bare]


def summary(rules: Iterable[Rule], tests: Mapping[str, Iterable[str]]) -> str:
    counts: dict[str, Counter[str]] = {}
    for rule in rules:
        for section in ("all", rule.section):
            count = counts.setdefault(section, Counter())
            count.update(["rules"] + ["binding"] * rule.is_binding)
            if rule.id in tests:
                count.update(["tested"] + ["proven"] * rule.is_binding)
    total = counts.pop("all", Counter[str]())
    columns = ("rules", "tested", "binding", "proven")
    rows = [(name, *(str(count[each]) for each in columns)) for name, count in [*counts.items(), ("all", total)]]
    return table([("section", "rules", "with test", "MUST for a server", "with test"), *rows], range(1, 5))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the requested report. Return 1 if a rule or a mark is wrong."""
    parser = argparse.ArgumentParser(
        prog="tools.requirements", description="Compare docs/requirements.md with the marks of the tests."
    )
    parser.add_argument("--all", action="store_true", help="each rule with its tests")
    options = parser.parse_args(arguments)
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    rules, errors = parse_rules(text)
    reasons = parse_reasons(text)
    found = _Collector()
    os.chdir(ROOT)
    with redirect_stdout(io.StringIO()) as output:
        code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"], plugins=[found])
    if code:
        errors.append(f"the tests cannot be collected: {output.getvalue()[-2000:]}")
    tests = found.tests
    errors += problems(rules, tests, reasons)
    if options.all:
        for rule in rules:
            print("\n".join([str(rule), *(f"             {test}" for test in tests.get(rule.id, ()))]))
    else:
        bare = [str(rule) for rule in rules if rule.is_binding and rule.id not in tests]
        print(summary(rules, tests), "", sep="\n")
        marked = {test for names in tests.values() for test in names}
        print(f"{len(found.all)} tests, {len(marked)} of them with a rule.\n")
        print(f"MUST for a server, without a test ({len(bare)}):" if bare else "Every MUST for a server has a test.")
        print("\n".join([*bare, "", f"{len(reasons)} rules have no test, each with a reason in docs/requirements.md."]))
        print("\n".join(skipped_only(rules, tests, ROOT)))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
