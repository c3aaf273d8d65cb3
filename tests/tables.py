"""Tables of inputs that one test goes through, where a row needs no fixture of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest


def each_row(names: str | Sequence[str], table: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on every row of a table, as one case that names every row that fails.

    The arguments are those of `pytest.mark.parametrize`. Each row has a `tmp_path` and a `monkeypatch` of its own and
    an empty `capsys` and `caplog`; it shares every other fixture, so a test whose fixtures keep state is parametrized.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = list(table)
    assert rows, "the table is empty"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(*args: Any, **fixtures: Any) -> None:
            failures: list[BaseException] = []
            for number, row in enumerate(rows):
                values = dict(zip(columns, row if len(columns) > 1 else [row], strict=True))
                try:
                    with ExitStack() as stack:
                        test(*args, **_fresh(fixtures, number, stack), **values)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {row!r:.200}")
                    failures.append(error)
            if failures:
                named = "; ".join(error.__notes__[-1] for error in failures)
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows fail: {named}", failures)

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in columns]
        all_rows.__dict__["__signature__"] = signature.replace(parameters=others)
        return all_rows

    return decorate


def _fresh(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    """Return the fixtures for a row, without what the rows before it left in them."""
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
