"""What is told of problems, with plain values; the commands as a person runs them are in `test_cli.py`."""

from __future__ import annotations

from itertools import permutations

import pytest
from click.testing import CliRunner

from mcp_skills_server.commands import look
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Problem
from wire import ROOT


def found(path: str, line: int | None, code: str, message: str = "it is wrong") -> Problem:
    return Problem(code, "warning", message, "change it", line, path)


def test_problems_come_by_place_and_alike_each_time() -> None:
    ordered = [
        found("a", None, "z"),
        found("a", 1, "b"),
        found("a", 1, "c", "first"),
        found("a", 1, "c", "second"),
        found("a", 2, "a"),
        found("b", None, "a"),
    ]
    for each in permutations(ordered):
        assert look._in_order(each) == ordered


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fixtures/skills"], "show takes one or more roots and then the name of a skill"),
        (["fixtures/skills", "gone"], "'list' shows what there is"),
        (["fixtures/skills", "csv-profiling"], None),
    ],
)
def test_show_wants_a_root_and_a_name(arguments: list[str], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    error = CliRunner().invoke(look.show, arguments).exception
    assert error is None if said is None else isinstance(error, UsageError) and said in str(error)
