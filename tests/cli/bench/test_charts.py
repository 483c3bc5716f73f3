import math
from xml.etree import ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from warmfleet_cli.bench.charts import (
    HEIGHT,
    WIDTH,
    Bar,
    BarPanel,
    Line,
    LineChart,
    render_bars,
    render_lines,
)
from warmfleet_cli.svg import ticks

SVG = "{http://www.w3.org/2000/svg}"


def points_of(document):
    return [
        [tuple(float(part) for part in point.split(",")) for point in line.get("points").split()]
        for line in document.iter(f"{SVG}polyline")
    ]


def test_a_line_chart_draws_every_point_of_every_line_inside_its_frame():
    chart = LineChart(
        title="Time per token",
        x_label="tokens",
        y_label="ms",
        lines=[
            Line("with", [(x, 2.0) for x in range(500)]),
            Line("without", [(x, 0.1 * x) for x in range(500)]),
        ],
    )

    document = ET.fromstring(render_lines(chart))

    drawn = points_of(document)
    assert [len(line) for line in drawn] == [500, 500]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for line in drawn for x, y in line)
    # Higher values stand higher on the page.
    assert drawn[1][0][1] > drawn[1][-1][1]
    texts = {text.text for text in document.iter(f"{SVG}text")}
    assert {"Time per token", "tokens", "ms", "with", "without"} <= texts


def test_a_point_that_was_not_measured_is_left_out():
    chart = LineChart("t", "x", "y", [Line("a", [(0, 1.0), (1, math.nan), (2, 3.0)])])

    assert [len(line) for line in points_of(ET.fromstring(render_lines(chart)))] == [2]


def test_a_bar_chart_has_one_bar_per_value_and_heights_in_proportion():
    panels = [
        BarPanel("reuse", " %", [Bar("LowestCost", 96.0, 95.0, 97.0), Bar("RoundRobin", 48.0, 40.0, 50.0)]),
        BarPanel("time", " ms", [Bar("LowestCost", 100.0, 90.0, 130.0)]),
    ]

    document = ET.fromstring(render_bars("bench", panels))

    bars = [rect for rect in document.iter(f"{SVG}rect") if rect.get("class").startswith("bar")]
    heights = [float(bar.get("height")) for bar in bars]
    assert len(bars) == 3
    assert abs(heights[0] - 2 * heights[1]) < 0.2
    whiskers = [line for line in document.iter(f"{SVG}line") if line.get("class") == "whisker"]
    assert len(whiskers) == 3


def test_names_from_outside_cannot_break_out_of_the_document():
    name = '</text><script>alert("x")</script>&'

    document = ET.fromstring(render_lines(LineChart(name, name, name, [Line(name, [(0, 1)])])))

    assert document.find(f".//{SVG}script") is None
    assert name in {text.text for text in document.iter(f"{SVG}text")}


def test_a_chart_is_readable_on_dark_pages_too():
    assert "prefers-color-scheme:dark" in render_lines(LineChart("t", "x", "y", []))


@example(0.0, 5e-324)
@example(999_999_999.999_999_9, 1e9)
@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_ticks_enclose_the_range_with_few_round_steps(one, other):
    low, high = min(one, other), max(one, other)

    found = ticks(low, high)

    step = found[1] - found[0]
    assert 2 <= len(found) <= 8
    assert found[0] <= low + step * 1e-6
    assert found[-1] >= high - step * 1e-6
    assert found == sorted(found)
