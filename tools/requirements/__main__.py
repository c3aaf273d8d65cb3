"""Compare the rules of docs/requirements.md with the marks of the tests, both ways.

Every rule has a test or stands in the page's table of those that none can prove here, with the reason. A test that was
skipped when it last ran is no proof, and is counted apart.

Reads source text only: no test is imported or run, so a mark must hold plain strings. A mark counts for a test when
it stands in the test function, on its class, in a `pytestmark`, or behind a name of the same module that one of
these uses (a list of `pytest.param`, a mark with a name of its own).

Ends with 1 if a rule has neither a test nor a reason, or both, or if a mark is wrong: an unknown ID, no plain string,
or on nothing that is a test.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.requirements.marks import parse_tests
from tools.requirements.report import (
    every_rule,
    every_test,
    missing,
    skipped_only,
    summary,
    tests_by_rule,
    unknown_ids,
    unproved,
)
from tools.requirements.rules import parse_reasons, parse_rules

ROOT = Path(__file__).resolve().parent.parent.parent


def _read_sources(root: Path) -> dict[str, str]:
    """The text of each module below tests/, by its path from the root of the project."""
    modules = sorted((root / "tests").rglob("*.py"))
    return {module.relative_to(root).as_posix(): module.read_text(encoding="utf-8") for module in modules}


def _read_outcomes(root: Path) -> dict[str, str]:
    """How each test ended when it last ran, by its node ID; empty where none has run (see tests/outcomes.py)."""
    try:
        return dict(json.loads((root / ".pytest_cache" / "v" / "outcomes").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _about_skips(rules: Sequence[str], *, known: bool) -> list[str]:
    if not known:
        return ["No run is known: which tests were skipped shows after `make test`."]
    if not rules:
        return ["No rule rests on skipped tests alone, as of the last run."]
    return [f"Proved by skipped tests alone in the last run ({len(rules)}):", *rules]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print what was asked for. Returns 1 if a rule or a mark is wrong, 2 if the rules cannot be read."""
    parser = argparse.ArgumentParser(
        prog="tools.requirements", description="Compare docs/requirements.md with the marks of the tests."
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--all", action="store_true", help="each rule with its tests")
    choice.add_argument("--tests", action="store_true", help="each test with its rules")
    choice.add_argument("--check", action="store_true", help="nothing but errors")
    options = parser.parse_args(arguments)
    page = root / "docs" / "requirements.md"
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        print(f"cannot read {page}: {error.strerror}", file=sys.stderr)
        return 2
    rules, errors = parse_rules(text)
    reasons = parse_reasons(text)
    marks = parse_tests(_read_sources(root))
    errors = [f"docs/requirements.md, {error}" for error in errors] + marks.errors + unknown_ids(rules, marks.tests)
    proofs = tests_by_rule(rules, marks.tests)
    errors += unproved(rules, proofs, reasons)
    outcomes = _read_outcomes(root)
    lines: list[str] = []
    if options.all:
        lines = every_rule(rules, proofs)
    elif options.tests:
        lines = every_test(marks.tests)
    elif not options.check:
        bare = missing(rules, proofs)
        silent = sum(not ids for ids in marks.tests.values())
        lines = [
            *summary(rules, proofs),
            "",
            f"{len(marks.tests)} tests, {len(marks.tests) - silent} of them with a rule.",
            "",
            "Every MUST for a server has a test." if not bare else f"MUST for a server, without a test ({len(bare)}):",
            *bare,
            "",
            f"{len(reasons)} rules have no test, each with a reason in docs/requirements.md.",
            *_about_skips(skipped_only(rules, proofs, outcomes), known=bool(outcomes)),
        ]
    if lines:
        print("\n".join(lines))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that "| head" ends it quietly
    sys.exit(main())
