"""Greedy generation in this process, with and without a KV cache, through one and the same runner.

Without a cache every step computes the whole sequence again, as one chunk from position 0: the same
kernels and the same arena, with nothing kept from one step to the next.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from warmfleet_cli.bench.figures import median
from warmfleet_cli.bench.processes import BenchError
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch, StepResult
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.kv_cache.block_table import blocks_for

SLICE_STEPS: Final = 10
"""Cached and uncached steps alternate in slices of this many, so that a drift of the machine affects both."""

_GREEDY: Final = SamplingParameters(temperature=0)

NextToken = Callable[[Sequence[int]], int]
"""Another implementation's uncached step: all token ids so far to the next one, greedily."""


class StepRunner(Protocol):
    """The part of the worker's model runner that generation needs."""

    def execute(self, batch: StepBatch) -> StepResult: ...


@dataclass(slots=True)
class GenerationLog:
    """Tokens, times and held blocks of one generation, step by step."""

    token_ids: list[int] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    held_blocks: list[int] = field(default_factory=list)
    """KV blocks that have to be kept after each step."""

    @property
    def seconds(self) -> float:
        return sum(self.step_seconds)


@dataclass(slots=True)
class ReferenceLog:
    """Our uncached step and another implementation's, measured one after the other on the same tokens."""

    lengths: list[int] = field(default_factory=list)
    """Tokens in the sequence at each comparison."""
    own_seconds: list[float] = field(default_factory=list)
    reference_seconds: list[float] = field(default_factory=list)
    equal_tokens: int = 0
    """Comparisons in which both chose the same next token."""

    @property
    def own_percent(self) -> float:
        """Our time as a percentage of theirs: the median over all comparisons, against outliers."""
        pairs = zip(self.own_seconds, self.reference_seconds, strict=True)
        return 100 * median([own / reference for own, reference in pairs])


@dataclass(slots=True)
class Comparison:
    """A whole comparison; grows while it runs."""

    prompt_tokens: int
    cached: GenerationLog = field(default_factory=GenerationLog)
    uncached: GenerationLog = field(default_factory=GenerationLog)
    reference: ReferenceLog = field(default_factory=ReferenceLog)

    @property
    def speedup(self) -> float:
        """How many times longer the same tokens took without a cache."""
        return self.uncached.seconds / self.cached.seconds


class CachedGeneration:
    """One sequence that keeps its KV: the prompt first, then one token per step."""

    def __init__(
        self, runner: StepRunner, prompt: Sequence[int], block_ids: Sequence[int], block_size_tokens: int
    ) -> None:
        self._runner = runner
        self._known = list(prompt)
        self._computed_tokens = 0
        self._block_ids = block_ids
        self._block_size_tokens = block_size_tokens

    def step(self, log: GenerationLog) -> None:
        """Generate the next token into `log`."""
        blocks = blocks_for(len(self._known), self._block_size_tokens)
        token_id, seconds = _timed_step(
            self._runner,
            self._known[self._computed_tokens :],
            first_position=self._computed_tokens,
            block_ids=self._block_ids[:blocks],
            output_index=len(log.token_ids),
        )
        self._computed_tokens = len(self._known)
        self._known.append(token_id)
        log.token_ids.append(token_id)
        log.step_seconds.append(seconds)
        log.held_blocks.append(blocks)


class UncachedGeneration:
    """One sequence that keeps nothing: each step computes all of it again."""

    def __init__(
        self, runner: StepRunner, prompt: Sequence[int], block_ids: Sequence[int], block_size_tokens: int
    ) -> None:
        self._runner = runner
        self.known = list(prompt)
        self._block_ids = block_ids
        self._block_size_tokens = block_size_tokens

    def step(self, log: GenerationLog) -> None:
        """Generate the next token into `log`."""
        blocks = blocks_for(len(self.known), self._block_size_tokens)
        token_id, seconds = _timed_step(
            self._runner,
            list(self.known),
            first_position=0,
            block_ids=self._block_ids[:blocks],
            output_index=len(log.token_ids),
        )
        self.known.append(token_id)
        log.token_ids.append(token_id)
        log.step_seconds.append(seconds)
        log.held_blocks.append(0)


def compare_generation(
    runner: StepRunner,
    prompt: Sequence[int],
    *,
    steps: int,
    block_size_tokens: int,
    reference: NextToken | None = None,
) -> Iterator[Comparison]:
    """Generate `steps` tokens both ways; yields the growing comparison after each slice.

    At the first step of each slice `reference` computes the uncached step too, on the same tokens. The
    arena must hold `arena_blocks(...)` blocks; their ids are 0 and up.
    """
    comparison = Comparison(prompt_tokens=len(prompt))
    blocks = blocks_for(len(prompt) + steps, block_size_tokens)
    cached = CachedGeneration(runner, prompt, range(blocks), block_size_tokens)
    uncached = UncachedGeneration(runner, prompt, range(blocks, 2 * blocks), block_size_tokens)
    for start in range(0, steps, SLICE_STEPS):
        slice_steps = min(SLICE_STEPS, steps - start)
        for _ in range(slice_steps):
            cached.step(comparison.cached)
        for number in range(slice_steps):
            known = list(uncached.known)
            uncached.step(comparison.uncached)
            if number == 0 and reference is not None:
                _compare_step(comparison, reference, known)
        yield comparison


def arena_blocks(prompt_tokens: int, steps: int, block_size_tokens: int) -> int:
    """KV blocks that `compare_generation` uses: room for both sequences."""
    return 2 * blocks_for(prompt_tokens + steps, block_size_tokens)


def _compare_step(comparison: Comparison, reference: NextToken, known: Sequence[int]) -> None:
    begin = time.perf_counter()
    token_id = reference(known)
    log = comparison.reference
    log.reference_seconds.append(time.perf_counter() - begin)
    log.own_seconds.append(comparison.uncached.step_seconds[-1])
    log.lengths.append(len(known))
    log.equal_tokens += token_id == comparison.uncached.token_ids[-1]


def _timed_step(
    runner: StepRunner,
    token_ids: Sequence[int],
    *,
    first_position: int,
    block_ids: Sequence[int],
    output_index: int,
) -> tuple[int, float]:
    chunk = Chunk(
        sequence_id=0,
        token_ids=token_ids,
        first_position=first_position,
        block_ids=block_ids,
        sample=SampleRequest(_GREEDY, output_index),
    )
    begin = time.perf_counter()
    result = runner.execute(StepBatch((chunk,))).chunks[0]
    seconds = time.perf_counter() - begin
    if not result.finite:
        raise BenchError(f"step at position {first_position} gave values that are not finite")
    return result.token_ids[0], seconds
