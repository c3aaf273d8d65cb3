"""Run one test on a table of inputs whose rows need no fixtures of their own."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest


def each_row(names: str | Sequence[str], table: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test on every row of a table, as one case that names every failing row.

    The variable `ROW=3` of the environment selects row 3, as a failure numbers it. The arguments are those of
    `pytest.mark.parametrize`. Each row has a `tmp_path` and a `monkeypatch` of its own and
    an empty `capsys` and `caplog`; rows share other fixtures, so parametrize a test whose fixtures keep state.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = list(table)
    assert rows, "the table is empty"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def calls(fixtures: dict[str, Any], failures: list[BaseException]) -> Iterator[tuple[Any, dict[str, Any]]]:
            for number, row in _chosen(rows):
                values = dict(zip(columns, row if len(columns) > 1 else [row], strict=True))
                with ExitStack() as stack:
                    fresh = _fresh(fixtures, number, stack)
                    yield _collecting(failures, f"row {number}: {row!r:.200}"), {**fresh, **values}
            if failures:
                named = "; ".join(f"{type(error).__name__} in {error.__notes__[-1]}" for error in failures)
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows fail: {named}", failures)

        @functools.wraps(test)
        def all_rows(*args: Any, **fixtures: Any) -> None:
            for collecting, values in calls(fixtures, []):
                with collecting:
                    test(*args, **values)

        @functools.wraps(test)
        async def all_rows_awaited(*args: Any, **fixtures: Any) -> None:
            for collecting, values in calls(fixtures, []):
                with collecting:
                    await test(*args, **values)

        decorated = all_rows_awaited if inspect.iscoroutinefunction(test) else all_rows
        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in columns]
        decorated.__dict__["__signature__"] = signature.replace(parameters=others)
        return decorated

    return decorate


def _chosen(rows: list[Any]) -> list[tuple[int, Any]]:
    """Return the numbered rows, or the one that the environment selects."""
    numbered = [*enumerate(rows)]
    chosen = os.environ.get("ROW")
    if chosen is None:
        return numbered
    if int(chosen) >= len(rows):
        pytest.skip(f"the table has no row {chosen}")
    return [numbered[int(chosen)]]


@contextmanager
def _collecting(failures: list[BaseException], row: str) -> Iterator[None]:
    """Collect a failure, with a note of its row."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        error.add_note(row)
        failures.append(error)


def _fresh(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    """Return the fixtures for a row, reset after the rows before it."""
    fresh = dict(fixtures)
    if "tmp_path" in fresh:
        fresh["tmp_path"] = fixtures["tmp_path"] / str(number)
        fresh["tmp_path"].mkdir()
    if "monkeypatch" in fresh:
        fresh["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
    if "capsys" in fresh:
        fresh["capsys"].readouterr()
    if "caplog" in fresh:
        fresh["caplog"].clear()
    return fresh
