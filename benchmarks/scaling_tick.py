"""How long does the operator take to decide about all fleets?

A store with --deployments fleets of --replicas ready replicas each, all with latency targets, and two routers
that answer requests of every latency. One tick decodes both totals, merges them and decides for every
fleet, as the operator does every two seconds. No process is started and no network is used.

    PYTHONPATH=tests/support python benchmarks/scaling_tick.py     # about ten seconds
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target, percentile
from warmfleet_contracts.cache.fleet_totals import decode_totals, encode_totals
from warmfleet_testing.resources.scaled_fleets import WITH_TARGETS, Fleets

MAX_TICK_MS: Final = 50.0
TICK_SECONDS: Final = 2
WARM_TICKS: Final = 40
"""More than a minute: the histories are full."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What was measured."""

    deployments: int
    replicas: int
    tick_ms: Sequence[float]
    answer_bytes: int
    """Of one router."""
    changes: int
    """Fleets whose advice changed in what a status shows, over all ticks."""

    def targets(self) -> list[Target]:
        median = percentile(self.tick_ms, 50)
        return [Target("median tick", median, MAX_TICK_MS, at_least=False, unit=" ms")]

    def report(self) -> str:
        return (
            f"{self.deployments} deployments of {self.replicas} replicas, two answers of "
            f"{self.answer_bytes / 1024:.0f} KiB\n{len(self.tick_ms)} ticks: median "
            f"{percentile(self.tick_ms, 50):.1f} ms, 95th percentile {percentile(self.tick_ms, 95):.1f} ms, "
            f"longest {max(self.tick_ms):.1f} ms; {self.changes} statuses would change"
        )


def run(options: argparse.Namespace) -> Ticks:
    """Tick as often as asked, after as many ticks as fill the histories."""
    fleets = Fleets(options.deployments, options.replicas, pinned_tokens=50_000)
    for key in fleets.keys:
        fleets.advisor.follow(key, WITH_TARGETS, [key.name, str(key)])
    fleets.totals.routers = 2
    taken, answer_bytes = [], 0
    for tick in range(WARM_TICKS + options.ticks):
        second = tick * TICK_SECONDS
        bodies = [encode_totals(fleets.busy_answer(router, second)) for router in ("a", "b")]
        answer_bytes = len(bodies[0])
        started = time.thread_time()
        fleets.totals.answers = tuple(decode_totals(body) for body in bodies)
        fleets.advisor.tick(float(second))
        taken.append((time.thread_time() - started) * 1e3)
    return Ticks(options.deployments, options.replicas, taken[WARM_TICKS:], answer_bytes, len(fleets.changed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/scaling-tick"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    measured = run(options)
    return report.end(measured.report(), measured.targets(), measured=asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
