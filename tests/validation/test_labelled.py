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
"""By rule; of a piece that is reported by another rule alone, the rule has missed it."""
MIN_PRECISION = 0.97


def labelled() -> list[tuple[str, str, str]]:
    """Return (label, path, text) of each piece."""
    out: list[tuple[str, str, str]] = []
    for file in sorted((FIXTURES / "labelled").iterdir()):
        for part in re.split(r"(?m)^@@ ", file.read_text())[1:]:
            head, _, text = part.partition("\n")
            label, path = head.split()
            out.append((label, path, text))
    return out


def test_rules_of_safety_keep_precision_and_recall() -> None:
    expected, found, right = Counter[str](), Counter[str](), Counter[str]()
    faults: list[str] = []
    pieces = labelled()
    for label, path, text in pieces:
        reported = {each.code for each in RULES.check(TextFile(text, path)) if each.severity != "note"}
        expected[label] += 1
        found.update(reported)
        right.update(reported & {label})
        if reported != {label} - {"honest"}:
            faults.append(f"{label} {sorted(reported)}: {path}: {text!r}")
    hostile = sum(count for label, count in expected.items() if label != "honest")
    assert hostile >= 150 and expected["honest"] >= 150
    print("\n".join(faults))
    for label in expected.keys() - {"honest"}:
        recall = right[label] / expected[label]
        precision = right[label] / max(1, found[label])
        print(f"{label}: recall {recall:.2f} of {expected[label]}, precision {precision:.2f}")
        assert label in CODES
    assert all(right[label] >= MIN_RECALL * expected[label] for label in expected if label != "honest")
    assert all(right[label] >= MIN_PRECISION * found[label] for label in expected if label != "honest")
