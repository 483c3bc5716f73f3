"""Runs `bench prefix`: every policy on the same fleet and workload."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warmfleet_cli.bench.client import benchmark_client
from warmfleet_cli.bench.fleet import BenchFleet, WorkerShape, bench_fleet
from warmfleet_cli.bench.observer import Observer
from warmfleet_cli.bench.open_loop import Sender, choose_rate, send_at_saturation, send_when_due
from warmfleet_cli.bench.prefix.results import RunResult
from warmfleet_cli.bench.prefix.reusable import reusable_tokens
from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.bench.variants import Variant
from warmfleet_cli.bench.workload import PrefixWorkload, distinct_prompts, plan_run

ALL_POLICIES: Final = ("LowestCost", "LeastLoaded", "RoundRobin", "ConsistentHash")
DEFAULT_POLICIES: Final = ("LowestCost", "RoundRobin")
CALIBRATION_POLICY: Final = "RoundRobin"
"""The policy with the least reuse: a rate below its saturation is below that of every other."""

TWO_ROUTERS: Final = Variant("LowestCost", routers=2)

_CALIBRATION_GROUPS_RATIO: Final = 0.4
_IN_FLIGHT_PER_WORKER: Final = 4
_RUN_OVERHEAD_SECONDS: Final = 3.0
"""Per run: clearing caches, and the last answers after the last arrival."""


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """One `bench prefix`."""

    shape: WorkerShape
    vocabulary: range
    workload: PrefixWorkload
    policies: Sequence[str] = DEFAULT_POLICIES
    workers: int = 3
    repeats: int = 3
    time_limit_seconds: float = 360.0
    seed: int = 0

    @property
    def variants(self) -> list[Variant]:
        """Every policy behind one router, and LowestCost behind two."""
        return [*(Variant(policy) for policy in self.policies), TWO_ROUTERS]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured saturation, and the request rate chosen from it."""

    saturation_per_second: float
    rate_per_second: float
    total_blocks: int
    """KV blocks of the whole fleet."""
    resident_ratio: float
    """The workload's resident set over the fleet's KV, as the workers report its size."""


async def run_prefix_bench(
    settings: PrefixSettings, log_folder: Path, observer: Observer
) -> tuple[Calibration, list[RunResult]]:
    """Start the fleet, measure its saturation, and run every variant `repeats` times in turn.

    Raises:
        BenchError: the fleet does not start, or a request fails during calibration.
    """
    clock = asyncio.get_running_loop().time
    start = clock()
    observer.stage(f"Starting {settings.workers} workers and the routers", 1)
    async with _fleet(settings, log_folder) as fleet:
        observer.advance()
        saturation = await _measure_saturation(fleet, settings, observer)
        rounds, rate = plan_rounds(settings, saturation, settings.time_limit_seconds - (clock() - start))
        total_blocks = await fleet.total_blocks()
        fleet_tokens = total_blocks * settings.shape.block_size_tokens
        calibration = Calibration(
            saturation_per_second=saturation,
            rate_per_second=rate,
            total_blocks=total_blocks,
            resident_ratio=settings.workload.resident_tokens / fleet_tokens,
        )
        observer.remark(
            f"Saturation under {CALIBRATION_POLICY}: {saturation:.2f} requests/s; Poisson arrivals at"
            f" {rate:.2f}/s ({rate / saturation:.0%}). Resident set {calibration.resident_ratio:.3f} of"
            f" {total_blocks} KV blocks."
        )
        return calibration, await _runs(fleet, settings, rounds, rate, observer)


def plan_rounds(
    settings: PrefixSettings, saturation_per_second: float, seconds: float
) -> tuple[list[list[Variant]], float]:
    """The variants of each round in order, and the rate of requests per second that fits `seconds`.

    LowestCost behind two routers runs in every round if that fits, else in the first only: the comparison of
    the policies comes first.
    """
    every_round = [settings.variants for _ in range(settings.repeats)]
    first_round = [settings.variants, *[settings.variants[:-1]] * (settings.repeats - 1)]
    for rounds in (every_round, first_round):
        runs = sum(map(len, rounds))
        requests, left = runs * settings.workload.requests, seconds - runs * _RUN_OVERHEAD_SECONDS
        rate = choose_rate(saturation_per_second, requests=requests, seconds=left)
        if requests <= rate * left:
            break
    # Every other round is reversed, so that a drift of the machine favours no policy.
    return [each[::-1] if number % 2 else each for number, each in enumerate(rounds)], rate


