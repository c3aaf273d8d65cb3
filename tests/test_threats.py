"""`make threats`: its patches apply, its tests exist, and only a failed test proves a defence."""

from __future__ import annotations

import re
from dataclasses import replace

from tools.threats import Outcome, Threat, misfits, outcome, read_table, verdict
from tools.trial import ROOT

from tables import each_row

TABLE = read_table()
FAST = "tests/web/test_connections.py::test_only_newcomer_or_larger_client_loses_slot"


def test_every_patch_applies() -> None:
    assert misfits(TABLE) == {}


def test_every_named_test_exists() -> None:
    for each in TABLE:
        file, _, name = each.test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), each.test


def test_patch_that_no_longer_applies_gives_the_reason() -> None:
    threat = Threat("x", "web/shares.py", FAST, "a", "b")
    assert threat.misfit("(a)") == ""
    assert threat.misfit("(c)").endswith("web/shares.py has its text 0 times")
    assert threat.misfit("(a, a)").endswith("2 times")
    assert "leaves web/shares.py no Python" in replace(threat, after=")").misfit("(a)")


def test_outcome_of_a_test_is_its_worst_case() -> None:
    reports = [("t[1]", "passed", ""), ("t[2]", "failed", "no"), ("t2", "passed", ""), ("t3", "skipped", "x")]
    assert outcome("t", reports) == Outcome("failed", "no")
    assert outcome("t2", reports) == Outcome("passed")
    assert outcome("t3", reports) == Outcome("skipped", "x")
    assert outcome("t4", reports) == Outcome("absent")


@each_row(("found", "reason"), [
    (Outcome("failed", "AssertionError: 1"), ""), (Outcome("failed", "NameError: x"), "breaks the module"),
    (Outcome("failed", "ExceptionGroup: 2 of 2 rows fail: NameError in row 0: x"), "breaks the module"),
    (Outcome("passed"), "is passed without the defence"), (Outcome("skipped", "x"), "is skipped without the defence"),
    (Outcome("absent"), "is absent without the defence"), (None, "does not end"),
])  # fmt: skip
def test_only_a_failed_test_proves_a_defence(found: Outcome | None, reason: str) -> None:
    assert reason in verdict(found) and bool(reason) == bool(verdict(found))
