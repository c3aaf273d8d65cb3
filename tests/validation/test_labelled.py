"""Precision and recall of the safety rules, on pieces that are labelled hostile or honest.

A file of `fixtures/labelled` has pieces below lines `@@ LABEL PATH`. The label is the rule that must report the piece,
or `honest`: then no rule may.
"""

from __future__ import annotations

import re
from collections import Counter

from mcp_skills_server.codes import CODES
from mcp_skills_server.validation.rule import TextFile
from mcp_skills_server.validation.text import RULES
from wire import FIXTURES

MIN_RECALL = 0.9
"""By rule; a piece that another rule alone reports is missed."""
MIN_PRECISION = 0.97


def labelled() -> list[tuple[str, str, str]]:
    """Return (label, path, text) of each piece."""
    out: list[tuple[str, str, str]] = []
    for file in sorted((FIXTURES.parent / "labelled").iterdir()):
        for part in re.split(r"(?m)^@@ ", file.read_text())[1:]:
            head, _, text = part.partition("\n")
            label, path = head.split()
            out.append((label, path, text))
    return out


def test_rules_of_safety_keep_precision_and_recall() -> None:
    expected, wrong, right = Counter[str](), Counter[str](), Counter[str]()
    faults: list[str] = []
    for label, path, text in labelled():
        reported = {each.code for each in RULES.check(TextFile(text, path)) if each.severity != "note"}
        expected[label] += 1
        right.update(reported & {label})
        if label == "honest":
            wrong.update(reported)
        if label not in reported | {"honest"} or (label == "honest" and reported):
            faults.append(f"{label} {sorted(reported)}: {path}: {text!r}")
    print("\n".join(faults))
    honest = expected.pop("honest")
    assert expected.total() >= 150 and honest >= 150 and expected.keys() <= CODES.keys()
    recall = {label: right[label] / count for label, count in expected.items()}
    precision = {label: right[label] / max(1, right[label] + wrong[label]) for label in expected}
    print(f"recall {recall}\nprecision {precision}")
    assert {label: share for label, share in recall.items() if share < MIN_RECALL} == {}
    assert {label: share for label, share in precision.items() if share < MIN_PRECISION} == {}
