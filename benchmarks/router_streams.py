"""How many streams does one router carry, and what does each chunk cost it?

2,000 lanes ask one request after the other, each answered with 5 tokens per second for 10 seconds, until
10,000 requests are answered. Every answer must be whole: status 200, all its tokens, its usage, `[DONE]`.
Before that, short answers measure what a request costs without its stream, so that the rest is the stream's.

    python benchmarks/router_streams.py [--streams 2000] [--requests 10000]
"""

import argparse
import asyncio
import itertools
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop
from harness.event_client import Answer, EventClient
from harness.measured_router import Cores, Prompts, measured_router
from harness.report import Report

from warmfleet_cli.bench.figures import Target, percentile

TOKENS_PER_SECOND: Final = 5.0
ANSWER_TOKENS: Final = 51
"""The first comes at once, so the last one comes after 10 seconds."""
MIN_TOKENS: Final = 50
MAX_RESIDENT_MIB: Final = 1024
SHORT_REQUESTS: Final = 1000
SHORT_STREAMS: Final = 32
BODIES: Final = 512
"""Different prompts; made before, so that making them takes no time from what is measured."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What was measured."""

    requests: int
    whole: int
    peak_streams: int
    tokens: int
    seconds: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    stream_p99_seconds: float
    router_cpu_seconds: float
    router_peak_mib: float
    others_cpu_seconds: float
    """Of stub fleet and load generator together."""
    request_cpu_ms: float
    """Of the router's core, for a request with an answer of one token."""

    @property
    def chunk_cpu_us(self) -> float:
        """Of the router's core, for each further token of a stream."""
        rest_seconds = self.router_cpu_seconds - self.requests * self.request_cpu_ms / 1e3
        return rest_seconds / max(self.tokens - self.requests, 1) * 1e6

    @property
    def core_use_ratio(self) -> float:
        """How busy the router's core was with it."""
        return self.router_cpu_seconds / self.seconds

    def targets(self) -> list[Target]:
        return [
            Target("answers that are not whole", self.requests - self.whole, 0, at_least=False),
            Target("tokens per answer", self.tokens / self.requests, MIN_TOKENS),
            Target(
                "router's peak memory", self.router_peak_mib, MAX_RESIDENT_MIB, at_least=False, unit=" MiB"
            ),
        ]

    def report(self) -> str:
        return (
            f"{self.requests} requests, at most {self.peak_streams} open at once, {self.seconds:.1f} s\n"
            f"first token p50 {self.first_token_p50_ms:.1f} ms, p99 {self.first_token_p99_ms:.1f} ms; "
            f"whole stream p99 {self.stream_p99_seconds:.2f} s (10.00 s at the worker)\n"
            f"router: {self.router_cpu_seconds:.1f} s of CPU ({self.core_use_ratio:.0%} of its core), "
            f"{self.router_peak_mib:.0f} MiB at its peak; "
            f"stub fleet and load generator {self.others_cpu_seconds / self.seconds:.0%} of one\n"
            f"sizing: {self.request_cpu_ms:.2f} ms of CPU per request + {self.chunk_cpu_us:.0f} us per "
            f"chunk, so at most {1e6 / self.chunk_cpu_us:,.0f} chunks per second per core"
        )


async def ask_all(
    client: EventClient,
    requests: Sequence[tuple[str, bytes]],
    *,
    streams: int,
    count: int,
    spread_seconds: float,
) -> tuple[list[Answer], int]:
    """`count` requests over `streams` lanes that start one by one; the answers and the most open at once."""
    left = iter(range(count))
    bodies = itertools.cycle(requests)
    open_now = peak = 0

    async def lane(number: int) -> list[Answer]:
        nonlocal open_now, peak
        await asyncio.sleep(number / streams * spread_seconds)
        answers = []
        for _ in left:
            path, body = next(bodies)
            open_now += 1
            peak = max(peak, open_now)
            answers.append(await client.ask(path, body, uuid.uuid4().hex))
            open_now -= 1
        return answers

    answers = await asyncio.gather(*(lane(number) for number in range(streams)))
    return list(itertools.chain.from_iterable(answers)), peak


async def run(options: argparse.Namespace, cores: Cores) -> Streams:
    prompts = Prompts(options.prompt_tokens)
    short = [prompts.shared_prefix(1) for _ in range(BODIES)]
    long = [prompts.shared_prefix(ANSWER_TOKENS) for _ in range(BODIES)]
    async with measured_router(options.output_dir, cores, blocks=options.blocks) as router:
        client = EventClient(router.url, router.key)
        await ask_all(client, short, streams=SHORT_STREAMS, count=SHORT_REQUESTS, spread_seconds=0)
        before = router.usage
        await ask_all(client, short, streams=SHORT_STREAMS, count=SHORT_REQUESTS, spread_seconds=0)
        short_seconds = router.usage.cpu_seconds - before.cpu_seconds
        before, others_before = router.usage, router.others_cpu_seconds
        started = time.perf_counter()
        answers, peak = await ask_all(
            client,
            long,
            streams=options.streams,
            count=options.requests,
            spread_seconds=ANSWER_TOKENS / TOKENS_PER_SECOND,
        )
        seconds, after = time.perf_counter() - started, router.usage
        others_seconds = router.others_cpu_seconds - others_before
        client.close()
    first = [(answer.first_token_seconds or float("inf")) * 1e3 for answer in answers]
    return Streams(
        requests=len(answers),
        whole=sum(answer.complete and answer.tokens == ANSWER_TOKENS for answer in answers),
        peak_streams=peak,
        tokens=sum(answer.tokens for answer in answers),
        seconds=seconds,
        first_token_p50_ms=percentile(first, 50),
        first_token_p99_ms=percentile(first, 99),
        stream_p99_seconds=percentile([answer.total_seconds for answer in answers], 99),
        router_cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        router_peak_mib=after.peak_resident_bytes / 2**20,
        others_cpu_seconds=others_seconds,
        request_cpu_ms=short_seconds / SHORT_REQUESTS * 1e3,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=100_000, help="in the index")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/router-streams"))
    options = parser.parse_args()
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    report = Report.begin(options, cores.line())
    measured = uvloop.run(run(options, cores))
    derived = {"chunk_cpu_us": measured.chunk_cpu_us, "core_use_ratio": measured.core_use_ratio}
    return report.end(measured.report(), measured.targets(), streams=asdict(measured) | derived)


if __name__ == "__main__":
    sys.exit(main())
