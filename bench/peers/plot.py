"""Plots as SVG: nothing but the standard library, and readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = ("#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#f0e442")
"""For servers; they can be told apart by those who do not see all colours."""

GREYS: Final = ("#555555", "#aaaaaa")
"""For floors."""

_WIDTH: Final = 960
_LABELS: Final = 175
_ROW: Final = 18
_HEAD: Final = 34
_GAP: Final = 22


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure.

    Attributes:
        title: with its unit.
        values: for each server its figures; of a panel of bars one, of a panel of lines (size, figure).
    """

    title: str
    values: Mapping[str, Sequence[tuple[float, float]]]


def bars(title: str, panels: Sequence[Panel], colours: Mapping[str, str]) -> str:
    """Panels of bars below each other, two abreast; each begins at 0 and is cut at 8 times its middle value."""
    column = (_WIDTH - _GAP) / 2
    out: list[str] = []
    tops = [float(_HEAD), float(_HEAD)]
    for number, panel in enumerate(panels):
        left, top = (number % 2) * (column + _GAP), tops[number % 2]
        out += _bars(panel, colours, left, top, column)
        tops[number % 2] = top + _GAP + _ROW * (len(panel.values) + 1)
    return _svg(title, out, max(tops))


def lines(title: str, panels: Sequence[Panel], colours: Mapping[str, str]) -> str:
    """Panels of lines, two abreast, both axes logarithmic; the servers are named once, at the end."""
    column, height = (_WIDTH - _GAP) / 2, 230.0
    out: list[str] = []
    for number, panel in enumerate(panels):
        left, top = (number % 2) * (column + _GAP), _HEAD + number // 2 * (height + _GAP)
        out += _lines(panel, colours, (left, top, column, height))
    top = _HEAD + -(-len(panels) // 2) * (height + _GAP)
    names = [name for name in colours if any(panel.values.get(name) for panel in panels)]
    for number, name in enumerate(names):
        x, y = number % 3 * _WIDTH / 3, top + number // 3 * _ROW
        out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" fill="{colours[name]}"/>')
        out.append(_text(x + 18, y + 10, name))
    return _svg(title, out, top + -(-len(names) // 3) * _ROW + 8)


def _bars(panel: Panel, colours: Mapping[str, str], left: float, top: float, width: float) -> list[str]:
    figures = {name: values[0][1] for name, values in panel.values.items()}
    room = width - _LABELS - 100
    middle = sorted(figures.values())[len(figures) // 2]
    end = min(max(figures.values()), 8 * middle) or 1.0
    out = [_text(left, top + 12, panel.title, bold=True)]
    for number, (name, value) in enumerate(figures.items(), 1):
        y = top + number * _ROW
        length = max(1.0, min(value, end) / end * room)
        out.append(_text(left + _LABELS - 8, y + 12, name, anchor="end"))
        out.append(
            f'<rect x="{left + _LABELS:.1f}" y="{y + 2:.1f}" width="{length:.1f}" height="{_ROW - 5}" '
            f'fill="{colours[name]}"/>'
        )
        cut = " (cut)" if value > end else ""
        out.append(_text(left + _LABELS + length + 5, y + 12, short(value) + cut))
    return out


def _lines(panel: Panel, colours: Mapping[str, str], box: tuple[float, float, float, float]) -> list[str]:
    left, top, width, height = box
    out = [_text(left, top + 12, panel.title, bold=True)]
    points = [point for values in panel.values.values() for point in values if point[1] > 0]
    if not points:
        return out
    x_low, x_high = (function(point[0] for point in points) for function in (min, max))
    y_low = 10 ** math.floor(math.log10(min(point[1] for point in points)))
    y_high = 10 ** math.ceil(math.log10(max(point[1] for point in points) * 1.0001))
    box_left, box_top, box_width, box_height = left + 52, top + 22, width - 60, height - 48

    def place(size: float, value: float) -> tuple[float, float]:
        along = math.log(size / x_low) / math.log(x_high / x_low) if x_high > x_low else 0.5
        return box_left + along * box_width, box_top + box_height * (
            1 - math.log(value / y_low) / math.log(y_high / y_low)
        )

    for power in range(round(math.log10(y_low)), round(math.log10(y_high)) + 1):
        _, y = place(x_low, 10.0**power)
        out.append(f'<path d="M{box_left:.1f} {y:.1f}h{box_width:.1f}" stroke="#ddd"/>')
        out.append(_text(box_left - 6, y + 4, short(10.0**power), anchor="end"))
    for size in sorted({point[0] for point in points}):
        x, _ = place(size, y_low)
        out.append(_text(x, box_top + box_height + 16, f"{size:,.0f}", anchor="middle"))
    for name, values in panel.values.items():
        spots = [place(*point) for point in values if point[1] > 0]
        if spots:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
            out.append(f'<path d="M{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}"/>' for x, y in spots]
    return out


def short(value: float) -> str:
    """A figure with three digits that mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1g}"


def _text(x: float, y: float, text: str, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 {_WIDTH + 24} {height:.0f}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#222">'
    )
    paper = f'<rect x="-12" width="{_WIDTH + 24}" height="{height:.0f}" fill="#fff"/>'
    name = f'<text x="0" y="20" font-size="15" font-weight="bold">{escape(title)}</text>'
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, name, *parts, "</svg>"]) + "\n"
