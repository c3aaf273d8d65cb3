"""The results as a table in docs/interop.md, between two markers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Final

BEGIN: Final = "<!-- made by `make hosts`: begin -->"
END: Final = "<!-- made by `make hosts`: end -->"


def markdown(columns: Mapping[str, Mapping[str, str]], day: datetime.date, network: str) -> str:
    """A table with one column for each host, in the order in which rows were first seen."""
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    lines = [
        f"Seen on {day.isoformat()}, with {network}.",
        "",
        f"| | {' | '.join(map(_cell, columns))} |",
        f"|{'---|' * (len(columns) + 1)}",
    ]
    lines += [
        f"| {_cell(row)} | {' | '.join(_cell(column.get(row, '')) for column in columns.values())} |" for row in rows
    ]
    return "\n".join(lines)


def between_markers(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with this table in the place of the old one, which stands between two comments.

    Raises:
        ValueError: the page has not each marker once, in their order.
    """
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError("the page needs the two markers, each once, in their order")
    head, rest = text.split(begin)
    return f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"


def write(page: Path, table: str) -> None:
    """Put the table into the page."""
    page.write_text(between_markers(page.read_text(encoding="utf-8"), table), encoding="utf-8")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
