"""Small SVG charts: lines over a numeric axis, and panels of bars. Readable on light and dark pages."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 20, 64, 56
_DISTINCT: Final = 1e-9
"""Of values that differ by a smaller part, a chart shows one."""
_COLOURS: Final = 4

# The page's own colour scheme decides: the chart has no background of its own.
_STYLE: Final = """
text{font:13px system-ui,sans-serif;fill:#24292f}
.title{font-size:16px;font-weight:600}
.small{font-size:12px}
.grid{stroke:#d0d7de;stroke-width:1}
.axis{stroke:#57606a;stroke-width:1}
.whisker{stroke:#24292f;stroke-width:1.5}
polyline{fill:none;stroke-width:2}
.s0{stroke:#0969da}.f0{fill:#0969da}
.s1{stroke:#bc4c00}.f1{fill:#bc4c00}
.s2{stroke:#1a7f37}.f2{fill:#1a7f37}
.s3{stroke:#8250df}.f3{fill:#8250df}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}
.grid{stroke:#30363d}
.axis{stroke:#8b949e}
.whisker{stroke:#e6edf3}
.s0{stroke:#58a6ff}.f0{fill:#58a6ff}
.s1{stroke:#f0883e}.f1{fill:#f0883e}
.s2{stroke:#3fb950}.f2{fill:#3fb950}
.s3{stroke:#bc8cff}.f3{fill:#bc8cff}
}
"""


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

    parts = [_text(WIDTH / 2, 24, chart.title, anchor="middle", css="title")]
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(_rule(_LEFT, y, WIDTH - _RIGHT, y, "grid"))
        parts.append(_text(_LEFT - 8, y + 4, _number(tick), anchor="end"))
    for tick in x_ticks:
        parts.append(_rule(x_of(tick), base, x_of(tick), base + 5, "axis"))
        parts.append(_text(x_of(tick), base + 20, _number(tick), anchor="middle"))
    parts.append(_rule(_LEFT, base, WIDTH - _RIGHT, base, "axis"))
    parts.append(_text(_LEFT + plot_width / 2, HEIGHT - 14, chart.x_label, anchor="middle"))
    middle = _TOP + plot_height / 2
    parts.append(_text(18, middle, chart.y_label, anchor="middle", turn=f"rotate(-90 18 {middle:g})"))
    legend_x = float(_LEFT)
    for index, line in enumerate(lines):
        colour = index % _COLOURS
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="s{colour}" points="{points}"/>')
        parts.append(f'<rect class="f{colour}" x="{legend_x:g}" y="40" width="14" height="4"/>')
        parts.append(_text(legend_x + 20, 47, line.name))
        legend_x += 44 + 7.2 * len(line.name)
    return _document(parts, title=chart.title)


def render_bars(title: str, panels: Sequence[BarPanel]) -> str:
    """Panels side by side as an SVG document; each bar carries its value and a whisker low to high."""
    parts = [_text(WIDTH / 2, 24, title, anchor="middle", css="title")]
    panel_width = (WIDTH - _RIGHT) / max(len(panels), 1)
    for number, panel in enumerate(panels):
        parts += _panel(panel, left=number * panel_width + 20, width=panel_width - 20)
    return _document(parts, title=title)


def _panel(panel: BarPanel, *, left: float, width: float) -> list[str]:
    bars = [bar for bar in panel.bars if math.isfinite(bar.value)]
    top_value = ticks(0.0, max((bar.high for bar in bars), default=0.0))[-1]
    base, plot_height = HEIGHT - _BOTTOM, HEIGHT - _TOP - _BOTTOM - 20

    def y_of(value: float) -> float:
        return base - value / top_value * plot_height

    parts = [
        _text(left + width / 2, 50, panel.title, anchor="middle"),
        _rule(left, base, left + width, base, "axis"),
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
        parts.append(_rule(middle, y_of(bar.low), middle, y_of(bar.high), "whisker"))
        parts.append(_text(middle, y_of(bar.high) - 8, f"{_number(bar.value)}{panel.unit}", anchor="middle"))
        for row, words in enumerate(_label_rows(bar.name)):
            parts.append(_text(middle, base + 16 + 15 * row, words, anchor="middle", css="small"))
    return parts


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers (1, 2 or 5 times a power of ten) that enclose `low` to `high`."""
    # Values that differ by their last digits are one value: a step between them is lost in rounding.
    span = high - low if high - low > abs(high) * _DISTINCT else max(abs(high), 1.0)
    raw_step = max(span / 5, sys.float_info.min)  # below it a float loses digits, then all of them
    magnitude = 10.0 ** math.floor(math.log10(raw_step))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw_step * 0.999)
    first = math.floor(low / step)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [index * step for index in range(first, last + 1)]


def _label_rows(name: str) -> list[str]:
    """A policy's name over several rows: five of them must stand side by side under a panel."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "\n", name.replace(", ", "\n")).split("\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "", turn: str = "") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    if css:
        attributes += f' class="{css}"'
    if turn:
        attributes += f' transform="{turn}"'
    return f"<text {attributes}>{escape(text)}</text>"


def _rule(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _document(parts: Sequence[str], *, title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )
