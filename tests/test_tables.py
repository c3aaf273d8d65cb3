"""`each_row`: a table in one test catches the same failures as a case for each row."""

from __future__ import annotations

import os
from pathlib import Path

import anyio.lowlevel
import pytest

from tables import each_row


def test_exactly_the_failing_rows_are_named() -> None:
    @each_row(("number", "double"), [(1, 2), (2, 5), (3, 6), (4, 9)])
    def doubles(number: int, double: int) -> None:
        assert 2 * number == double

    with pytest.raises(BaseExceptionGroup) as caught:
        doubles()
    assert str(caught.value).startswith(
        "2 of 4 rows fail: AssertionError in row 1: (2, 5); AssertionError in row 3: (4, 9)"
    )
    assert [str(each).partition("\n")[0] for each in caught.value.exceptions] == [
        "assert (2 * 2) == 5",
        "assert (2 * 4) == 9",
    ]


def test_variable_selects_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @each_row("letter", ["a", "b", "c"])
    def collect(letter: str) -> None:
        seen.append(letter)

    monkeypatch.setenv("ROW", "1")
    collect()
    assert seen == ["b"]
    monkeypatch.setenv("ROW", "3")
    with pytest.raises(pytest.skip.Exception, match="no row 3"):
        collect()


def test_rows_do_not_share_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @each_row("name", ["SKILLS_ROW_A", "SKILLS_ROW_B"])
    def leaves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not [*tmp_path.iterdir(), *(each for each in os.environ if each.startswith("SKILLS_ROW"))]
        (tmp_path / "file").touch()
        monkeypatch.setenv(name, "1")

    leaves(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert "SKILLS_ROW_B" not in os.environ


@pytest.mark.anyio
async def test_async_rows_run_in_order() -> None:
    seen: list[int] = []

    @each_row("number", [1, 2, 3])
    async def odd(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(number)
        assert number % 2

    with pytest.raises(BaseExceptionGroup, match="1 of 3 rows fail: AssertionError in row 1: 2"):
        await odd()
    assert seen == [1, 2, 3]
