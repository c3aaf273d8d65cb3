"""`make threats`: its patches apply, its tests exist, and it reports defences that no test proves."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tools.threats import Outcome, Threat, judge, main, misfits, outcome, read_table, verdict
from tools.trial import ROOT, Runner

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


def test_run_reports_unproved_defences_and_leaves_the_tree_alone(tmp_path: Path) -> None:
    proved = next(each for each in TABLE if each.test == FAST)
    kept = replace(proved, name="kept", after=proved.before + " ")
    broken = replace(proved, name="broken", after="count_")
    unknown = replace(proved, name="unknown", test=FAST + "_not")
    before = (ROOT / proved.path).read_bytes()
    runner = Runner(tmp_path)
    try:
        # pytest runs no test if one of its arguments is unknown.
        wrong, skipped = judge([proved, kept, broken], [runner])
        wrong |= judge([unknown], [runner])[0]
        assert (runner.bench.tree / proved.path).read_bytes() == before
    finally:
        runner.close()
    assert wrong.keys() == {"kept", "broken", "unknown"} and not skipped
    assert wrong["kept"] == "its test is passed without the defence"
    assert "NameError" in wrong["broken"] and "absent" in wrong["unknown"]
    assert (ROOT / proved.path).read_bytes() == before


def test_threats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [each.name for each in TABLE]


def test_unknown_threat_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--only", "nothing"])
    assert caught.value.code == 2 and "no such threat: nothing" in capsys.readouterr().err
