"""Does memory grow with the number of requests served?

Ten thousand requests, no two alike, one in ten cancelled and one in twenty invalid, go through a real router
to a real worker with a tiny model. After every thousand, when nothing is under way, the resident memory of
router, worker and engine is read. The growth of each is the slope of a line through the points after the
first thousand, by least squares. That holds what is bounded and fills meanwhile, such as the router's last
4,096 decisions; the slope of the second half, when most of it is full, is printed beside it.

    make soak, or PYTHONPATH=tests/support python benchmarks/soak.py [--laps 10]     # about two minutes
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_testing.processes.soak import (
    LAP_REQUESTS,
    QuietPoint,
    Soak,
    growth_bytes_per_lap,
    soaked_fleet,
)

MB: Final = 1_000_000
MAX_GROWTH_MB: Final = 0.3


def line(point: QuietPoint) -> str:
    sizes = (f"{name} {size / MB:.1f}" for name, size in point.resident_bytes.items())
    return f"after {point.requests:6}: {', '.join(sizes)}, together {point.total_bytes / MB:.1f} MB"


def growth_mb(points: Sequence[QuietPoint], *, since: int) -> dict[str, float]:
    """By process and together, from the lap `since` on."""
    growth = {name: growth_bytes_per_lap(points, name, since=since) for name in points[0].resident_bytes}
    growth["together"] = growth_bytes_per_lap(points, since=since)
    return {name: size / MB for name, size in growth.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--laps", type=int, default=10, help="of a thousand requests, at least three")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/soak"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    with tempfile.TemporaryDirectory() as home, soaked_fleet(Path(home)) as fleet:
        start = fleet.worker.cache()
        soak = Soak(fleet)
        points = asyncio.run(soak.run(options.laps, lambda point: print(line(point), flush=True)))
        fleet.clear_cache()
        end = fleet.worker.cache()
    growth, late_growth = growth_mb(points, since=1), growth_mb(points, since=len(points) // 2)
    lines = [f"requests: {dict(soak.answers)}"]
    for when, slopes in (("after the first", growth), ("in the second half", late_growth)):
        sizes = ", ".join(f"{name} {mb:.2f}" for name, mb in slopes.items())
        lines.append(f"growth per {LAP_REQUESTS} in MB, {when}: {sizes}")
    targets = [
        *(
            Target(f"growth of the {name}", growth[name], MAX_GROWTH_MB, at_least=False, unit=" MB")
            for name in points[0].resident_bytes
        ),
        Target(
            "blocks not back",
            sum(
                end[field] != start[field] for field in ("pinned_blocks", "cached_blocks", "resident_blocks")
            ),
            0,
            at_least=False,
        ),
    ]
    return report.end(
        "\n".join(lines),
        targets,
        points=[asdict(point) for point in points],
        growth_mb=growth,
        late_growth_mb=late_growth,
        answers=soak.answers,
    )


if __name__ == "__main__":
    sys.exit(main())
