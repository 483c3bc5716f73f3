"""Small SVG charts: lines over a numeric axis, and panels of bars. Readable on light and dark pages."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_cli.svg import document, number, rule, text, ticks

WIDTH: Final = 720
HEIGHT: Final = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 20, 64, 56
_COLOURS: Final = 6
"""Of the document: as many as `bench engine` has engines, and reads beside them."""


@dataclass(frozen=True, slots=True)
class Line:
    """One named line; `points` are (x, y), ascending in x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LineChart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Bar:
    """One named value, with the lowest and highest run behind it."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars that share one axis."""

    title: str
    unit: str
    bars: Sequence[Bar]


def render_lines(chart: LineChart) -> str:
    """The chart as an SVG document; points that are not finite are left out."""
    lines = [
        Line(line.name, [(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y)])
        for line in chart.lines
    ]
    xs = [x for line in lines for x, _ in line.points] or [0.0]
    ys = [y for line in lines for _, y in line.points] or [0.0]
    x_ticks = ticks(min(xs), max(xs))
    y_ticks = ticks(0.0, max(ys))
    plot_width, plot_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    base = HEIGHT - _BOTTOM

    def x_of(x: float) -> float:
        return _LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * plot_width

    def y_of(y: float) -> float:
        return base - y / y_ticks[-1] * plot_height

    parts = [text(WIDTH / 2, 24, chart.title, anchor="middle", css="title")]
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(rule(_LEFT, y, WIDTH - _RIGHT, y, "grid"))
        parts.append(text(_LEFT - 8, y + 4, number(tick), anchor="end"))
    for tick in x_ticks:
        parts.append(rule(x_of(tick), base, x_of(tick), base + 5, "axis"))
        parts.append(text(x_of(tick), base + 20, number(tick), anchor="middle"))
    parts.append(rule(_LEFT, base, WIDTH - _RIGHT, base, "axis"))
    parts.append(text(_LEFT + plot_width / 2, HEIGHT - 14, chart.x_label, anchor="middle"))
    middle = _TOP + plot_height / 2
    parts.append(text(18, middle, chart.y_label, anchor="middle", turn=f"rotate(-90 18 {middle:g})"))
    legend_x = float(_LEFT)
    for index, line in enumerate(lines):
        colour = index % _COLOURS
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="s{colour}" points="{points}"/>')
        parts.append(f'<rect class="f{colour}" x="{legend_x:g}" y="40" width="14" height="4"/>')
        parts.append(text(legend_x + 20, 47, line.name))
        legend_x += 44 + 7.2 * len(line.name)
    return document(parts, title=chart.title, width=WIDTH, height=HEIGHT)


def render_bars(title: str, panels: Sequence[BarPanel]) -> str:
    """Panels side by side as an SVG document; each bar carries its value and a whisker low to high."""
    parts = [text(WIDTH / 2, 24, title, anchor="middle", css="title")]
    panel_width = (WIDTH - _RIGHT) / max(len(panels), 1)
    for index, panel in enumerate(panels):
        parts += _panel(panel, left=index * panel_width + 20, width=panel_width - 20)
    return document(parts, title=title, width=WIDTH, height=HEIGHT)


def _panel(panel: BarPanel, *, left: float, width: float) -> list[str]:
    bars = [bar for bar in panel.bars if math.isfinite(bar.value)]
    top_value = ticks(0.0, max((bar.high for bar in bars), default=0.0))[-1]
    base, plot_height = HEIGHT - _BOTTOM, HEIGHT - _TOP - _BOTTOM - 20

    def y_of(value: float) -> float:
        return base - value / top_value * plot_height

    parts = [
        text(left + width / 2, 50, panel.title, anchor="middle"),
        rule(left, base, left + width, base, "axis"),
    ]
    slot = width / max(len(bars), 1)
    for index, bar in enumerate(bars):
        middle = left + (index + 0.5) * slot
        bar_width = min(slot * 0.6, 80)
        top = y_of(bar.value)
        parts.append(
            f'<rect class="bar f{index % _COLOURS}" x="{middle - bar_width / 2:.1f}" y="{top:.1f}"'
            f' width="{bar_width:.1f}" height="{base - top:.1f}"/>'
        )
        parts.append(rule(middle, y_of(bar.low), middle, y_of(bar.high), "whisker"))
        parts.append(text(middle, y_of(bar.high) - 8, f"{number(bar.value)}{panel.unit}", anchor="middle"))
        for row, words in enumerate(_label_rows(bar.name)):
            parts.append(text(middle, base + 16 + 15 * row, words, anchor="middle", css="small"))
    return parts


def _label_rows(name: str) -> list[str]:
    """A policy's name over several rows: five of them must stand side by side under a panel."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "\n", name.replace(", ", "\n")).split("\n")
