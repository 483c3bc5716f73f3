"""What does `/internal/fleet/totals` cost a router?

A router's endpoint over 100 and over 1,000 workers that reported a load, with ten and a hundred models, each
with a full histogram. The endpoint is called in this process, as the server calls it, without HTTP. Its
milliseconds are those in which the router's event loop runs nothing else, once per second for each operator.

    python benchmarks/fleet_totals.py [--calls 300]     # ten seconds
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line
from starlette.requests import Request

from warmfleet_cli.bench.figures import Target, percentile
from warmfleet_contracts.cache.fleet_totals import MissTokens
from warmfleet_contracts.cache.kv_events import Frame, Hello, LoadReport, StepTimeFit, encode_message
from warmfleet_router.api.fleet_totals import FleetTotalsEndpoint
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.economics.model_counts import ModelCounts
from warmfleet_router.workers.fleet import Fleet

MAX_MS_PER_100: Final = 2.0
MAX_KIB_PER_100: Final = 64.0
LOAD: Final = LoadReport(
    running_sequences=256,
    waiting_sequences=123,
    max_running_sequences=256,
    queued_uncached_tokens=987_654,
    context_tokens=1_234_567,
    total_blocks=123_456,
    pinned_blocks=103_456,
    cached_blocks=20_000,
    step_time=StepTimeFit(
        base_seconds=0.0123,
        per_prefill_token_seconds=1.2e-5,
        per_decode_sequence_seconds=1.2e-4,
        per_context_token_seconds=1.2e-8,
        samples=1_000,
    ),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call."""

    replicas: int
    models: int
    p50_ms: float
    p95_ms: float
    kib: float

    def targets(self) -> list[Target]:
        hundreds = self.replicas / 100
        name = f"{self.replicas} replicas"
        return [
            Target(f"{name}, p95", self.p95_ms, MAX_MS_PER_100 * hundreds, at_least=False, unit=" ms"),
            Target(f"{name}, body", self.kib, MAX_KIB_PER_100 * hundreds, at_least=False, unit=" KiB"),
        ]


class ReportedLoads:
    """Event streams that bring a hello and one load report, and stay open."""

    async def open(
        self, endpoint: Endpoint, epoch: str, after: int, nonce: bytes, versions: AbstractSet[int]
    ) -> AsyncGenerator[bytes, None]:
        del epoch, after, nonce, versions
        yield encode_message(
            Hello(
                uid=endpoint.uid,
                identity=b"identity-of-16by",
                block_size_tokens=16,
                window_tokens=0,
                epoch=f"epoch-of-{endpoint.uid}",
                served_names=["model"],
                tokenizer_digest="t",
                max_model_length_tokens=100_000,
                proof=b"",
            )
        )
        yield encode_message(Frame(epoch=f"epoch-of-{endpoint.uid}", seq=0, snapshot_left=0, load=LOAD))
        await asyncio.Event().wait()


def busy_counts(models: int) -> ModelCounts:
    """Days of traffic: every bucket of the latencies that occur is filled."""
    counts = ModelCounts()
    for number in range(models):
        count = counts.of(f"organisation/model-of-70b-{number}")
        misses = MissTokens(compulsory=123_456_789, placement=12_345_678, capacity=1_234_567)
        count.answered(987_654_321, 850_617_287, misses)
        for step in range(50):
            count.first_token.add(20 * 1.12**step, 12_345)
        for step in range(30):
            count.inter_token.add(5 * 1.12**step, 1_234_567)
    return counts


async def measure(replicas: int, models: int, calls: int) -> Cost:
    """One fleet."""
    changed = asyncio.Event()
    fleet = Fleet(StaticDiscovery([]), ReportedLoads(), on_change=changed.set)
    names = [f"{number:08d}-9f4c-4a8e-b1d6-3c2f8e7a9b01" for number in range(replicas)]
    await fleet.reconcile(
        Discovered(tuple(Endpoint(uid=name, name=name, url="http://10.0.0.1:8000") for name in names))
    )
    while not all(worker.ready for worker in fleet.workers()):
        changed.clear()
        await changed.wait()
    endpoint = FleetTotalsEndpoint(
        life_id="warmfleet-router-6b7f9c5d84-x2v9k-0123abcd",
        fleet=fleet,
        waits=dict,
        counts=busy_counts(models),
    )
    request = Request({"type": "http"})
    milliseconds, size = [], 0
    for _ in range(calls):
        began = time.perf_counter()
        response = await endpoint.totals(request)
        milliseconds.append((time.perf_counter() - began) * 1e3)
        size = len(response.body)
    await fleet.stop()
    return Cost(replicas, models, statistics.median(milliseconds), percentile(milliseconds, 95), size / 1024)


def table(costs: Sequence[Cost]) -> str:
    """Rows for people."""
    rows = [
        f"{cost.replicas:>8} {cost.models:>6} {cost.p50_ms:>9.2f} {cost.p95_ms:>9.2f} {cost.kib:>9.1f}"
        for cost in costs
    ]
    return "\n".join((f"{'replicas':>8} {'models':>6} {'p50 ms':>9} {'p95 ms':>9} {'KiB':>9}", *rows))


def main() -> int:
    """Exit code 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/fleet-totals"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    costs = [asyncio.run(measure(*size, options.calls)) for size in ((100, 10), (1_000, 100))]
    targets = [target for cost in costs for target in cost.targets()]
    return report.end(table(costs), targets, costs=[asdict(cost) for cost in costs])


if __name__ == "__main__":
    sys.exit(main())
