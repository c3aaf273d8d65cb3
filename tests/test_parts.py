"""Parts of the suite: together they are all of it, and no test is in two."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from parts import pytest_collection_modifyitems

TESTS = [Mock(nodeid=f"tests/test_{letter}.py::test_{number}") for letter in "abc" for number in range(100)]


def chosen(part: str | None) -> tuple[list[Any], list[Any]]:
    """Return the tests that are run and those that are deselected."""
    config, items = Mock(), [*TESTS]
    config.getoption.return_value = part
    pytest_collection_modifyitems(config, items)
    calls = config.hook.pytest_deselected.call_args_list
    return items, [item for call in calls for item in call.kwargs["items"]]


def test_parts_are_disjoint_and_complete() -> None:
    runs = [chosen(f"{number}/3") for number in (1, 2, 3)]
    assert sorted(item.nodeid for items, _ in runs for item in items) == sorted(item.nodeid for item in TESTS)
    for items, deselected in runs:
        assert 80 < len(items) < 120
        assert {*items} | {*deselected} == {*TESTS}


def test_every_test_is_run_without_the_option() -> None:
    assert chosen(None) == (TESTS, [])


def test_part_of_a_test_is_the_same_in_every_process() -> None:
    assert chosen("1/3")[0][0].nodeid == "tests/test_a.py::test_5"
