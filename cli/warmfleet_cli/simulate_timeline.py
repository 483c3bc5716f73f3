"""One simulation as an SVG timeline: pods, demand, and requests that met the objective."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from warmfleet_cli.svg import box, document, number, rule, text, ticks

if TYPE_CHECKING:
    from warmfleet_simulator.report import Report

WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _BETWEEN, _BOTTOM = 76.0, 20.0, 72.0, 56.0, 52.0
_PODS_HEIGHT, _DEMAND_HEIGHT, _MET_HEIGHT = 180.0, 120.0, 100.0
_MINUTE: Final = 60.0
_STATES: Final = (("ready", "f0"), ("draining", "f3"), ("pending", "f1"))
"""From the lowest area to the highest, with their colours."""
_MET, _LATE, _DEMAND = "f2", "f1", "f0"
_MARK_HEIGHT: Final = 4.0


class Panel(NamedTuple):
    """A plot: where it is, and which values it shows."""

    top: float
    height: float
    low: float
    high: float
    seconds: float
    """Length of the time axis."""

    def x(self, seconds: float) -> float:
        """Of a time."""
        return _LEFT + min(max(seconds / self.seconds, 0.0), 1.0) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Of a value."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.top + self.height * (1 - share)


def render_timeline(report: "Report", *, title: str, percent: int | None) -> str:
    """The document. `percent` of the requests must meet the objective; None without one."""
    seconds = max(report.virtual_seconds, 1.0)
    demand_top = _TOP + _PODS_HEIGHT + _BETWEEN
    bottom = demand_top + _DEMAND_HEIGHT
    parts = [
        text(WIDTH / 2, 24, title, anchor="middle", css="title"),
        *_pods(report, seconds),
        *_demand(report, demand_top, seconds),
    ]
    if percent is not None:
        parts += _met(report, percent, bottom + _BETWEEN, seconds)
        bottom += _BETWEEN + _MET_HEIGHT
    parts += _minutes(bottom, seconds)
    return document(parts, title=title, width=WIDTH, height=bottom + _BOTTOM)


def _pods(report: "Report", seconds: float) -> Iterator[str]:
    """Ready, draining and pending pods, one above the other."""
    timeline = report.timeline
    values = ticks(0, max(counts.total for counts in timeline))
    panel = Panel(_TOP, _PODS_HEIGHT, values[0], values[-1], seconds)
    yield from _axis(panel, values, "pods")
    edges = [*(counts.at_seconds - report.first_arrival_seconds for counts in timeline), seconds]
    lower = [0] * len(timeline)
    for state, colour in _STATES:
        upper = [below + int(getattr(counts, state)) for below, counts in zip(lower, timeline, strict=True)]
        if upper != lower:
            yield f'<path class="{colour}" d="{_steps(panel, edges, lower, upper)}"/>'
        lower = upper
    yield from _legend(panel, [(colour, state) for state, colour in _STATES])


def _demand(report: "Report", top: float, seconds: float) -> Iterator[str]:
    """Prompt tokens that arrived per second, by window."""
    length = report.window_seconds
    rates = [window.prompt_tokens / length for window in report.windows]
    values = ticks(0, max(rates, default=0.0))
    panel = Panel(top, _DEMAND_HEIGHT, values[0], values[-1], seconds)
    yield from _axis(panel, values, "tokens per second")
    for window, rate in zip(report.windows, rates, strict=True):
        yield box(*_bar(panel, window.at_seconds, length, panel.y(rate), panel.y(0)), _DEMAND)
    yield from _legend(panel, [(_DEMAND, "prompt tokens that arrived")])


def _met(report: "Report", percent: int, top: float, seconds: float) -> Iterator[str]:
    """Percentage of each window's requests that met the objective."""
    shares = {window: 100 * window.met / window.requests for window in report.windows if window.requests}
    values = ticks(min([float(percent), *shares.values()]) - 1, 100)
    panel = Panel(top, _MET_HEIGHT, max(values[0], 0.0), 100, seconds)
    yield from _axis(panel, [value for value in values if 0 <= value <= 100], "percent")
    for window, share in shares.items():
        y = panel.y(share)
        colour = _MET if share >= percent else _LATE
        marks = y - _MARK_HEIGHT / 2, y + _MARK_HEIGHT / 2
        yield box(*_bar(panel, window.at_seconds, report.window_seconds, *marks), colour)
    yield rule(_LEFT, panel.y(percent), WIDTH - _RIGHT, panel.y(percent), "target")
    yield from _legend(panel, [(_MET, f"requests in time, {percent} % or more"), (_LATE, "fewer")])


def _axis(panel: Panel, values: Sequence[float], unit: str) -> Iterator[str]:
    for value in values:
        y = panel.y(value)
        yield rule(_LEFT, y, WIDTH - _RIGHT, y, "grid")
        yield text(_LEFT - 8, y + 4, number(value), anchor="end")
    middle = panel.top + panel.height / 2
    yield text(18, middle, unit, anchor="middle", turn=f"rotate(-90 18 {middle:g})")


def _minutes(bottom: float, seconds: float) -> Iterator[str]:
    panel = Panel(bottom, 1, 0, 1, seconds)
    for minute in ticks(0, seconds / _MINUTE):
        if minute * _MINUTE <= seconds:
            x = panel.x(minute * _MINUTE)
            yield rule(x, bottom, x, bottom + 5, "axis")
            yield text(x, bottom + 20, number(minute), anchor="middle")
    yield text(WIDTH / 2, bottom + 40, "minutes since the first request", anchor="middle")


def _legend(panel: Panel, entries: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Above a panel."""
    x = _LEFT
    for colour, name in entries:
        yield box(x, panel.top - 20, 11, 11, colour)
        yield text(x + 17, panel.top - 10, name)
        x += 44 + 7.2 * len(name)


def _bar(
    panel: Panel, start: float, length: float, top: float, bottom: float
) -> tuple[float, float, float, float]:
    """The rectangle of a window."""
    left, right = panel.x(start), panel.x(start + length)
    return left, top, max(right - left - 0.5, 0.5), bottom - top


def _steps(panel: Panel, edges: Sequence[float], lower: Sequence[int], upper: Sequence[int]) -> str:
    """An area: along `upper` and back along `lower`. Value i holds from edge i to edge i + 1."""
    path = [f"M{panel.x(edges[0]):.1f} {panel.y(lower[0]):.1f}"]
    for value, end in zip(upper, edges[1:], strict=True):
        path.append(f"V{panel.y(value):.1f}H{panel.x(end):.1f}")
    for value, start in zip(reversed(lower), reversed(edges[:-1]), strict=True):
        path.append(f"V{panel.y(value):.1f}H{panel.x(start):.1f}")
    return "".join(path) + "Z"
