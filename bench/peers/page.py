"""What `make bench-peers` writes: the raw figures, the plots, and the tables between the markers of the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.hosts.table import between_markers

from bench.peers import plot
from bench.peers.plot import Panel, short
from bench.peers.rounds import HTTP, STDIO, Series
from bench.peers.subjects import WARM, Subject
from bench.peers.summary import BY_KEY, Goal, Verdict, figure, growth, slope, verdicts
from bench.report import table

BEGIN: Final = "<!-- made by `make bench-peers`: begin -->"
END: Final = "<!-- made by `make bench-peers`: end -->"
PAGE: Final = "benchmarks.md"
FOLDER: Final = "benchmarks"
NOTHING: Final = "-"
_COLUMNS: Final = (
    "cold", "catalogue", "page", "get", "get each", "read", "read each", "gets", "reads", "resident",
)  # fmt: skip
_GROWING: Final = ("cold", "tools", "catalogue", "page", "get", "read", "resident")
_TRANSPORTS: Final = {STDIO: "stdio", HTTP: "HTTP"}


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that a run found.

    Attributes:
        about: day, machine, load and rounds, for the raw figures and the line above the tables.
        size: how many skills the tables are about.
        subjects: who was measured, in the order of the tables.
        left_out: who was not, and why.
        series: all visits.
    """

    about: Mapping[str, Any]
    size: int
    subjects: Sequence[Subject]
    left_out: Mapping[str, str]
    series: Sequence[Series]

    def as_json(self) -> dict[str, Any]:
        """The raw figures."""
        names = [{"key": each.key, "label": each.label, "release": each.release} for each in self.subjects]
        visits = [each.as_json() for each in self.series]
        return {**self.about, "size": self.size, "subjects": names, "left_out": dict(self.left_out), "series": visits}


def write(results: Results, folder: Path) -> None:
    """Write the raw figures and the plots into `folder`/benchmarks, and the tables into `folder`/benchmarks.md.

    Raises:
        ValueError: the page has not its two markers.
    """
    inner = folder / FOLDER
    inner.mkdir(parents=True, exist_ok=True)
    (inner / "peers.json").write_text(json.dumps(results.as_json(), indent=1) + "\n", encoding="utf-8")
    drawn = plots(results)
    for name, svg in drawn.items():
        (inner / name).write_text(svg, encoding="utf-8")
    page = folder / PAGE
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    page.write_text(between_markers(text, markdown(results, drawn), BEGIN, END), encoding="utf-8")


def markdown(results: Results, drawn: Mapping[str, str]) -> str:
    """The part of the page between the markers."""
    about = results.about
    load = f"load {about['load']:.1f} before and {about['load_after']:.1f} after"
    out = [
        f"{about['day']}: {about['machine']}, {load}; {about['rounds']} rounds, {results.size:,} skills of four files."
    ]
    judged = verdicts(results.series, results.size)
    if judged:
        out += [
            "### Goals",
            table([("over", "what", "beside", "ours", "its", "ratio", "goal", ""), *map(_row, judged)], (3, 4, 5)),
        ]
    shown = {"peers.svg": ("stdio", "legacy"), "peers-modern.svg": ("stdio", "modern"), "http.svg": ("http", "modern")}
    for name, (transport, era) in shown.items():
        lines = _rows(results, transport, era)
        if not lines:
            continue
        out += (
            [f"### {_TRANSPORTS[transport]}, {era}", _image(name, drawn)]
            if name in drawn
            else [f"### {transport}, {era}"]
        )
        out.append(table([("server", *(_heading(key) for key in _COLUMNS)), *lines], range(1, len(_COLUMNS) + 1)))
    growing = _slopes(results)
    if growing:
        out += ["### Growth", _image("growth.svg", drawn)] if "growth.svg" in drawn else ["### Growth"]
        out.append(
            table(
                [("server", "sizes", *(BY_KEY[key].label for key in _GROWING)), *growing], range(2, 2 + len(_GROWING))
            )
        )
    out += ["### Left out", *_left_out(results)] if results.left_out or any(e.gave_up for e in results.series) else []
    return "\n\n".join(out)


