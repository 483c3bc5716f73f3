"""Replicas that stay compute what a victim holds: by how much are their live streams slowed down meanwhile?

Workers sleep for the modelled time of each step, as in `ramp`. Each of three holds long streams and its part
of a hot set; then nothing but these streams runs, and `kubectl scale` takes one replica away. Until its pod
is deleted the others compute what only it holds, at idle priority: their streams' time between tokens is
compared with that of the seconds before.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import httpx

from scaling.newcomer import decisions
from scaling.scenario import WAIT_SECONDS, Outcome, is_leaving, release_samples, scaling_fleet, wait_serving
from scaling.sleeping_workers import SeededQuestion, add_sleeping_image, random_tokens, sleeping_deployment
from warmfleet_cli.bench.client import ask, benchmark_client
from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_contracts.metrics import ROUTER_HANDOVER_PREFIXES, ROUTER_HANDOVER_TOKENS
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import QUICK_VALUES, Installed

NAME: Final = "prewarm"
REPLICAS: Final = 3
STREAMS: Final = 6
STREAM_TOKENS: Final = 900
SEATS: Final = 16
KV_CACHE: Final = "8Mi"
"""Room for 16,384 tokens of the tiny model."""
PREFIXES: Final = 24
PREFIX_TOKENS: Final = 96
ASKED_TIMES: Final = 4
"""Each prefix, before it is handed over: one that was asked for once is worth nothing."""
QUIET_SECONDS: Final = 15.0
MAX_DELAY: Final = 1.10


@dataclass
class Stream:
    """One long stream, read in the thread of `Streams`."""

    request_id: str
    tokens_at: list[float] = field(default_factory=list)
    error: str = ""

    def gaps(self, start: float, end: float) -> list[float]:
        """Seconds between tokens that both came within the time."""
        times = [at for at in self.tokens_at if start <= at < end]
        return [after - before for before, after in itertools.pairwise(times)]


class Streams:
    """Long streams that begin at once, in a thread of their own."""

    def __init__(self, url: str) -> None:
        self.all = [Stream(f"stream-{number}") for number in range(STREAMS)]
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End those that still run; returns when all have ended."""
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.cancel)
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        self._loop.run_until_complete(self._read_all())
        self._loop.close()

    async def _read_all(self) -> None:
        async with benchmark_client() as client:
            draw = random.Random(2)
            for stream in self.all:
                self._tasks.append(asyncio.create_task(self._read(client, stream, random_tokens(draw, 16))))
                await asyncio.sleep(0.2)  # the router knows of the one before
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, client: httpx.AsyncClient, stream: Stream, tokens: Sequence[int]) -> None:
        question = SeededQuestion(stream.request_id, NAME, tokens, STREAM_TOKENS)
        try:
            async with client.stream(
                "POST",
                f"{self._url}/v1/completions",
                json=question.body(),
                headers={REQUEST_ID_HEADER: stream.request_id},
            ) as response:
                if response.status_code != httpx.codes.OK:
                    stream.error = (await response.aread())[:200].decode(errors="replace")
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        stream.tokens_at.append(time.monotonic())
        except httpx.HTTPError as error:
            stream.error = repr(error)


@dataclass(frozen=True, slots=True)
class Measured:
    """The streams of workers that stay."""

    streams: int
    quiet_gaps: int
    quiet_ms: float
    """Mean time between two tokens in the seconds before."""
    quiet_p95_ms: float
    prewarm_gaps: int
    prewarm_ms: float
    """The same from the new number until the victim is deleted."""
    prewarm_p95_ms: float
    prewarm_seconds: float
    computed_tokens: float
    """By the workers that stay, as routers counted them."""
    prefixes: Mapping[str, float]
    """What became of the hot set, as routers counted it."""
    failed: int

    @property
    def delay(self) -> float:
        return self.prewarm_ms / self.quiet_ms if self.quiet_ms else float("nan")


def deployment() -> dict[str, Any]:
    return sleeping_deployment(
        NAME,
        SEATS,
        replicas=REPLICAS,
        model_length_tokens=1024,
        kvCache={"size": KV_CACHE},
        rollout={"drainTimeoutSeconds": 30},
    )


