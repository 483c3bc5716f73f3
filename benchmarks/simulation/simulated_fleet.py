"""How long does a simulation of a large fleet take, and how much memory?

Independent requests of 2,000 tokens in and 200 out, KV blocks of 128 tokens, on a thousand replicas, as
`warmfleet simulate --generate steady --replicas 1000 --block-size 128` would. A tenth of the way at a time is
printed, so that a run that is ended early has figures, too.

    PYTHONPATH=benchmarks python benchmarks/simulation/simulated_fleet.py [--requests 1000000]

A million takes about an hour.
"""

import argparse
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_simulator.hardware import replica_settings
from warmfleet_simulator.progress import Progress
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.workloads.steady import Steady

MAX_REQUEST_MS: Final = 3.6
"""A million requests in an hour."""
MAX_GIB: Final = 6.0
BLOCK_TOKENS: Final = 128
TENTHS: Final = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """What a simulation has taken when so many requests have arrived."""

    requests: int
    wall_seconds: float
    cpu_seconds: float
    memory_gib: float
    """Resident, at most so far."""

    def __str__(self) -> str:
        return (
            f"{self.requests:>9,} requests  {self.wall_seconds:8,.0f} s  {self.cpu_seconds:8,.0f} s of a core"
            f"  {self.memory_gib:5.2f} GiB"
        )


class Meter:
    """Measures the process at each tenth of a run."""

    def __init__(self, requests: int) -> None:
        self.costs: list[Cost] = []
        self._every = max(requests // TENTHS, 1)
        self._wall_start, self._cpu_start = time.monotonic(), time.process_time()

    def arrived(self, progress: Progress) -> None:
        """One more request has arrived."""
        if progress.requests % self._every == 0:
            self.measure(progress.requests)

    def measure(self, requests: int) -> Cost:
        """What it has taken until now."""
        cost = Cost(
            requests,
            time.monotonic() - self._wall_start,
            time.process_time() - self._cpu_start,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        )
        self.costs.append(cost)
        print(cost, flush=True)
        return cost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5.0, help="requests per second and replica")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--model", default="Llama-3.1-8B")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/simulated-fleet"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    workload = Steady(requests=options.requests, requests_per_second=options.rate * options.replicas)
    settings = SimulationSettings(
        replica=replica_settings(options.gpu, options.model, block_size_tokens=BLOCK_TOKENS),
        replicas=options.replicas,
        routing="LowestCost",
    )
    meter = Meter(options.requests)
    fleet = simulate(workload.generate(), settings, on_progress=meter.arrived)
    whole = meter.measure(fleet.requests)
    text = (
        f"{fleet.requests:,} requests in {fleet.virtual_seconds:,.0f} virtual seconds, {fleet.answered:,} "
        f"answered, {fleet.steps:,} steps, {fleet.evicted_blocks:,} blocks evicted"
    )
    request_ms = 1e3 * whole.wall_seconds / fleet.requests
    targets = [
        Target("time per request", request_ms, MAX_REQUEST_MS, at_least=False, unit=" ms"),
        Target("memory", whole.memory_gib, MAX_GIB, at_least=False, unit=" GiB"),
    ]
    return report.end(
        text,
        targets,
        costs=[asdict(cost) for cost in meter.costs],
        answered=fleet.answered,
        refused=fleet.refused,
    )


if __name__ == "__main__":
    sys.exit(main())
