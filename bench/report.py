"""The tables of docs/benchmarks.md from the visits: medians, goals, and skipped peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tools.pages import table

from bench.client import ERAS
from bench.rounds import TRANSPORTS, WALK, Series
from bench.subjects import EXT_SKILLS, OURS, SDK_FLOOR, WARM, Subject

BEGIN: Final = "<!-- made by `make bench-peers`: begin -->"
END: Final = "<!-- made by `make bench-peers`: end -->"
MEASURES: Final = {
    "cold": ("cold start", "ms"),
    "catalogue": ("spawn to full catalogue", "ms"),
    "page": ("page of 50", "ms"),
    "get": ("get", "ms"),
    "read": ("read", "ms"),
    "gets": ("gets a second", "/s"),
    "reads": ("reads a second", "/s"),
    "resident": ("resident", "MB"),
    "notice": ("notice of a change", "ms"),
}
"""Key -> label and unit."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: a bound on a figure of this server, or on its ratio to the figure of another subject.

    Attributes:
        key: the key of the measure.
        beside: the key of the other subject; "" if `most` bounds the figure itself.
        most: the highest ratio or figure; for a rate per second the lowest.
    """

    key: str
    beside: str
    most: float
    transport: str = "stdio"
    size: int = 1000
    subject: str = OURS


GOALS: Final = (
    Goal("cold", SDK_FLOOR, 0.35),
    Goal("catalogue", EXT_SKILLS, 0.7),
    Goal("page", EXT_SKILLS, 1.0),
    Goal("get", EXT_SKILLS, 1.0),
    Goal("read", EXT_SKILLS, 1.0),
    Goal("gets", SDK_FLOOR, 1.0, "HTTP"),
    Goal("reads", SDK_FLOOR, 1.0, "HTTP"),
    Goal("resident", "", 50.0),
    Goal("notice", "", 100.0),
    Goal("catalogue", WALK, 9.0, size=10_000, subject=WARM),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and its figures in one era; `other` is None if the goal is a number."""

    goal: Goal
    era: str
    ours: float
    other: float | None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.other if self.other else None

    @property
    def met(self) -> bool:
        if self.ratio is None:
            return self.ours <= self.goal.most
        return self.ratio >= self.goal.most if MEASURES[self.goal.key][1] == "/s" else self.ratio <= self.goal.most

    @property
    def text(self) -> str:
        """Return the ratio, or the figure with its unit; bold if the goal was missed."""
        unit = MEASURES[self.goal.key][1]
        shown = f"{short(self.ours)} {unit}" if self.ratio is None else f"{self.ratio:.2f}"
        return shown if self.met else f"**{shown}**"


def verdicts(series: Sequence[Series]) -> list[Verdict]:
    """Return each goal in each era in which both sides were measured."""
    by_key = {(each.subject, each.era, each.transport, each.size): each for each in series}
    out: list[Verdict] = []
    for goal in GOALS:
        for era in ERAS:
            sides = [by_key.get((key, era, goal.transport, goal.size)) for key in (goal.subject, goal.beside)]
            ours, other = (each and each.figure(goal.key) for each in sides)
            if ours is not None and (other is not None or not goal.beside):
                out.append(Verdict(goal, era, ours, other))
    return out


def markdown(about: str, subjects: Sequence[Subject], series: Sequence[Series], left_out: Mapping[str, str]) -> str:
    """Return the part of the page between the markers."""
    headings = ("over", "what", "beside", *ERAS, "goal")
    out = [about, "### Goals at 1,000 skills", table([headings, *_goal_rows(verdicts(series))], [3, 4])]
    names = {each.key: f"{each.label} {each.release}" for each in subjects} | {WALK: "floor: stat walk"}
    columns = [f"{label}{', ' + unit if unit != '/s' else ''}" for label, unit in MEASURES.values()]
    for size in sorted({each.size for each in series}):
        for transport in TRANSPORTS:
            for era in ERAS:
                found = [e for e in series if (e.size, e.transport, e.era) == (size, transport, era) and e.visits]
                rows = [(names[each.subject], *(_cell(each, key) for key in MEASURES)) for each in found]
                if rows:
                    out.append(f"### {size:,} skills, {transport}, {era}")
                    out.append(table([("server", *columns), *rows], range(1, len(columns) + 1)))
    lines = [f"- {name}: {reason}." for name, reason in left_out.items()]
    lines += [
        f"- {names[each.subject]} ({each.transport}, {each.era}, {each.size:,} skills): {failure}"
        for each in series
        for failure in each.failure
    ]
    if lines:
        out += ["### Left out", "\n".join(lines)]
    return "\n\n".join(out)


def _goal_rows(found: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each goal, with a column for each era."""
    for goal in dict.fromkeys(each.goal for each in found):
        what, unit = MEASURES[goal.key]
        if goal.subject == WARM:
            what += ", warm"
        if goal.size != 1000:
            what += f", {goal.size:,} skills"
        texts = {each.era: each.text for each in found if each.goal == goal}
        bound = f"{'≥' if unit == '/s' else '≤'} {goal.most:g}"
        if not goal.beside:
            bound += f" {unit}"
        yield goal.transport, what, goal.beside or "-", *(texts.get(era, "-") for era in ERAS), bound


def _cell(series: Series, key: str) -> str:
    figures = [value for each in (key, f"{key} p99") if (value := series.figure(each)) is not None]
    return " / ".join(map(short, figures)) or "-"


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
