"""`make mutants`: the mutations that it generates. Nothing here applies them and runs tests."""

from __future__ import annotations

import ast

from tools.mutants import changes, draw

TEXT = """\
\"\"\"Ä.\"\"\"
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    limit: int = 7


def f(a: int = 2, b: "int | None" = None) -> bool:
    'ä'; print(f"{a + 1}")
    if a < 3 and not b:
        raise ValueError(a)
    for each in range(a):
        continue
    return a == b
"""


def replacements_in(line: int) -> set[str]:
    return {change.new for change in changes("m.py", TEXT.encode()) if change.line == line}


def test_each_kind_of_mutation_is_generated() -> None:
    assert replacements_in(8) == {"(3)", "(1)"}
    assert replacements_in(9) == {"pass"}
    assert replacements_in(10) == {"(a <= 3)", "(4)", "(2)", "(a < 3 or not b)", "(b)", "(not (a < 3 and (not b)))"}
    assert replacements_in(11) == {"pass"} and replacements_in(13) == {"pass"}
    assert replacements_in(14) == {"return None", "(a != b)"}


def test_annotations_are_not_mutated() -> None:
    assert {change.line for change in changes("m.py", TEXT.encode())} == {8, 9, 10, 11, 13, 14}


def test_mutation_changes_one_place() -> None:
    source = TEXT.encode()
    for change in changes("m.py", source):
        text = change.applied_to(source)
        assert ast.parse(text) and text != source
        assert text.startswith(source[: change.start]) and text.endswith(source[change.end :])
        assert source[change.start : change.end].decode() == change.old


def test_same_seed_draws_same_mutations() -> None:
    assert draw("hosts", 5, 1, "") == draw("hosts", 5, 1, "")
    assert len(draw("hosts", 5, 1, "")) == 5 and draw("hosts", 5, 1, "") != draw("hosts", 5, 2, "")
    (one, *_) = draw("hosts", 5, 1, "")
    assert one in draw("hosts", 0, 1, f"{one.path.rpartition('/')[2]}:{one.line}")
