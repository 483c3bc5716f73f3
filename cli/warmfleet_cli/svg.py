"""Parts of small SVG charts: a document, texts, rules and the numbers of an axis."""

import math
import sys
from collections.abc import Sequence
from html import escape
from typing import Final

_DISTINCT: Final = 1e-9
"""Of values that differ by a smaller part, an axis shows one."""

# The page's own colour scheme decides: a chart has no background of its own.
_STYLE: Final = """
text{font:13px system-ui,sans-serif;fill:#24292f}
.title{font-size:16px;font-weight:600}
.small{font-size:12px}
.grid{stroke:#d0d7de;stroke-width:1}
.axis{stroke:#57606a;stroke-width:1}
.whisker{stroke:#24292f;stroke-width:1.5}
.target{stroke:#24292f;stroke-width:1;stroke-dasharray:5 4}
polyline{fill:none;stroke-width:2}
.s0{stroke:#0969da}.f0{fill:#0969da}
.s1{stroke:#bc4c00}.f1{fill:#bc4c00}
.s2{stroke:#1a7f37}.f2{fill:#1a7f37}
.s3{stroke:#8250df}.f3{fill:#8250df}
.s4{stroke:#bf3989}.f4{fill:#bf3989}
.s5{stroke:#57606a}.f5{fill:#57606a}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}
.grid{stroke:#30363d}
.axis{stroke:#8b949e}
.whisker{stroke:#e6edf3}
.target{stroke:#e6edf3}
.s0{stroke:#58a6ff}.f0{fill:#58a6ff}
.s1{stroke:#f0883e}.f1{fill:#f0883e}
.s2{stroke:#3fb950}.f2{fill:#3fb950}
.s3{stroke:#bc8cff}.f3{fill:#bc8cff}
.s4{stroke:#f778ba}.f4{fill:#f778ba}
.s5{stroke:#8b949e}.f5{fill:#8b949e}
}
"""


def document(parts: Sequence[str], *, title: str, width: float, height: float) -> str:
    """The document of `parts`. Colours are the classes `s0` to `s5` for lines, `f0` to `f5` for areas."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def text(x: float, y: float, content: str, *, anchor: str = "start", css: str = "", turn: str = "") -> str:
    """A line of text; `turn` is a transformation."""
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    if css:
        attributes += f' class="{css}"'
    if turn:
        attributes += f' transform="{turn}"'
    return f"<text {attributes}>{escape(content)}</text>"


def rule(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def box(x: float, y: float, width: float, height: float, css: str) -> str:
    """A filled rectangle."""
    return f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def number(value: float) -> str:
    """For people: thousands separated, otherwise three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


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
