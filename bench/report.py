"""What was measured, and how it is printed."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

HEADINGS: Final = ("what", "size", "n", "ours", "floor", "ratio", "goal", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its floor.

    Attributes:
        what: what was measured.
        size: how many skills.
        n: runs or requests behind the figure, on each side.
        ours: our figure.
        floor: the floor's, or None where there is none.
        unit: of both.
        most_ratio: the goal as a multiple of the floor.
        most: the goal as a figure, exclusive.
    """

    what: str
    size: int
    n: int
    ours: float
    floor: float | None
    unit: str
    most_ratio: float | None = None
    most: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the floor."""
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, None where there is none."""
        if self.most_ratio is not None and self.ratio is not None:
            return self.ratio <= self.most_ratio
        return None if self.most is None else self.ours < self.most

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        goal = "-"
        if self.most_ratio is not None:
            goal = f"<= {self.most_ratio:g} x"
        elif self.most is not None:
            goal = f"< {self.most:g} {self.unit}"
        return (
            self.what,
            f"{self.size:,}",
            str(self.n),
            f"{_figure(self.ours)} {self.unit}",
            "-" if self.floor is None else f"{_figure(self.floor)} {self.unit}",
            "-" if self.ratio is None else f"{self.ratio:.2f} x",
            goal,
            {True: "met", False: "missed", None: ""}[self.met],
        )

    def as_json(self) -> dict[str, Any]:
        """The row for a program to read."""
        return {
            "what": self.what,
            "size": self.size,
            "n": self.n,
            "ours": self.ours,
            "floor": self.floor,
            "unit": self.unit,
            "ratio": self.ratio,
            "goal_ratio": self.most_ratio,
            "goal": self.most,
            "met": self.met,
        }


class Run:
    """One run of a bench: when it began, and how busy the machine was then."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._load = os.getloadavg()[0]

    def tell(self, rows: Sequence[Row], remark: str = "medians", into: Path | None = None) -> None:
        """Print the machine, the remark and the table; write the figures to a file if there is one."""
        machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {self._load:.1f} at the start"
        print(f"{machine}, {perf_counter() - self._began:.0f} s in all; {remark}\n")
        print(table([HEADINGS, *(row.cells() for row in rows)], right=range(1, 6)))
        if into is not None:
            about = {"python": platform.python_version(), "cores": os.cpu_count(), "load": self._load}
            into.write_text(json.dumps({**about, "rows": [row.as_json() for row in rows]}, indent=2) + "\n")


def table(lines: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """Headings and lines as a table that is also Markdown; the columns `right` have their figures at the right."""
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(lines[0]))]
    ruler = [f"{'-' * (width - 1)}{':' if column in right else '-'}" for column, width in enumerate(widths)]
    return "\n".join(_line(line, widths, right) for line in (lines[0], ruler, *lines[1:]))


def _line(cells: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    padded = [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 1 else f"{value:.2f}"
