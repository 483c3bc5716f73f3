"""For how long does a large index stop the router's event loop?

A router whose index holds two million blocks of two workers serves requests with prompts of 2,000 tokens, as
chats and as token ids, while live frames come in. Every ten seconds a worker begins a new epoch: a million
blocks are dropped and a snapshot of a million arrives. Every five seconds there is a full garbage collection.
A task in the router notes for how long the event loop ran nothing else (harness/watched_router.py).

    python benchmarks/index_pauses.py [--seconds 60] [--blocks 2000000]     # about a minute and a half
"""

import argparse
import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from harness.event_client import Answer, EventClient
from harness.measured_router import Cores, MeasuredRouter, Prompts, measured_router
from harness.report import Report

from warmfleet_cli.bench.figures import Target, percentile

MAX_PAUSE_MS: Final = 20.0
RESTART_SECONDS: Final = 10.0
REQUESTS_PER_SECOND: Final = 10.0
PROMPT_TOKENS: Final = 2000
ANSWER_TOKENS: Final = 10
BODIES: Final = 64
WARM_UP_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Pauses:
    """What was measured."""

    requests: int
    whole: int
    least_blocks: int
    most_blocks: int
    """In the index, over the samples of a second each."""
    snapshots: int
    """Complete ones that came in meanwhile."""
    pause_ms: Sequence[float]
    """Of the event loop, those of at least 3 ms."""
    pause_cpu_ms: Sequence[float]
    """Processor time of the router's main thread within each; the rest may be other processes."""
    collection_ms: Sequence[float]
    """Full collections."""
    collection_cpu_ms: Sequence[float]

    def targets(self) -> list[Target]:
        return [
            Target("answers that are not whole", self.requests - self.whole, 0, at_least=False),
            Target("snapshots", self.snapshots, 1),
            Target("full collections", len(self.collection_ms), 1),
            Target(
                "longest pause of the event loop",
                max(self.pause_ms, default=0.0),
                MAX_PAUSE_MS,
                at_least=False,
                unit=" ms",
            ),
        ]

    def report(self) -> str:
        longest = max(self.pause_ms, default=0.0)
        return (
            f"{self.requests} requests; {self.least_blocks:,} to {self.most_blocks:,} blocks in the index; "
            f"{self.snapshots} snapshots\n"
            f"{len(self.pause_ms)} pauses of 3 ms and more, 99th percentile "
            f"{percentile(self.pause_ms, 99):.1f} ms, longest {longest:.1f} ms\n"
            f"processor time within one pause: {max(self.pause_cpu_ms, default=0.0):.1f} ms at most\n"
            f"{len(self.collection_ms)} full collections, longest "
            f"{max(self.collection_ms, default=0.0):.1f} ms, "
            f"{max(self.collection_cpu_ms, default=0.0):.1f} ms of processor time"
        )


async def fleet_of(router: MeasuredRouter) -> list[dict[str, Any]]:
    """The router's view of each worker."""
    headers = {"authorization": f"Bearer {router.key}"}
    response = await router.http.get(f"{router.url}/internal/fleet", headers=headers)
    endpoints: list[dict[str, Any]] = response.raise_for_status().json()["endpoints"]
    return endpoints


async def ask(client: EventClient, bodies: Sequence[tuple[str, bytes]], seconds: float) -> list[Answer]:
    """Send at a steady rate, whether or not earlier ones were answered."""
    now = asyncio.get_running_loop().time
    started, tasks = now(), []
    for number in range(round(seconds * REQUESTS_PER_SECOND)):
        await asyncio.sleep(max(started + number / REQUESTS_PER_SECOND - now(), 0))
        path, body = bodies[number % len(bodies)]
        tasks.append(asyncio.create_task(client.ask(path, body, uuid.uuid4().hex)))
    return await asyncio.gather(*tasks)


async def sample_blocks(router: MeasuredRouter, seen: list[int]) -> None:
    """Count the index's blocks every second until cancelled."""
    while True:
        seen.append(sum(endpoint["resident_blocks"] for endpoint in await fleet_of(router)))
        await asyncio.sleep(1)


async def run(options: argparse.Namespace, cores: Cores) -> Pauses:
    prompts = Prompts(PROMPT_TOKENS)
    bodies = [
        prompts.shared_prefix(ANSWER_TOKENS) if number % 2 else prompts.token_ids(ANSWER_TOKENS)
        for number in range(BODIES)
    ]
    flags = ("--workers", "2", "--restart-seconds", str(RESTART_SECONDS))
    log = options.output_dir / "router.log"
    blocks: list[int] = []
    fleet = measured_router(
        options.output_dir, cores, blocks=options.blocks, fleet_flags=flags, module="harness.watched_router"
    )
    async with fleet as router:
        client = EventClient(router.url, router.key)
        await ask(client, bodies, WARM_UP_SECONDS)
        snapshots = await snapshot_count(router)
        sampling = asyncio.create_task(sample_blocks(router, blocks))
        since = time.monotonic()
        answers = await ask(client, bodies, options.seconds)
        until = time.monotonic()
        sampling.cancel()
        snapshots = await snapshot_count(router) - snapshots
        client.close()
    seen = next(
        json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith('{"pauses"')
    )
    pauses = [(length, used) for at, length, used in seen["pauses"] if since <= at < until]
    return Pauses(
        requests=len(answers),
        whole=sum(answer.complete for answer in answers),
        least_blocks=min(blocks),
        most_blocks=max(blocks),
        snapshots=snapshots,
        pause_ms=[length * 1e3 for length, _ in pauses],
        pause_cpu_ms=[used * 1e3 for _, used in pauses],
        collection_ms=[length * 1e3 for at, length, _ in seen["collections"] if since <= at < until],
        collection_cpu_ms=[used * 1e3 for at, _, used in seen["collections"] if since <= at < until],
    )


async def snapshot_count(router: MeasuredRouter) -> int:
    """Snapshots that the router has taken from all workers."""
    headers = {"authorization": f"Bearer {router.key}"}
    text = (await router.http.get(f"{router.url}/metrics", headers=headers)).raise_for_status().text
    return int(sum(float(line.split()[-1]) for line in text.splitlines() if 'event="snapshots"' in line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--blocks", type=int, default=2_000_000, help="in the index")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/index-pauses"))
    options = parser.parse_args()
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    report = Report.begin(options, cores.line())
    measured = uvloop.run(run(options, cores))
    return report.end(measured.report(), measured.targets(), pauses=asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
