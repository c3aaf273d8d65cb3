"""`make threats`: its patches fit the source, its tests are there, and it finds what is wrong."""

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


def test_each_patch_can_be_made() -> None:
    assert misfits(TABLE) == {}


def test_each_test_is_there() -> None:
    for each in TABLE:
        file, _, name = each.test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), each.test


def test_a_patch_that_fits_no_more_says_why() -> None:
    threat = Threat("x", "web/shares.py", FAST, "a", "b")
    assert threat.misfit("(a)") == ""
    assert threat.misfit("(c)").endswith("web/shares.py has its text 0 times")
    assert threat.misfit("(a, a)").endswith("2 times")
    assert "leaves web/shares.py no Python" in replace(threat, after=")").misfit("(a)")


def test_a_test_is_as_bad_as_its_worst_case() -> None:
    reports = [("t[1]", "passed", ""), ("t[2]", "failed", "no"), ("t2", "passed", ""), ("t3", "skipped", "x")]
    assert outcome("t", reports) == Outcome("failed", "no")
    assert outcome("t2", reports) == Outcome("passed")
    assert outcome("t3", reports) == Outcome("skipped", "x")
    assert outcome("t4", reports) == Outcome("absent")


@each_row(("found", "said"), [
    (Outcome("failed", "AssertionError: 1"), ""), (Outcome("failed", "NameError: x"), "breaks the module"),
    (Outcome("failed", "ExceptionGroup: 2 of 2 rows fail: NameError in row 0: x"), "breaks the module"),
    (Outcome("passed"), "is passed without the defence"), (Outcome("skipped", "x"), "is skipped without the defence"),
    (Outcome("absent"), "is absent without the defence"), (None, "does not end"),
])  # fmt: skip
def test_only_a_failure_of_the_test_shows_a_defence(found: Outcome | None, said: str) -> None:
    assert said in verdict(found) and bool(said) == bool(verdict(found))


def test_what_is_wrong_is_found_in_a_copy_and_nothing_else(tmp_path: Path) -> None:
    shown = next(each for each in TABLE if each.test == FAST)
    kept = replace(shown, name="kept", after=shown.before + " ")
    broken = replace(shown, name="broken", after="count_")
    unknown = replace(shown, name="unknown", test=FAST + "_not")
    before = (ROOT / shown.path).read_bytes()
    runner = Runner(tmp_path)
    try:
        # pytest runs nothing at all where one of its arguments is unknown.
        wrong, skipped = judge([shown, kept, broken], [runner])
        wrong |= judge([unknown], [runner])[0]
        assert (runner.bench.tree / shown.path).read_bytes() == before
    finally:
        runner.close()
    assert wrong.keys() == {"kept", "broken", "unknown"} and not skipped
    assert wrong["kept"] == "its test is passed without the defence"
    assert "NameError" in wrong["broken"] and "absent" in wrong["unknown"]
    assert (ROOT / shown.path).read_bytes() == before


def test_the_threats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [each.name for each in TABLE]


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--only", "nothing"])
    assert caught.value.code == 2 and "no such threat: nothing" in capsys.readouterr().err
