"""Runs `bench engine`: every engine a process, measured in turn, case by case and round by round."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_cli.bench.engine.cases import BLOCK_SIZE_TOKENS, Case, sequence_tokens
from warmfleet_cli.bench.engine.programs import EngineFailed, Program, RunningEngine, output_of, running
from warmfleet_cli.bench.engine.results import OWN, EngineResults, Measured
from warmfleet_cli.bench.figures import median
from warmfleet_cli.bench.observer import Observer
from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.errors import ExitCode
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.cost import model_cost
from warmfleet_worker.runner.runner_settings import ELEMENT_BYTES

SWEEP_STEPS: Final = 3
PAUSE_SECONDS: Final = 0.05
"""Between two engines: threads that wait for work spin for a while."""
MEMORY_SECONDS: Final = 30
"""In which a system gives memory to read; a worker, which has clients, waits for less of it."""
MEMORY_RATIO: Final = 0.8
"""Of the free memory, for the contexts and weights of all engines."""


@dataclass(frozen=True, slots=True)
class EngineBenchSettings:
    """What is measured, and for how long."""

    model: ModelConfig
    programs: Sequence[Program]
    cases: Sequence[Case]
    skipped: dict[str, str]
    rounds: int
    steps: int
    """Most steps of a case in a round."""
    case_seconds: float
    """After which a case ends in a round, three steps at least."""
    environment: Mapping[str, str]
    """Of all processes: what they compute on."""
    has_amx: bool
    """Of the processors, where those compute."""
    weight_quantization: str = "None"
    """Of our own engine."""


def blocks_of(cases: Sequence[Case]) -> int:
    """Blocks of `BLOCK_SIZE_TOKENS` that an engine's contexts take."""
    return sum(-(-tokens // BLOCK_SIZE_TOKENS) for tokens in sequence_tokens(cases))


def cases_that_fit(
    cases: Sequence[Case], bytes_per_token: int, memory_bytes: int
) -> tuple[list[Case], dict[str, str]]:
    """The cases whose contexts an engine can hold in `memory_bytes`, and why the others are left out."""
    fitting: list[Case] = []
    skipped: dict[str, str] = {}
    for case in sorted(cases, key=lambda case: case.kv_tokens):
        need = blocks_of([*fitting, case]) * BLOCK_SIZE_TOKENS * bytes_per_token
        if need <= memory_bytes:
            fitting.append(case)
        else:
            skipped[case.name] = (
                f"needs {need / 2**30:.1f} GiB of context in each engine; {memory_bytes / 2**30:.1f} are free"
            )
    return [case for case in cases if case in fitting], skipped


def context_memory_bytes(
    available_bytes: int, weight_bytes: int, engines: int, *, on_gpu: bool = False
) -> int:
    """Memory for the contexts of each engine; on a CPU transformers' two types take thrice its weights."""
    copies = engines if on_gpu else engines + 2
    return max(int(MEMORY_RATIO * available_bytes - copies * weight_bytes) // engines, 0)


async def run_engine_bench(
    settings: EngineBenchSettings, log_folder: Path, observer: Observer
) -> EngineResults:
    """Measure.

    Raises:
        BenchError: our own engine does not start, or the machine's limits cannot be measured.
    """
    observer.stage("limits of the machine", 1)
    before = await measured_limits(settings.environment)
    observer.advance()
    missing: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        observer.stage("loading", len(settings.programs))
        engines = [engine async for engine in _started(settings, stack, log_folder, observer, missing)]
        own = next((engine for engine in engines if engine.name == OWN), None)
        measured, tokens = await _measure(settings, engines, observer)
        dtype = own.dtype if own else "BFloat16"
        versions = {engine.name: f"{engine.version}, {engine.dtype}" for engine in engines}
    observer.stage("limits of the machine, again", 1)
    after = await measured_limits(settings.environment)
    observer.advance()
    return EngineResults(
        limits_before=before,
        limits_after=after,
        cost=model_cost(settings.model, ELEMENT_BYTES[dtype], settings.weight_quantization),
        versions=versions,
        missing=missing,
        measured=measured,
        skipped=settings.skipped,
        first_tokens=tokens,
        has_amx=settings.has_amx,
    )


async def measured_limits(environment: Mapping[str, str]) -> MachineLimits:
    """The limits as they are now, of what computes in `environment`.

    It takes two seconds, the import of torch, and as long as the system needs for 2 GiB of memory, within
    `MEMORY_SECONDS`.

    Raises:
        BenchError: they cannot be measured.
    """
    seconds = str(MEMORY_SECONDS)
    output = await output_of("warmfleet_worker.roofline", "--fill-seconds", seconds, environment=environment)
    return msgspec.json.decode(output, type=MachineLimits)


async def _started(
    settings: EngineBenchSettings,
    stack: contextlib.AsyncExitStack,
    log_folder: Path,
    observer: Observer,
    missing: dict[str, str],
) -> AsyncIterator[RunningEngine]:
    for program in settings.programs:
        try:
            yield await stack.enter_async_context(running(program, log_folder, settings.environment))
        except EngineFailed as error:
            if program.name == OWN:
                raise BenchError(
                    f"warmfleet's engine does not start: {error}", exit_code=ExitCode.START_FAILED
                ) from None
            missing[program.name] = str(error)
            observer.remark(f"{program.name}: {error}")
        observer.advance()


async def _measure(
    settings: EngineBenchSettings, engines: Sequence[RunningEngine], observer: Observer
) -> tuple[list[Measured], dict[str, dict[str, list[int]]]]:
    seconds: dict[tuple[Case, str], list[float]] = {}
    variants: dict[tuple[Case, str], str] = {}
    errors: dict[tuple[Case, str], str] = {}
    tokens: dict[str, dict[str, list[int]]] = {}
    observer.stage("contexts and fastest settings", len(settings.cases) * len(engines))
    for case in settings.cases:
        for engine in engines:
            try:
                variants[case, engine.name] = await _fastest(engine, case)
            except EngineFailed as error:
                errors[case, engine.name] = str(error)
            observer.advance()
    observer.stage("rounds", settings.rounds * len(settings.cases) * len(engines))
    for number in range(settings.rounds):
        for case in settings.cases:
            # Every second round in reverse order: a drift of the machine affects all alike.
            for engine in engines if number % 2 == 0 else engines[::-1]:
                key = (case, engine.name)
                observer.advance()
                if key in errors:
                    continue
                await asyncio.sleep(PAUSE_SECONDS)
                try:
                    taken, first = await engine.measure(
                        case, variants[key], steps=settings.steps, seconds=settings.case_seconds
                    )
                except EngineFailed as error:
                    errors[key] = str(error)
                    continue
                seconds.setdefault(key, []).extend(taken)
                tokens.setdefault(case.name, {})[engine.name] = first
            if number == 0:
                # Who has to end it early has these.
                taken_by = {engine.name: seconds.get((case, engine.name), []) for engine in engines}
                observer.remark(_first_round(case, taken_by))
    measured = [
        Measured(
            engine.name,
            case,
            variants.get((case, engine.name), ""),
            seconds.get((case, engine.name), []),
            errors.get((case, engine.name), ""),
        )
        for case in settings.cases
        for engine in engines
    ]
    return measured, tokens


def _first_round(case: Case, seconds: Mapping[str, Sequence[float]]) -> str:
    """A line of what the first of several rounds measured, by engine."""
    rates = (
        f"{engine} {case.tokens / median(taken):,.1f}" if taken else f"{engine} failed"
        for engine, taken in seconds.items()
    )
    return f"{case.name}, first round, tokens/s: {', '.join(rates)}"


async def _fastest(engine: RunningEngine, case: Case) -> str:
    """The variant with the least time of a step; contexts are made here, too."""
    least = {}
    for variant in engine.variants:
        seconds, _ = await engine.measure(case, variant, steps=SWEEP_STEPS, seconds=0.0)
        least[variant] = min(seconds)
    return min(least, key=lambda variant: least[variant])
