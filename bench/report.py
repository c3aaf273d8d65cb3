"""The tables of docs/benchmarks.md from the visits: medians, goals, and skipped peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tools.pages import table

from bench.client import ERAS
from bench.rounds import TRANSPORTS, WALK, Series
from bench.subjects import EXT_SKILLS, OURS, SDK_FLOOR, TYPESCRIPT_SDK, WARM, Subject

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
    "gets wrk": ("gets a second by wrk", "/s"),
    "reads wrk": ("reads a second by wrk", "/s"),
    "get processor": ("processor of a get", "ms"),
    "read processor": ("processor of a read", "ms"),
    "resident": ("resident", "MB"),
    "notice": ("notice of a change", "ms"),
}
"""Key -> label and unit, of all servers."""
COSTS: Final = {
    "load": ("processor of skills_load", "ms"),
    "search": ("processor of skills_search", "ms"),
    "session 50": ("the 50th session", "ms"),
    "session 2000": ("the 2,000th session", "ms"),
    "stream": ("memory of a stream", "kB"),
    "fairness": ("p99 / p50 of a get on 64 connections", ""),
    "modules": ("modules that a get passes", ""),
    "layers": ("ASGI layers that a get passes", ""),
}
"""Key -> label and unit, of this server over HTTP."""
LABELS: Final = MEASURES | COSTS


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
    Goal("get", EXT_SKILLS, 1.2),
    Goal("read", EXT_SKILLS, 1.2),
    Goal("resident", "", 50.0),
    Goal("notice", "", 100.0),
    Goal("gets", TYPESCRIPT_SDK, 1.2, "HTTP"),
    Goal("gets wrk", TYPESCRIPT_SDK, 1.2, "HTTP"),
    Goal("reads", TYPESCRIPT_SDK, 1.5, "HTTP"),
    Goal("reads wrk", TYPESCRIPT_SDK, 1.5, "HTTP"),
    Goal("load", "", 1.0, "HTTP"),
    Goal("search", "", 2.0, "HTTP"),
    Goal("session 50", "", 1.0, "HTTP"),
    Goal("session 2000", "", 1.0, "HTTP"),
    Goal("stream", "", 40.0, "HTTP"),
    Goal("fairness", "", 2.5, "HTTP"),
    Goal("modules", "", 16.0, "HTTP"),
    Goal("layers", "", 3.0, "HTTP"),
    Goal("resident", "", 60.0, "HTTP"),
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
        return self.ratio >= self.goal.most if LABELS[self.goal.key][1] == "/s" else self.ratio <= self.goal.most

    @property
    def text(self) -> str:
        """Return the ratio, or the figure with its unit; bold if the goal was missed."""
        unit = LABELS[self.goal.key][1]
        shown = f"{short(self.ours)} {unit}".strip() if self.ratio is None else f"{self.ratio:.2f}"
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
    for size in sorted({each.size for each in series}):
        for transport in TRANSPORTS:
            for era in ERAS:
                found = [e for e in series if (e.size, e.transport, e.era) == (size, transport, era) and e.visits]
                keys = [key for key in MEASURES if any(each.figure(key) is not None for each in found)]
                rows = [(names[each.subject], *(_cell(each, key) for key in keys)) for each in found]
                if rows:
                    out.append(f"### {size:,} skills, {transport}, {era}")
                    out.append(table([("server", *map(_heading, keys)), *rows], range(1, len(keys) + 1)))
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
        what, unit = LABELS[goal.key]
        if goal.subject == WARM:
            what += ", warm"
        if goal.size != 1000:
            what += f", {goal.size:,} skills"
        texts = {each.era: each.text for each in found if each.goal == goal}
        bound = f"{'≥' if unit == '/s' else '≤'} {goal.most:g}"
        if not goal.beside:
            bound = f"{bound} {unit}".strip()
        yield goal.transport, what, goal.beside or "-", *(texts.get(era, "-") for era in ERAS), bound


def _heading(key: str) -> str:
    label, unit = MEASURES[key]
    return label if unit == "/s" else f"{label}, {unit}"


def _cell(series: Series, key: str) -> str:
    figures = [value for each in (key, f"{key} p99") if (value := series.figure(each)) is not None]
    return " / ".join(map(short, figures)) or "-"


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
