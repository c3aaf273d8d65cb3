"""`make threats`: its table fits the source, docs/security.md says the same, and it finds what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tools.threats import BOUNDARIES, Outcome, Runner, Threat, judge, main, misfits, outcome, read_table, verdict
from tools.trial import ROOT

TABLE = read_table()
PAGE = (ROOT / "docs" / "security.md").read_text()
TITLES = {
    "Clients": "client",
    "The network": "network",
    "Authors of skills": "author",
    "Models": "model",
    "Sources": "source",
    "Scripts": "script",
    "Slips of the operator, and other users of the machine": "operator",
    "Redis": "redis",
}
ROW = re.compile(r"\| `([a-z0-9-]+)` \| [^|]+ \| [^|]+ \| `([^`]+)` \| `([^`]+)` \|")
FAST = "tests/web/test_places.py::test_nobody_loses_a_place_to_who_holds_as_many"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """(boundary, name, module, test) of each row of the page."""
    for section in PAGE.partition("\n## Threats\n")[2].partition("\n## ")[0].split("\n### ")[1:]:
        title, _, text = section.partition("\n")
        found = ROW.findall(text)
        assert len(found) == text.count("\n| `"), f"{title}: a row is written in another way"
        for name, module, test in found:
            yield TITLES[title], name, module, f"tests/{test}"


def test_the_page_and_the_table_have_the_same_threats() -> None:
    assert sorted(rows()) == sorted((each.boundary, each.name, each.module, each.test) for each in TABLE)
    assert {each.boundary for each in TABLE} == {*BOUNDARIES} == {*TITLES.values()}


def test_each_patch_can_be_made() -> None:
    assert misfits(TABLE) == {}


def test_each_test_is_there() -> None:
    for each in TABLE:
        file, _, name = each.test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), each.test


def test_a_patch_that_fits_no_more_says_why() -> None:
    threat = Threat("x", "client", "web/shares.py", "a", "b", FAST)
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


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Outcome("failed", "AssertionError: 1"), ""),
        (Outcome("failed", "NameError: x"), "breaks the module"),
        (Outcome("passed"), "is passed without the defence"),
        (Outcome("skipped", "x"), "is skipped without the defence"),
        (Outcome("absent"), "is absent without the defence"),
        (None, "does not end"),
    ],
)
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
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [each.name for each in TABLE]


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--only", "nothing"])
    assert caught.value.code == 2 and "no such threat: nothing" in capsys.readouterr().err