def plots(results: Results) -> dict[str, str]:
    """The plots by the names of their files."""
    labels = {each.key: each.label for each in results.subjects}
    colours = {
        **dict(zip((each.label for each in results.subjects if not each.constant), plot.COLOURS, strict=False)),
        **dict(zip((each.label for each in results.subjects if each.constant), plot.GREYS, strict=False)),
    }
    out: dict[str, str] = {}
    for name, transport, era in (
        ("peers.svg", STDIO, "legacy"),
        ("peers-modern.svg", STDIO, "modern"),
        ("http.svg", HTTP, "modern"),
    ):
        there = [each for each in _at(results, transport, era) if each.visits]
        panels: list[Panel] = []
        for key in _COLUMNS:
            values = {
                labels[each.subject]: [(0.0, value)] for each in there if (value := figure(each, key)) is not None
            }
            if values:
                panels.append(Panel(f"{BY_KEY[key].label}, {_better(key)}", values))
        if panels:
            title = f"{_TRANSPORTS[transport]}, {era}, {results.size:,} skills"
            out[name] = plot.bars(title, panels, colours)
    growing = [each for each in results.series if each.transport == STDIO and each.era == "modern"]
    if len({each.size for each in growing}) > 1:
        panels = [
            Panel(
                f"{BY_KEY[key].label}, {BY_KEY[key].unit}",
                {label: points for key_, label in labels.items() if (points := growth(growing, key_, key))},
            )
            for key in _GROWING
        ]
        out["growth.svg"] = plot.lines("stdio, modern, by the number of skills", panels, colours)
    return out


def _at(results: Results, transport: str, era: str) -> list[Series]:
    order = [each.key for each in results.subjects]
    found = [e for e in results.series if (e.transport, e.era, e.size) == (transport, era, results.size)]
    return sorted(found, key=lambda each: order.index(each.subject))


def _rows(results: Results, transport: str, era: str) -> list[tuple[str, ...]]:
    names = {each.key: f"{each.label} {each.release}" for each in results.subjects}
    return [
        (names[each.subject], *(_cell(each, key) for key in _COLUMNS))
        for each in _at(results, transport, era)
        if each.visits
    ]


def _cell(series: Series, key: str) -> str:
    value = figure(series, key)
    if value is None:
        return NOTHING
    tail = figure(series, f"{key} p99") if f"{key} p99" in BY_KEY else None
    text = short(value) if tail is None else f"{short(value)} / {short(tail)}"
    entries = series.visits[0].entries
    return f"{text} ({entries:,} at once)" if key == "page" and entries not in {None, min(50, series.size)} else text


def _heading(key: str) -> str:
    measure = BY_KEY[key]
    tail = " p50 / p99" if f"{key} p99" in BY_KEY else ""
    return measure.label if measure.unit == "/s" else f"{measure.label}{tail}, {measure.unit}"


def _better(key: str) -> str:
    return "more is better" if BY_KEY[key].unit == "/s" else f"{BY_KEY[key].unit}, less is better"


def _row(verdict: Verdict) -> tuple[str, ...]:
    goal: Goal = verdict.goal
    unit = BY_KEY[goal.key].unit
    sign = "≥" if unit == "/s" else "≤"
    return (
        f"{_TRANSPORTS[goal.transport]}, {verdict.era}",
        BY_KEY[goal.key].label
        + (f", {verdict.size:,} skills" if goal.size else "")
        + (", warm" if goal.subject == WARM else ""),
        goal.beside or NOTHING,
        f"{short(verdict.ours)} {unit}",
        NOTHING if verdict.other is None else f"{short(verdict.other)} {unit}",
        NOTHING if verdict.ratio is None else f"{verdict.ratio:.2f}",
        f"{sign} {goal.most:g}" + ("" if goal.beside else f" {unit}"),
        "met" if verdict.met else "missed",
    )


def _slopes(results: Results) -> list[tuple[str, ...]]:
    growing = [each for each in results.series if each.transport == STDIO and each.era == "modern"]
    out: list[tuple[str, ...]] = []
    for subject in results.subjects:
        cells: list[str] = []
        sizes = ""
        for key in _GROWING:
            found = slope(growth(growing, subject.key, key))
            if found is None:
                cells.append(NOTHING)
                continue
            sizes = f"{found.smallest:,} to {found.largest:,}"
            sign = "-" if found.thousand < 0 else "+"
            cells.append(f"{found.exponent:.2f}; {sign}{short(abs(found.thousand))} {BY_KEY[key].unit}")
        if sizes:
            out.append((subject.label, sizes, *cells))
    return out


def _left_out(results: Results) -> list[str]:
    labels = {each.key: each.label for each in results.subjects}
    lines = [f"- {name}: {reason}." for name, reason in results.left_out.items()]
    for each in results.series:
        if each.gave_up:
            where = f"{each.transport}, {each.era}, {each.size:,} skills"
            lines.append(f"- {labels[each.subject]} ({where}): {each.gave_up}")
    return ["\n".join(lines)]


def _image(name: str, drawn: Mapping[str, str]) -> str:
    title = drawn[name].split("<title>")[1].split("</title>")[0]
    return f"![{title}]({FOLDER}/{name})"
