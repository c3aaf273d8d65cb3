"""From visits to figures: medians over rounds, and how they grow with the number of skills."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.peers.rounds import HTTP, STDIO, Series
from bench.peers.subjects import BARE, EXT_SKILLS, OURS, SDK_FLOOR, WARM
from bench.peers.visit import Times, Visit


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of figure.

    Attributes:
        key: its name.
        label: what tables and plots call it.
        unit: of the figure.
        of: takes it out of a visit, None where there is none.
    """

    key: str
    label: str
    unit: str
    of: Callable[[Visit], float | None]


def _on_one(visit: Visit, key: str) -> float | None:
    times: Times | None = getattr(visit.on_one, key, None)
    return times and times.p50


MEASURES: Final = (
    Measure("cold", "cold start", "ms", lambda visit: visit.cold),
    Measure("catalogue", "spawn to full catalogue", "ms", lambda visit: visit.catalogue),
    Measure("tools", "spawn to first tools/list", "ms", lambda visit: visit.tools),
    Measure("page", "page of 50", "ms", lambda visit: visit.page and visit.page.p50),
    Measure("page p99", "page of 50, p99", "ms", lambda visit: visit.page and visit.page.p99),
    Measure("get", "get", "ms", lambda visit: visit.get and visit.get.p50),
    Measure("get p99", "get, p99", "ms", lambda visit: visit.get and visit.get.p99),
    Measure("read", "read", "ms", lambda visit: visit.read.p50),
    Measure("read p99", "read, p99", "ms", lambda visit: visit.read.p99),
    Measure("get each", "get, each skill once", "ms", lambda visit: visit.get_each and visit.get_each.p50),
    Measure("get each p99", "get, each skill once, p99", "ms", lambda visit: visit.get_each and visit.get_each.p99),
    Measure("read each", "read, each skill once", "ms", lambda visit: visit.read_each and visit.read_each.p50),
    Measure("read each p99", "read, each skill once, p99", "ms", lambda visit: visit.read_each and visit.read_each.p99),
    Measure("get on one", "get, one processor", "ms", lambda visit: _on_one(visit, "get")),
    Measure("read on one", "read, one processor", "ms", lambda visit: _on_one(visit, "read")),
    Measure("get each on one", "get, each skill once, one processor", "ms", lambda visit: _on_one(visit, "get_each")),
    Measure(
        "read each on one", "read, each skill once, one processor", "ms", lambda visit: _on_one(visit, "read_each")
    ),
    Measure("gets", "gets a second", "/s", lambda visit: visit.gets),
    Measure("reads", "reads a second", "/s", lambda visit: visit.reads),
    Measure("resident", "resident", "MB", lambda visit: visit.resident),
)
BY_KEY: Final = {each.key: each for each in MEASURES}


def figure(series: Series, key: str) -> float | None:
    """The median over the rounds; None where this server has no such figure."""
    found = [value for visit in series.visits if (value := BY_KEY[key].of(visit)) is not None]
    return median(found) if found else None


@dataclass(frozen=True, slots=True)
class Slope:
    """How a figure grows with the number of skills.

    Attributes:
        smallest, largest: sizes between which it was measured.
        exponent: 0 means the same at any size, 1 in proportion; by least squares through the logarithms.
        thousand: what another 1,000 skills add, between the two largest sizes.
    """

    smallest: int
    largest: int
    exponent: float
    thousand: float


def slope(points: Sequence[tuple[int, float]]) -> Slope | None:
    """The slope through (size, figure), sizes rising; None if there are fewer than two or a figure is not above 0."""
    if len(points) < 2 or any(value <= 0 for _, value in points):
        return None
    sizes, values = ([math.log(each) for each in column] for column in zip(*points, strict=True))
    centre, level = sum(sizes) / len(sizes), sum(values) / len(values)
    spread = sum((size - centre) ** 2 for size in sizes)
    exponent = sum((x - centre) * (y - level) for x, y in zip(sizes, values, strict=True)) / spread
    (before, low), (last, high) = points[-2:]
    return Slope(points[0][0], last, exponent, (high - low) / (last - before) * 1000)


def growth(series: Iterable[Series], subject: str, key: str) -> list[tuple[int, float]]:
    """(size, figure) of one server, sizes rising."""
    found = [
        (each.size, value) for each in series if each.subject == subject and (value := figure(each, key)) is not None
    ]
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of this server that should be at most so many times that of another, or at most a number.

    Attributes:
        key: the measure.
        beside: the other server, or nothing where `most` is the figure itself.
        most: the ratio, or the figure. For what is counted a second the ratio is the least.
        transport: over which.
        size: how many skills, or 0 for the size of the tables.
        subject: which of this server's rows.
    """

    key: str
    beside: str
    most: float
    transport: str = STDIO
    size: int = 0
    subject: str = OURS


GOALS: Final = (
    Goal("cold", SDK_FLOOR, 0.3),
    Goal("catalogue", EXT_SKILLS, 0.5),
    *(Goal(key, EXT_SKILLS, 1.0) for key in ("page", "get", "get each", "read", "read each", "gets", "reads")),
    *(Goal(f"{key} on one", BARE, 2.0) for key in ("get", "get each", "read", "read each")),
    Goal("tools", "", 1000.0, size=10_000),
    Goal("tools", "", 300.0, size=10_000, subject=WARM),
    Goal("resident", "", 40.0),
    Goal("resident", "", 110.0, size=10_000),
    *(Goal(key, SDK_FLOOR, 1.0, HTTP) for key in ("page", "get", "read", "gets", "reads")),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal in one era, beside what was measured."""

    goal: Goal
    era: str
    size: int
    ours: float
    other: float | None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the other's."""
        return self.ours / self.other if self.other else None

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        if self.ratio is None:
            return self.ours <= self.goal.most
        return self.ratio >= self.goal.most if BY_KEY[self.goal.key].unit == "/s" else self.ratio <= self.goal.most


def verdicts(series: Sequence[Series], size: int) -> list[Verdict]:
    """Each goal in each era in which both sides were measured."""
    out: list[Verdict] = []
    for goal in GOALS:
        wanted = goal.size or size
        for mine in series:
            if (mine.subject, mine.transport, mine.size) != (goal.subject, goal.transport, wanted):
                continue
            ours = figure(mine, goal.key)
            others = [
                figure(each, goal.key)
                for each in series
                if (each.subject, each.era, each.transport, each.size)
                == (goal.beside, mine.era, goal.transport, wanted)
            ]
            if ours is not None and (not goal.beside or (others and others[0] is not None)):
                out.append(Verdict(goal, mine.era, wanted, ours, others[0] if others else None))
    return out
