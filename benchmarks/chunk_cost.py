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
from harness.measured_router import (
    Cores,
    MeasuredRouter,
    Prompts,
    code_path,
    measured_router,
    running_seconds,
)
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

    def line(self) -> str:
        return (
            f"{self.name}: {min(self.chunk_us):.1f} us at least, {median(self.chunk_us):.1f} at the median, "
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
    started, before = loop.time(), running_seconds(router.pid)
    await asyncio.sleep(measured_seconds)
    used, seconds = running_seconds(router.pid) - before, loop.time() - started
    early = sum(answer.done() for answer in answers)
    whole = sum(answer.complete for answer in await asyncio.gather(*answers))
    if early or whole < len(bodies):
        raise RuntimeError(f"{whole} of {len(bodies)} answers are whole, {early} ended while it was measured")
    return used / (seconds * len(bodies) * TOKENS_PER_SECOND) * 1e6


async def turn(options: argparse.Namespace, cores: Cores, checkout: Path | None) -> list[float]:
    """The costs with one process of the router."""
    prompts = Prompts(PROMPT_TOKENS)
    tokens = answer_tokens(options.streams, options.seconds)
    bodies = [prompts.shared_prefix(tokens) for _ in range(options.streams)]
    async with measured_router(options.output_dir, cores, blocks=options.blocks, checkout=checkout) as router:
        client = EventClient(router.url, router.key)
        costs = [await chunk_us(router, client, bodies, options.seconds) for _ in range(options.repeats)]
        client.close()
    return costs


def costs_of(options: argparse.Namespace, cores: Cores) -> list[Cost]:
    """Of this tree, and of the one before if there is one."""
    trees: dict[str, Path | None] = {"now": None}
    if options.before is not None:
        trees = {"before": options.before.resolve(), **trees}
    found: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(options.turns):
        for name, checkout in trees.items():
            found[name] += uvloop.run(turn(options, cores, checkout))
    return [Cost(name, costs) for name, costs in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of this project")
    parser.add_argument("--streams", type=int, default=1500)
    parser.add_argument("--turns", type=int, default=3, help="processes of each router")
    parser.add_argument("--repeats", type=int, default=3, help="in each of these processes")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one of them that are measured")
    parser.add_argument("--blocks", type=int, default=100_000, help="in the index")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/chunk-cost"))
    options = parser.parse_args()
    if options.before is not None:
        try:
            code_path(options.before)
        except ValueError as error:
            parser.error(str(error))
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    report = Report.begin(options, cores.line())
    costs = costs_of(options, cores)
    by_name = {cost.name: median(cost.chunk_us) for cost in costs}
    text = "\n".join(cost.line() for cost in costs)
    targets = []
    if "before" in by_name:
        ratio = by_name["now"] / by_name["before"]
        targets = [Target("chunk's cost now / before, medians", ratio, MOST_RATIO, at_least=False)]
    return report.end(text, targets, chunk_us={cost.name: list(cost.chunk_us) for cost in costs})


if __name__ == "__main__":
    sys.exit(main())
