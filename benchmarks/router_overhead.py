"""What does the router add to the time to the first token, and how long does a decision take?

Each of the lanes sends the same request once straight to a stub worker and once through the router, in an
order drawn anew each time, the second as soon as the first has its first token. So at any time as many
streams run through the router as there are lanes, as many run beside it, and a disturbance affects both
of a pair. What counts is the difference within a pair.

    python benchmarks/router_overhead.py [--streams 32] [--pairs 320] [--blocks 100000]
"""

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop
from harness.event_client import Answer, EventClient
from harness.measured_router import Cores, MeasuredRouter, Prompts, measured_router
from harness.report import Report

from warmfleet_cli.bench.figures import Target, percentile

ADDED_MS: Final = 5.0
DECISION_P50_MS: Final = 2.0
DECISION_P95_MS: Final = 15.0
TOKENS_PER_SECOND: Final = 5.0
RESAMPLES: Final = 2000

MakeRequest = Callable[[int], tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Variant:
    """What was measured with one kind of prompt."""

    name: str
    pairs: int
    failed: int
    prompt_tokens: float
    direct_ms: float
    through_ms: float
    added_ms: float
    """Median of the differences within pairs, and the 95 % interval of it."""
    added_low_ms: float
    added_high_ms: float
    added_total_ms: float
    """The same difference to the end of the stream."""
    decision_p50_ms: float
    decision_p95_ms: float
    decision_p99_ms: float
    router_cpu_ms: float
    """Of the router's core, per request and its stream."""
    precise: float
    """Share of decisions that the index could answer."""
    parity_bugs: int
    """Prompts that router and worker hashed differently."""

    def targets(self) -> list[Target]:
        """What this variant must reach."""
        limits = (
            ("pairs failed", self.failed, 0, ""),
            ("parity bugs", self.parity_bugs, 0, ""),
            ("added at the median", self.added_ms, ADDED_MS, " ms"),
            ("decision p50", self.decision_p50_ms, DECISION_P50_MS, " ms"),
            ("decision p95", self.decision_p95_ms, DECISION_P95_MS, " ms"),
        )
        return [
            Target(f"{self.name}: {name}", measured, limit, at_least=False, unit=unit)
            for name, measured, limit, unit in limits
        ]


def median_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the median, by bootstrap (Efron 1979, percentile method)."""
    drawn = random.Random(seed)
    medians = [statistics.median(drawn.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return percentile(medians, 2.5), percentile(medians, 97.5)


class Lanes:
    """Sends the pairs of one variant."""

    def __init__(self, through: EventClient, direct: Sequence[EventClient], *, answer_tokens: int) -> None:
        self._through = through
        self._direct = itertools.cycle(direct)
        self._answer_tokens = answer_tokens
        self._random = random.Random(1)

    async def pairs(self, make: MakeRequest, *, lanes: int, count: int) -> list[tuple[Answer, Answer, str]]:
        """`count` pairs (direct, through, request id of the latter) over `lanes` lanes."""
        left = iter(range(count))

        async def lane(number: int) -> list[tuple[Answer, Answer, str]]:
            # Lanes start spread over the length of a stream, and stay so.
            await asyncio.sleep(number / lanes * self._answer_tokens / TOKENS_PER_SECOND)
            return [await self._pair(make) for _ in left]

        done = await asyncio.gather(*(lane(number) for number in range(lanes)))
        return list(itertools.chain.from_iterable(done))

    async def _pair(self, make: MakeRequest) -> tuple[Answer, Answer, str]:
        path, body = make(self._answer_tokens)
        request_id = uuid.uuid4().hex
        clients = [next(self._direct), self._through]
        order = self._random.sample((0, 1), 2)
        begun: dict[int, asyncio.Task[Answer]] = {}
        for position in order:
            first_token = asyncio.Event()
            begun[position] = asyncio.create_task(
                clients[position].ask(path, body, request_id, on_first_token=first_token.set)
            )
            await first_token.wait()
        return await begun[0], await begun[1], request_id


async def measure(
    name: str, make: MakeRequest, lanes: Lanes, router: MeasuredRouter, options: argparse.Namespace
) -> Variant:
    """One variant, after a few pairs that do not count."""
    await lanes.pairs(make, lanes=options.streams, count=options.streams)
    before = router.usage
    pairs = await lanes.pairs(make, lanes=options.streams, count=options.pairs)
    used = router.usage.cpu_seconds - before.cpu_seconds
    ids = {request_id for _, _, request_id in pairs}
    decisions = [one for one in await router.decisions(4096) if one["request_id"] in ids]
    whole = [(direct, through) for direct, through, _ in pairs if direct.complete and through.complete]
    added = [
        (through.first_token_seconds - direct.first_token_seconds) * 1e3
        for direct, through in whole
        if direct.first_token_seconds is not None and through.first_token_seconds is not None
    ]
    times = [one["decision_ms"] for one in decisions]
    low, high = median_interval(added)
    return Variant(
        name=name,
        pairs=len(pairs),
        failed=len(pairs) - len(added),
        prompt_tokens=statistics.fmean(one["prompt_tokens"] for one in decisions),
        direct_ms=statistics.median((direct.first_token_seconds or 0) * 1e3 for direct, _ in whole),
        through_ms=statistics.median((through.first_token_seconds or 0) * 1e3 for _, through in whole),
        added_ms=statistics.median(added),
        added_low_ms=low,
        added_high_ms=high,
        added_total_ms=statistics.median(
            (through.total_seconds - direct.total_seconds) * 1e3 for direct, through in whole
        ),
        decision_p50_ms=percentile(times, 50),
        decision_p95_ms=percentile(times, 95),
        decision_p99_ms=percentile(times, 99),
        router_cpu_ms=used / len(pairs) * 1e3,
        precise=statistics.fmean(one["mode"] == "precise" for one in decisions),
        parity_bugs=sum(one.get("last_block_matches") is False for one in decisions),
    )


async def run(options: argparse.Namespace, cores: Cores) -> list[Variant]:
    prompts = Prompts(options.prompt_tokens)
    makers: dict[str, MakeRequest] = {
        "shared-prefix chat": prompts.shared_prefix,
        "unique text": prompts.unique_text,
        "token ids": prompts.token_ids,
    }
    async with measured_router(options.output_dir, cores, blocks=options.blocks) as router:
        through = EventClient(router.url, router.key)
        direct = [EventClient(url, token) for url, token in router.workers]
        lanes = Lanes(through, direct, answer_tokens=options.answer_tokens)
        measured = [await measure(name, make, lanes, router, options) for name, make in makers.items()]
        for client in (through, *direct):
            client.close()
    return measured


def table(measured: Sequence[Variant]) -> str:
    columns = {
        "prompt tokens": "{0.prompt_tokens:.0f}",
        "direct": "{0.direct_ms:.2f}",
        "through": "{0.through_ms:.2f}",
        "added [95 %]": "{0.added_ms:.2f} [{0.added_low_ms:.2f}, {0.added_high_ms:.2f}]",
        "to the end": "{0.added_total_ms:.2f}",
        "decision p50/p95/p99": "{0.decision_p50_ms:.2f}/{0.decision_p95_ms:.2f}/{0.decision_p99_ms:.2f}",
        "CPU": "{0.router_cpu_ms:.2f}",
    }
    lines = [f"{'milliseconds':20}" + "".join(f"{name:>23}" for name in columns)]
    lines += [
        f"{one.name:20}" + "".join(f"{form.format(one):>23}" for form in columns.values()) for one in measured
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=320, help="of each variant")
    parser.add_argument("--blocks", type=int, default=100_000, help="in the index")
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--answer-tokens", type=int, default=10, help="at 5 tokens per second")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/router-overhead"))
    options = parser.parse_args()
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    report = Report.begin(options, cores.line())
    measured = uvloop.run(run(options, cores))
    targets = [target for variant in measured for target in variant.targets()]
    head = f"{options.streams} streams, {options.blocks} blocks in the index, LowestCost, keys on"
    variants = [asdict(variant) for variant in measured]
    return report.end(f"{head}\n{table(measured)}", targets, variants=variants)


if __name__ == "__main__":
    sys.exit(main())
