"""How much of the hit rate does a shrink cost?

Three workers, processes of their own, whose runner computes nothing and sleeps for the modelled time of each
step; all else of them is as it ships, and so are two routers in front of them. Prompts begin with one of many
prefixes, drawn by a power law, and end with tokens of their own; answers are short. All prefixes together
take 0.7 of the KV caches of two workers, and what prompts do not share fills the rest: no block stays free.
One worker goes while requests go on: hit rate of the last 200 prompts before, and of the first 200 after, in
three ways. The youngest goes, as Kubernetes chooses; the one goes of which least is lost, as the operator
chooses; and the same after its prefixes were handed over.

    PYTHONPATH=tests/support python benchmarks/handover.py    # about six minutes
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, decode_totals
from warmfleet_contracts.cache.handover import (
    HANDOVER_PATH,
    HandoverAnswer,
    decode_handover_answer,
    encode_handover,
    shared_out,
)
from warmfleet_operator.replicas.shrink_step import MOVING_SECONDS
from warmfleet_operator.replicas.shrinks import PAYBACK_SECONDS
from warmfleet_operator.scaling.shrink import unique_value
from warmfleet_operator.scaling.signals import Reading, newest_reports
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.step_times import StepTimes
from warmfleet_testing.engine.worker_process import TINY_NAME, WorkerProcess
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.router_process import RouterProcess, router_process
from warmfleet_testing.truth.live_fleet import sleeping_workers

WORKERS: Final = 3
ROUTERS: Final = 2
PREFIX_TOKENS: Final = 480
OWN_TOKENS: Final = 32
ANSWER_TOKENS: Final = 4
PREFIXES: Final = 40
WORKING_SET: Final = 0.7
"""Of the KV caches of the workers that stay."""
BLOCK_SIZE_TOKENS: Final = 16
COUNTED: Final = 200
REQUESTS_PER_SECOND: Final = 10.0
WARM_REQUESTS: Final = 500
"""Before the shrink: routers count uses every half a minute."""
VOCABULARY: Final = 250
MILLISECOND_PS: Final = 10**9
REPLICA: Final = ReplicaSettings(
    StepTimes(
        base_ps=4 * MILLISECOND_PS,
        prefill_token_ps=MILLISECOND_PS // 5,
        decode_ps=MILLISECOND_PS // 2,
        context_token_ps=0,
    ),
    block_size_tokens=BLOCK_SIZE_TOKENS,
    total_blocks=round(PREFIXES * PREFIX_TOKENS / WORKING_SET / (WORKERS - 1) / BLOCK_SIZE_TOKENS),
    seats=16,
)
WAYS: Final = ("youngest", "least lost", "handed over")
LEAST_RATIO: Final = 0.95


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was answered."""

    began_seconds: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Shrink:
    """One worker that went."""

    way: str
    victim: str
    before: float
    """Share of prompt tokens that was cached."""
    after: float
    failed: int
    moved_prefixes: int = 0
    computed_tokens: int = 0
    seconds: float = 0.0
    """The handover."""

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else 0.0


def prompts(seed: int) -> Iterator[list[int]]:
    """Prompts without end."""
    drawn = random.Random(seed)
    prefixes = [[drawn.randrange(VOCABULARY) for _ in range(PREFIX_TOKENS)] for _ in range(PREFIXES)]
    weights = [1 / (place + 4) for place in range(PREFIXES)]
    while True:
        [prefix] = drawn.choices(prefixes, weights)
        yield [*prefix, *(drawn.randrange(VOCABULARY) for _ in range(OWN_TOKENS))]


def hit_rate(asked: Sequence[Asked]) -> float:
    return sum(one.cached_tokens for one in asked) / max(sum(one.prompt_tokens for one in asked), 1)


