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
    ("arguments", "code"), [(["x"], 2), (["fixtures/skills", "csv-profiling"], 0), (["fixtures/skills", "gone"], 2)]
)
def test_show_wants_a_root_and_a_name(arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(look.show, arguments)
    assert (2 if isinstance(result.exception, UsageError) else result.exit_code) == code
