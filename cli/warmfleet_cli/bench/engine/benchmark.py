"""Runs `bench engine`: every engine a process, measured in turn, case by case and round by round."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_cli.bench.engine.cases import BLOCK_SIZE_TOKENS, Case, sequence_tokens
from warmfleet_cli.bench.engine.programs import (
    NO_CHANGE,
    NO_GPU,
    EngineFailed,
    Program,
    RunningEngine,
    output_of,
    reads_program,
    running,
)
from warmfleet_cli.bench.engine.results import OWN, OWN_QUANTIZATIONS, EngineResults, Measured, step_shape
from warmfleet_cli.bench.figures import median
from warmfleet_cli.bench.observer import Observer
from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.errors import ExitCode
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.cost import model_cost
from warmfleet_worker.roofline.measurement import MAX_BUFFER_BYTES
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
    on_gpu: bool
    """What computes; otherwise processors do."""
    has_amx: bool
    """Of the processors, where those compute."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Of all processes."""
        return NO_CHANGE if self.on_gpu else NO_GPU


def blocks_of(cases: Sequence[Case]) -> int:
    """Blocks of `BLOCK_SIZE_TOKENS` that an engine's contexts take."""
    return sum(blocks_for(tokens, BLOCK_SIZE_TOKENS) for tokens in sequence_tokens(cases))


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
    """Memory for the contexts of each engine.

    On a CPU transformers' two types take thrice its weights, and memory is read that nothing else uses.
    """
    copies, read_bytes = (engines, 0) if on_gpu else (engines + 2, MAX_BUFFER_BYTES)
    return max(int(MEMORY_RATIO * available_bytes - copies * weight_bytes - read_bytes) // engines, 0)


async def run_engine_bench(
    settings: EngineBenchSettings, log_folder: Path, observer: Observer
) -> EngineResults:
    """Measure.

    Raises:
        BenchError: `OWN` does not start, no engine does, or the machine's limits cannot be measured.
    """
    observer.stage("limits of the machine", 1)
    before = await measured_limits(settings.environment)
    observer.advance()
    missing: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        observer.stage("loading", len(settings.programs) + (not settings.on_gpu))
        starter = _Starter(stack, log_folder, settings.environment, observer, missing)
        engines = await starter.start(settings.programs)
        if not engines:
            reasons = "; ".join(f"{engine}: {reason}" for engine, reason in missing.items())
            raise BenchError(f"no engine starts: {reasons}", exit_code=ExitCode.START_FAILED)
        own = next((engine for engine in engines if engine.name in OWN_QUANTIZATIONS), None)
        # What "Auto" has chosen decides what a step reads.
        dtype = own.dtype if own else "BFloat16"
        costs = {
            engine: model_cost(settings.model, ELEMENT_BYTES[dtype], quantization)
            for engine, quantization in OWN_QUANTIZATIONS.items()
        }
        if not settings.on_gpu:
            bytes_of_cases = {case.name: costs[OWN].read_bytes(step_shape(case)) for case in settings.cases}
            reads = reads_program(bytes_of_cases, before.read_threads, MAX_BUFFER_BYTES)
            engines += await starter.start([reads])
        measured, tokens = await _measure(settings, engines, observer)
        versions = {engine.name: f"{engine.version}, {engine.dtype}" for engine in engines}
    observer.stage("limits of the machine, again", 1)
    after = await measured_limits(settings.environment)
    observer.advance()
    return EngineResults(
        limits_before=before,
        limits_after=after,
        costs=costs,
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


@dataclass(frozen=True, slots=True)
class _Starter:
    """Starts engines, which end with `stack`; `missing` gets the reasons of those that do not start."""

    stack: contextlib.AsyncExitStack
    log_folder: Path
    environment: Mapping[str, str]
    observer: Observer
    missing: dict[str, str]

    async def start(self, programs: Sequence[Program]) -> list[RunningEngine]:
        """Those that have started.

        Raises:
            BenchError: `OWN` does not start.
        """
        engines = []
        for program in programs:
            try:
                process = running(program, self.log_folder, self.environment)
                engines.append(await self.stack.enter_async_context(process))
            except EngineFailed as error:
                if program.name == OWN:
                    raise BenchError(
                        f"warmfleet's engine does not start: {error}", exit_code=ExitCode.START_FAILED
                    ) from None
                self.missing[program.name] = str(error)
                self.observer.remark(f"{program.name}: {error}")
            self.observer.advance()
        return engines


@dataclass(slots=True)
class _Taken:
    """What the steps of one engine in one case took."""

    engine: RunningEngine
    case: Case
    variant: str = ""
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Of a round's first step."""
    error: str = ""

    async def choose_variant(self) -> None:
        """The one with the least time of a step; contexts are made here, too."""
        least = {}
        try:
            for variant in self.engine.variants:
                seconds, _ = await self.engine.measure(self.case, variant, steps=SWEEP_STEPS, seconds=0.0)
                least[variant] = min(seconds)
        except EngineFailed as error:
            self.error = str(error)
        else:
            self.variant = min(least, key=lambda variant: least[variant])

    async def measure(self, settings: EngineBenchSettings) -> None:
        """Steps of one round, unless it failed before."""
        if self.error:
            return
        await asyncio.sleep(PAUSE_SECONDS)
        try:
            seconds, self.tokens = await self.engine.measure(
                self.case, self.variant, steps=settings.steps, seconds=settings.case_seconds
            )
        except EngineFailed as error:
            self.error = str(error)
        else:
            self.seconds.extend(seconds)


async def _measure(
    settings: EngineBenchSettings, engines: Sequence[RunningEngine], observer: Observer
) -> tuple[list[Measured], dict[str, dict[str, list[int]]]]:
    """The steps of all engines in all cases, and the tokens by case and engine."""
    of_cases = [
        [_Taken(engine, case) for engine in engines if case.kind in engine.kinds] for case in settings.cases
    ]
    taken = [one for of_case in of_cases for one in of_case]
    observer.stage("contexts and fastest settings", len(taken))
    for one in taken:
        await one.choose_variant()
        observer.advance()
    observer.stage("rounds", settings.rounds * len(taken))
    for number in range(settings.rounds):
        for of_case in of_cases:
            # Every second round in reverse order: a drift of the machine affects all alike.
            for one in of_case if number % 2 == 0 else of_case[::-1]:
                observer.advance()
                await one.measure(settings)
            if number == 0:
                # Who has to end it early has these.
                observer.remark(_first_round(of_case))
    measured = [Measured(one.engine.name, one.case, one.variant, one.seconds, one.error) for one in taken]
    tokens: dict[str, dict[str, list[int]]] = {}
    for one in taken:
        if one.tokens:
            tokens.setdefault(one.case.name, {})[one.engine.name] = one.tokens
    return measured, tokens


def _first_round(of_case: Sequence[_Taken]) -> str:
    """A line of what the first of several rounds measured in a case, by engine."""
    rates = (
        f"{one.engine.name} {one.case.tokens / median(one.seconds):,.1f}"
        if one.seconds
        else f"{one.engine.name} failed"
        for one in of_case
    )
    return f"{of_case[0].case.name}, first round, tokens/s: {', '.join(rates)}"