class Load:
    """Sends prompts at a steady rate, to all routers in turn."""

    def __init__(self, client: httpx.AsyncClient, routers: Sequence[RouterProcess], seed: int) -> None:
        self.asked: list[Asked] = []
        self.failed = 0
        self._client = client
        self._routers = routers
        self._prompts = prompts(seed)
        self._sent = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._ask(next(self._prompts), self._routers[self._sent % ROUTERS].url))
                self._sent += 1
                await asyncio.sleep(1 / REQUESTS_PER_SECOND)

    async def until(self, count: int, *, since: float = 0.0) -> list[Asked]:
        """The first requests that began since then, once so many were answered."""
        while True:
            found = [one for one in self.asked if one.began_seconds >= since]
            if len(found) >= count:
                return found[:count]
            await asyncio.sleep(0.1)

    async def _ask(self, prompt: list[int], url: str) -> None:
        began = time.monotonic()
        # The seed is the id of each token of the answer.
        body = {"model": TINY_NAME, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "seed": prompt[-1]}
        response = await self._client.post(f"{url}/v1/completions", json=body)
        if response.status_code != 200:
            self.failed += 1
            return
        usage = response.json()["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.asked.append(Asked(began, usage["prompt_tokens"], cached))


async def victim_of(client: httpx.AsyncClient, routers: Sequence[RouterProcess]) -> str:
    """As the operator chooses."""
    answers = [await client.get(f"{router.url}{FLEET_TOTALS_PATH}") for router in routers]
    reports = newest_reports([Reading(decode_totals(answer.content)) for answer in answers])
    return min(reports.values(), key=lambda report: (unique_value(report), report.uid)).uid


async def hand_over(
    client: httpx.AsyncClient, routers: Sequence[RouterProcess], victim: str
) -> list[HandoverAnswer]:
    """As the operator asks for it."""
    requests = shared_out((victim,), ROUTERS, seconds=MOVING_SECONDS, payback_seconds=PAYBACK_SECONDS)
    asked = [
        client.post(f"{router.url}{HANDOVER_PATH}", content=encode_handover(request))
        for router, request in zip(routers, requests, strict=True)
    ]
    return [decode_handover_answer(answer.content) for answer in await asyncio.gather(*asked)]


async def shrink(
    way: str, workers: Mapping[str, WorkerProcess], routers: Sequence[RouterProcess], seed: int
) -> Shrink:
    async with httpx.AsyncClient(timeout=60, verify=NO_TLS, trust_env=False) as client:
        load = Load(client, routers, seed)
        running = asyncio.create_task(load.run())
        try:
            await load.until(WARM_REQUESTS)
            victim = max(workers) if way == "youngest" else await victim_of(client, routers)
            answers = await hand_over(client, routers, victim) if way == "handed over" else []
            before = hit_rate(load.asked[-COUNTED:])
            workers[victim].process.terminate()
            after = await load.until(COUNTED, since=time.monotonic())
            return Shrink(
                way,
                victim,
                before,
                hit_rate(after),
                load.failed,
                sum(answer.moved_prefixes for answer in answers),
                sum(answer.computed_tokens for answer in answers),
                max((answer.seconds for answer in answers), default=0.0),
            )
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@contextmanager
def fleet(home: Path) -> Iterator[tuple[dict[str, WorkerProcess], list[RouterProcess]]]:
    with ExitStack() as stack:
        workers = stack.enter_context(sleeping_workers(home, REPLICA, WORKERS))
        routers = []
        for number in range(ROUTERS):
            of_router = home / f"router-{number}"
            of_router.mkdir()
            routers.append(stack.enter_context(router_process(workers, of_router)))
        yield workers, routers


def table(shrinks: Sequence[Shrink]) -> str:
    lines = [f"{'victim':12} {'before':>7} {'after':>7} {'ratio':>6} {'moved':>6} {'tokens':>7} {'s':>5}"]
    lines += [
        f"{one.way:12} {one.before:7.1%} {one.after:7.1%} {one.ratio:6.3f} {one.moved_prefixes:6} "
        f"{one.computed_tokens:7} {one.seconds:5.2f}"
        for one in shrinks
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="shrinks of each way")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    shrinks = []
    for seed in range(options.seeds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as home, fleet(Path(home)) as (workers, routers):
                shrinks.append(asyncio.run(shrink(way, workers, routers, seed)))
            print(shrinks[-1], flush=True)
    handed_over = [one.ratio for one in shrinks if one.way == "handed over"]
    targets = [
        Target("hit rate after a handover, of that before", statistics.fmean(handed_over), LEAST_RATIO),
        Target("failed requests", sum(one.failed for one in shrinks), 0, at_least=False),
    ]
    return report.end(table(shrinks), targets, shrinks=[asdict(one) for one in shrinks])


if __name__ == "__main__":
    sys.exit(main())