async def _warm(url: str) -> int:
    """Every prefix is asked for several times, from all workers; returns how many requests failed."""
    draw = random.Random(1)
    prefixes = [random_tokens(draw, PREFIX_TOKENS) for _ in range(PREFIXES)]
    failed = 0
    async with benchmark_client() as client:
        for round_number in range(ASKED_TIMES):
            answers = await asyncio.gather(
                *(
                    ask(
                        client,
                        url,
                        SeededQuestion(
                            f"warm-{round_number}-{number}", NAME, [*prefix, *random_tokens(draw, 16)], 1
                        ),
                    )
                    for number, prefix in enumerate(prefixes)
                )
            )
            failed += sum(not answer.succeeded for answer in answers)
    return failed


def workers_of(fleet: Installed) -> dict[str, str]:
    """Uids of pods, by the request that each serves."""
    return {str(one["request_id"]): str(one["uid"]) for one in decisions(fleet, NAME)}


def measure(options: argparse.Namespace) -> Outcome:
    """One shrink."""
    del options
    with scaling_fleet(QUICK_VALUES) as fleet:
        add_sleeping_image(fleet.cluster)
        fleet.apply(deployment())
        wait_serving(fleet, NAME, REPLICAS)
        failed = asyncio.run(_warm(fleet.router_url))
        streams = Streams(fleet.router_url)
        try:
            eventually(lambda: all(len(one.tokens_at) > 2 for one in streams.all), seconds=WAIT_SECONDS)
            quiet_from = time.monotonic()
            time.sleep(QUIET_SECONDS)
            shrunk_at = time.monotonic()
            fleet.kubectl("scale", "modeldeployment", NAME, f"--replicas={REPLICAS - 1}")
            pods = eventually(
                lambda: fleet.pods(NAME), lambda found: any(map(is_leaving, found)), seconds=WAIT_SECONDS
            )
            deleted_at = time.monotonic()
            (victim,) = [pod["metadata"]["uid"] for pod in pods if is_leaving(pod)]
        finally:
            streams.cut()
        served_by = workers_of(fleet)
        computed = sum(release_samples(fleet, "router", f"{ROUTER_HANDOVER_TOKENS}_total").values())
        prefixes = release_samples(fleet, "router", f"{ROUTER_HANDOVER_PREFIXES}_total")
    staying = [one for one in streams.all if served_by[one.request_id] != victim]
    quiet = [gap for one in staying for gap in one.gaps(quiet_from, shrunk_at)]
    during = [gap for one in staying for gap in one.gaps(shrunk_at, deleted_at)]
    measured = Measured(
        streams=len(staying),
        quiet_gaps=len(quiet),
        quiet_ms=1e3 * statistics.fmean(quiet),
        quiet_p95_ms=1e3 * statistics.quantiles(quiet, n=20)[-1],
        prewarm_gaps=len(during),
        prewarm_ms=1e3 * statistics.fmean(during),
        prewarm_p95_ms=1e3 * statistics.quantiles(during, n=20)[-1],
        prewarm_seconds=deleted_at - shrunk_at,
        computed_tokens=computed,
        prefixes={labels.split('"')[1]: count for labels, count in prefixes.items()},
        failed=failed + sum(bool(one.error) for one in streams.all),
    )
    return _outcome(measured)


def _outcome(measured: Measured) -> Outcome:
    figures: Mapping[str, object] = asdict(measured)
    return Outcome(
        f"{measured.streams} streams of workers that stay: {measured.quiet_ms:.1f} ms between tokens before "
        f"(p95 {measured.quiet_p95_ms:.1f}), {measured.prewarm_ms:.1f} ms meanwhile (p95 "
        f"{measured.prewarm_p95_ms:.1f}), in {measured.prewarm_seconds:.1f} s in which they computed "
        f"{measured.computed_tokens:.0f} tokens of the victim's",
        [
            Target("failed requests", measured.failed, 0, at_least=False),
            Target("streams of workers that stay", measured.streams, 1),
            Target("tokens that were computed at idle priority", measured.computed_tokens, PREFIX_TOKENS),
            Target(
                "time between tokens meanwhile, of that before", measured.delay, MAX_DELAY, at_least=False
            ),
        ],
        figures,
    )
