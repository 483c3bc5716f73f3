"""The SVG timeline of `warmfleet simulate`: well-formed, labelled, and to scale."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from typer.testing import CliRunner

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.simulate_timeline import WIDTH, render_timeline
from warmfleet_simulator.replica.token_gaps import TokenGaps
from warmfleet_simulator.report import Percentiles, Report, Stopped, WindowCounts, inter_token_ms
from warmfleet_simulator.scaling.pods import PodCounts, PodSeconds

SVG = "{http://www.w3.org/2000/svg}"


def report(timeline: list[PodCounts], windows: list[WindowCounts], seconds: float = 600.0) -> Report:
    nothing = Percentiles(None, None, None)
    return Report(
        routing="LowestCost", replicas=2, most_replicas=4, replica_seconds=0.0,
        pod_seconds=PodSeconds(0.0, 0.0, 0.0), stopped=Stopped.NO, objective_percent=None, requests=0, met=0,
        answered=0, refused={}, prompt_tokens=0, cached_tokens=0, hit_rate=0.0, missed_tokens={},
        missed_replica_seconds={}, output_tokens=0, first_token_ms=nothing,
        inter_token_ms=inter_token_ms(TokenGaps()), evicted_blocks=0, steps=0, virtual_seconds=seconds,
        wall_seconds=0.0, timeline=timeline, changes=[], first_arrival_seconds=1.0, window_seconds=60.0,
        windows=windows,
    )  # fmt: skip


TIMELINE = [
    PodCounts(0.0, 0, 2, 0),
    PodCounts(121.0, 2, 2, 0),
    PodCounts(241.0, 0, 4, 0),
    PodCounts(481.0, 0, 3, 1),
    PodCounts(541.0, 0, 3, 0),
]
WINDOWS = [WindowCounts(60.0 * number, 100, 60_000 * (number + 1), 100 - number) for number in range(10)]


def drawn(document: str, css: str) -> list[dict[str, float]]:
    """Rectangles of a class in the plots; the legend's are 11 wide."""
    found = [
        {name: float(element.get(name, "0")) for name in ("x", "y", "width", "height")}
        for element in ET.fromstring(document).iter(f"{SVG}rect")
        if element.get("class") == css
    ]
    return [box for box in found if (box["width"], box["height"]) != (11, 11)]


def area(path: str) -> float:
    """Of a path of horizontal and vertical lines (the shoelace formula)."""
    x, y = map(float, re.findall(r"M([\d.]+) ([\d.]+)", path)[0])
    points = [(x, y)]
    for axis, value in re.findall(r"([HV])([\d.]+)", path):
        x, y = (float(value), y) if axis == "H" else (x, float(value))
        points.append((x, y))
    pairs = zip(points, [*points[1:], points[0]], strict=True)
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2


def test_areas_are_proportional_to_the_seconds_of_pods() -> None:
    root = ET.fromstring(render_timeline(report(TIMELINE, WINDOWS), title="t", percent=97))
    areas = {path.get("class"): area(path.get("d", "")) for path in root.iter(f"{SVG}path")}

    # Ready: 2 for 240 s, 4 for 240 s, 3 for 120 s; pending: 2 for 120 s; draining: 1 for 60 s.
    ready, pending, draining = areas["f0"], areas["f1"], areas["f3"]
    assert pending / ready == pytest.approx(240 / 1800, rel=0.01)
    assert draining / ready == pytest.approx(60 / 1800, rel=0.02)


def test_every_window_has_its_demand_and_its_share_of_requests_in_time() -> None:
    document = render_timeline(report(TIMELINE, WINDOWS), title="t", percent=97)

    bars = drawn(document, "f0")
    heights = [bar["height"] for bar in bars]
    assert heights == pytest.approx([heights[0] * (number + 1) for number in range(10)], abs=1)
    starts = [bar["x"] for bar in bars]
    assert starts == pytest.approx(
        [starts[0] + number * (starts[1] - starts[0]) for number in range(10)], abs=1
    )
    met, late = drawn(document, "f2"), drawn(document, "f1")
    assert (len(met), len(late)) == (4, 6)  # 100 to 97 percent, then 96 to 91
    assert max(mark["y"] for mark in met) < min(mark["y"] for mark in late)


def test_axes_are_labelled_with_units_and_nothing_leaves_the_page() -> None:
    document = render_timeline(report(TIMELINE, WINDOWS), title="<Operator> & co", percent=97)
    root = ET.fromstring(document)

    texts = [element.text for element in root.iter(f"{SVG}text")]
    for label in ("pods", "tokens per second", "percent", "minutes since the first request"):
        assert label in texts
    assert root.findtext(f"{SVG}title") == "<Operator> & co"
    assert "prefers-color-scheme:dark" in document
    _, _, width, height = map(float, root.get("viewBox", "").split())
    assert width == WIDTH
    for element in root.iter():
        for name, most in (("x", width), ("y", height)):
            assert 0 <= float(element.get(name, "0")) <= most
    lines = [float(line.get("y1", "0")) for line in root.iter(f"{SVG}line")]
    assert max(lines) < height


@pytest.mark.parametrize(
    ("timeline", "windows", "seconds"),
    [
        ([PodCounts(0.0, 0, 1, 0)], [], 0.0),
        ([PodCounts(0.0, 0, 1, 0)], [WindowCounts(0.0, 0, 0, 0)], 1.0),
        ([PodCounts(0.0, 0, 1, 0)], [WindowCounts(0.0, 5, 10**9, 0)], 1e6),
    ],
)
def test_short_empty_and_very_long_traces_are_drawn(
    timeline: list[PodCounts], windows: list[WindowCounts], seconds: float
) -> None:
    for percent in (97, None):
        root = ET.fromstring(render_timeline(report(timeline, windows, seconds), title="t", percent=percent))
        assert len(list(root.iter(f"{SVG}text"))) < 60


def test_the_command_writes_it_beside_its_table(tmp_path: Path) -> None:
    trace, svg = tmp_path / "trace.jsonl", tmp_path / "timeline.svg"
    line = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    trace.write_bytes(b"".join(msgspec.json.encode({**line, "timestamp": 900 * n}) + b"\n" for n in range(9)))
    arguments = ["simulate", "--trace", str(trace), "--replicas", "2", "-o", "json", "--svg", str(svg)]

    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)["reports"]
    assert found["windows"] == [{"at_seconds": 0.0, "requests": 9, "prompt_tokens": 5400, "met": 0}]
    root = ET.fromstring(svg.read_text())
    assert root.findtext(f"{SVG}title") == "Fixed, LowestCost, trace.jsonl"

    result = CliRunner().invoke(app, [*arguments, "--routing", "all"])
    assert result.exit_code == ExitCode.USAGE
    result = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "none" / "t.svg")])
    assert (result.exit_code, "t.svg: No such file" in result.stderr) == (ExitCode.FAILED, True)
