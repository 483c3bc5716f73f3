"""What does one more streamed chunk cost a router, and what did it cost in an earlier version?

Streams of 5 tokens per second are begun one by one. Then the router's processor time is read twice, and no
stream begins or ends between the two. With `--before CHECKOUT` the router of another checkout is measured
as well, in turns with this one, by the same load generator and stub fleet.

    git worktree add ../before COMMIT
    python benchmarks/chunk_cost.py --before ../before [--streams 1500] [--turns 3]
"""

import argparse
import asyncio
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from harness.event_client import Answer, EventClient
from harness.measured_router import Cores, MeasuredRouter, Prompts, checkout_path, measured_router
from harness.report import Report

from warmfleet_cli.bench.figures import Target, median

TOKENS_PER_SECOND: Final = 5.0
STREAMS_PER_SECOND: Final = 300.0
"""Begun so fast, so that the router is not behind when the last one has begun."""
SETTLED_SECONDS: Final = 1.0
PROMPT_TOKENS: Final = 200
MOST_RATIO: Final = 0.5
"""Of what a chunk cost before streams went from callback to callback (docs/decisions/0030)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time per chunk, in each repetition."""

    name: str
    chunk_us: Sequence[float]

    @property
    def median_us(self) -> float:
        return median(self.chunk_us)

    def line(self) -> str:
        return (
            f"{self.name}: {min(self.chunk_us):.1f} us at least, {self.median_us:.1f} at the median, "
            f"{max(self.chunk_us):.1f} at most, {len(self.chunk_us)} times"
        )


def answer_tokens(streams: int, measured_seconds: float) -> int:
    """Tokens of an answer that is still running at the end of the measured time."""
    seconds = streams / STREAMS_PER_SECOND + SETTLED_SECONDS + measured_seconds + 3
    return int(seconds * TOKENS_PER_SECOND) + 1


async def chunk_us(
    router: MeasuredRouter, client: EventClient, bodies: Sequence[tuple[str, bytes]], measured_seconds: float
) -> float:
    """Of the router, for each chunk of as many streams as there are `bodies`.

    Raises:
        RuntimeError: an answer is not whole: what was measured is not the cost of these streams.
    """
    loop = asyncio.get_running_loop()
    began, answers = loop.time(), list[asyncio.Task[Answer]]()
    for number, (path, body) in enumerate(bodies):
        answers.append(asyncio.create_task(client.ask(path, body, uuid.uuid4().hex)))
        await asyncio.sleep(began + number / STREAMS_PER_SECOND - loop.time())
    await asyncio.sleep(SETTLED_SECONDS)
    started, before = loop.time(), router.usage.cpu_seconds
    await asyncio.sleep(measured_seconds)
    used, seconds = router.usage.cpu_seconds - before, loop.time() - started
    early = sum(answer.done() for answer in answers)
    whole = sum(answer.complete for answer in await asyncio.gather(*answers))
    if early or whole < len(bodies):
        raise RuntimeError(f"{whole} of {len(bodies)} answers are whole, {early} ended while it was measured")
    return used / (seconds * len(bodies) * TOKENS_PER_SECOND) * 1e6


async def turn(options: argparse.Namespace, cores: Cores, python_path: str) -> list[float]:
    """The costs with one process of the router."""
    prompts = Prompts(PROMPT_TOKENS)
    tokens = answer_tokens(options.streams, options.seconds)
    bodies = [prompts.shared_prefix(tokens) for _ in range(options.streams)]
    folder, blocks = options.output_dir, options.blocks
    async with measured_router(folder, cores, blocks=blocks, python_path=python_path) as router:
        client = EventClient(router.url, router.key)
        costs = [await chunk_us(router, client, bodies, options.seconds) for _ in range(options.repeats)]
        client.close()
    return costs


def costs_of(options: argparse.Namespace, cores: Cores) -> list[Cost]:
    """Of this tree, and of the one before if there is one."""
    trees = {"before": options.before, "now": ""} if options.before else {"now": ""}
    found: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(options.turns):
        for name, python_path in trees.items():
            found[name] += uvloop.run(turn(options, cores, python_path))
    return [Cost(name, costs) for name, costs in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--before", type=checkout_path, metavar="CHECKOUT", help="another one of this project"
    )
    parser.add_argument("--streams", type=int, default=1500)
    parser.add_argument("--turns", type=int, default=3, help="processes of each router")
    parser.add_argument("--repeats", type=int, default=3, help="in each of these processes")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one of them that are measured")
    parser.add_argument("--blocks", type=int, default=100_000, help="in the index")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/chunk-cost"))
    options = parser.parse_args()
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    report = Report.begin(options, cores.line())
    costs = costs_of(options, cores)
    text = "\n".join(cost.line() for cost in costs)
    targets = []
    if len(costs) > 1:
        ratio = costs[-1].median_us / costs[0].median_us
        targets = [Target("chunk's cost now / before, medians", ratio, MOST_RATIO, at_least=False)]
    return report.end(text, targets, chunk_us={cost.name: list(cost.chunk_us) for cost in costs})


if __name__ == "__main__":
    sys.exit(main())
