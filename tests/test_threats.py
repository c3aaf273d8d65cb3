"""`make threats`: its patches apply, its tests exist, and only a failed test proves a defence."""

from __future__ import annotations

import re

from tools.threats import misfits, read_table
from tools.trial import ROOT

TABLE = read_table()


def test_every_patch_applies() -> None:
    assert misfits(TABLE) == {}


def test_every_named_test_exists() -> None:
    for each in TABLE:
        file, _, name = each.test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), each.test


def test_owasp_risks_name_defences_of_the_table() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"(?m)^\| (AST\d\d) [^|]+\| [^|]+\| ([^|]+)\| [^|]+\|$", page)
    assert [risk for risk, _ in rows] == [f"AST{number:02}" for number in range(1, 11)]
    names = {each.name for each in TABLE}
    for risk, threats in rows:
        named = re.findall(r"`([^`]+)`", threats)
        assert named and not {*named} - names, risk