@contextlib.asynccontextmanager
async def _fleet(settings: PrefixSettings, log_folder: Path) -> AsyncIterator[BenchFleet]:
    variants = settings.variants
    if CALIBRATION_POLICY not in settings.policies:
        variants.append(Variant(CALIBRATION_POLICY))
    async with (
        benchmark_client() as client,
        bench_fleet(
            settings.shape,
            workers=settings.workers,
            variants=variants,
            client=client,
            log_folder=log_folder,
        ) as fleet,
    ):
        yield fleet


async def _measure_saturation(fleet: BenchFleet, settings: PrefixSettings, observer: Observer) -> float:
    """Requests per second that the fleet completes at saturation."""
    in_flight = _IN_FLIGHT_PER_WORKER * settings.workers
    groups = max(round(settings.workload.groups * _CALIBRATION_GROUPS_RATIO), 1)
    plan = plan_run(
        replace(settings.workload, groups=groups),
        rate_per_second=1.0,
        vocabulary=settings.vocabulary,
        schedule_seed=settings.seed + 900_001,
        prompt_seed=settings.seed + 900_002,
    )
    # Not counted: a worker plans short steps until it has measured its speed.
    warm_up = distinct_prompts(
        in_flight, settings.workload.prompt_tokens, settings.vocabulary, settings.seed + 900_003
    )
    observer.stage("Measuring saturation", len(warm_up) + len(plan))
    sender = _sender(fleet, settings, Variant(CALIBRATION_POLICY), observer.advance)
    first_answers, _ = await send_at_saturation(sender, "warm-up", warm_up, in_flight)
    prompts = [request.token_ids for request in plan]
    answers, per_second = await send_at_saturation(sender, "calibration", prompts, in_flight)
    answers += first_answers
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        raise BenchError(f"{len(errors)} of {len(answers)} calibration requests failed: {errors[0]}")
    return per_second


async def _runs(
    fleet: BenchFleet,
    settings: PrefixSettings,
    rounds: Sequence[Sequence[Variant]],
    rate_per_second: float,
    observer: Observer,
) -> list[RunResult]:
    runs: list[RunResult] = []
    for repeat, variants in enumerate(rounds):
        for variant in variants:
            observer.stage(f"Round {repeat + 1}: {variant.label}", settings.workload.requests)
            runs.append(
                await _run(
                    fleet,
                    settings,
                    variant,
                    repeat=repeat,
                    number=len(runs),
                    rate_per_second=rate_per_second,
                    observer=observer,
                )
            )
    return runs


async def _run(
    fleet: BenchFleet,
    settings: PrefixSettings,
    variant: Variant,
    *,
    repeat: int,
    number: int,
    rate_per_second: float,
    observer: Observer,
) -> RunResult:
    await fleet.clear_caches()
    plan = plan_run(
        settings.workload,
        rate_per_second=rate_per_second,
        vocabulary=settings.vocabulary,
        schedule_seed=settings.seed + 1000 * repeat,
        prompt_seed=settings.seed + 1_000_000 + number,
    )
    clock = asyncio.get_running_loop().time
    start = clock()
    answers = await send_when_due(
        _sender(fleet, settings, variant, observer.advance), f"bench-{number}", plan
    )
    seconds = clock() - start
    return RunResult(
        variant=variant,
        answers=answers,
        reusable_tokens=sum(
            reusable_tokens([request.token_ids for request in plan], settings.shape.block_size_tokens)
        ),
        predictions=await fleet.predictions(variant, [answer.request_id for answer in answers]),
        rate_per_second=rate_per_second,
        seconds=seconds,
    )


def _sender(
    fleet: BenchFleet, settings: PrefixSettings, variant: Variant, on_answer: Callable[[], None]
) -> Sender:
    return Sender(
        client=fleet.client,
        router_urls=fleet.router_urls[variant],
        model=settings.shape.served_name,
        output_tokens=settings.workload.output_tokens,
        on_answer=on_answer,
    )
