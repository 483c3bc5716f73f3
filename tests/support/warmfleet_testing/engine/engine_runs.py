"""Drives an `Engine` over a real model until its sequences end, and counts how it got there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch, StepInFlight
from warmfleet_worker.engine.engine import Engine
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import SchedulerSettings
from warmfleet_worker.runner.runner import ModelRunner

IDENTITY = CacheIdentity(b"parity-test-cafe")


@dataclass
class Counters:
    """What the runner was really asked to do; the proof that a variant happened."""

    steps: int = 0
    computed_tokens: int = 0
    largest_batch: int = 0
    mixed_steps: int = 0
    """Steps with both a decode and a chunk of prefill."""
    chunk_lengths: list[int] = field(default_factory=list)
    preempted_sequences: int = 0


class CountingRunner:
    """A runner that notes every batch it executes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.counters = Counters()

    @property
    def total_blocks(self) -> int:
        return self._runner.total_blocks

    @property
    def exact(self) -> bool:
        return self._runner.exact

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        self._runner.poison_blocks(block_ids)

    def block_bytes(self, block_id: int) -> bytes:
        return self._runner.block_bytes(block_id)

    def begin(self, batch: StepBatch) -> StepInFlight:
        lengths = [len(chunk.token_ids) for chunk in batch.chunks]
        self.counters.steps += 1
        self.counters.computed_tokens += sum(lengths)
        self.counters.largest_batch = max(self.counters.largest_batch, len(lengths))
        self.counters.mixed_steps += min(lengths) == 1 and max(lengths) > 1
        self.counters.chunk_lengths += lengths
        return self._runner.begin(batch)


@dataclass(frozen=True)
class Outcome:
    """How one sequence ended."""

    token_ids: list[int]
    cached_tokens: int
    finish_reason: str


class EngineRun:
    """An engine with a cold cache over `runner`; keeps its cache from one `finish` to the next."""

    def __init__(
        self, runner: ModelRunner, *, block_size_tokens: int = 16, max_batched_tokens: int = 2048
    ) -> None:
        self._runner = CountingRunner(runner)
        self._ids = count()
        self.engine = Engine(
            self._runner,
            IDENTITY,
            "epoch",
            block_size_tokens,
            runner.model.window_tokens,
            SchedulerSettings(max_batched_tokens=max_batched_tokens, max_model_length_tokens=1024),
            poison=True,
        )

    def finish(self, prompts: list[list[int]], output_tokens: int) -> tuple[list[Outcome], Counters]:
        """Decode all prompts together, greedily and past any end token; counts the work."""
        self._runner.counters = Counters()
        sampling = SamplingParameters(temperature=0.0, max_output_tokens=output_tokens)
        ids = [next(self._ids) for _ in prompts]
        for sequence_id, prompt in zip(ids, prompts, strict=True):
            self.engine.add(add_sequence(sequence_id, prompt, sampling=sampling))
        tokens: dict[int, list[int]] = {sequence_id: [] for sequence_id in ids}
        cached: dict[int, int] = {}
        reasons: dict[int, str] = {}
        while len(reasons) < len(ids):
            report = self.engine.step()
            self._runner.counters.preempted_sequences += report.preempted_sequences
            for update in report.updates:
                assert not update.error, update.error
                tokens[update.sequence_id] += update.token_ids
                if update.cached_tokens is not None:
                    cached[update.sequence_id] = update.cached_tokens
                if update.finish_reason:
                    reasons[update.sequence_id] = update.finish_reason
        outcomes = [Outcome(tokens[number], cached[number], reasons[number]) for number in ids]
        return outcomes, self._runner.counters


def full_recompute(runner: ModelRunner, prompt: list[int], output_tokens: int) -> list[int]:
    """Greedy decoding without any reuse: every step computes the whole sequence as one chunk."""
    answer: list[int] = []
    for _ in range(output_tokens):
        answer.append(recomputed_token(runner, prompt, answer))
    return answer


def recomputed_token(runner: ModelRunner, prompt: list[int], answer: list[int]) -> int:
    """The greedy choice after prompt and answer, computed as one chunk.

    The blocks are the same every time, and every one of them is overwritten before it is read.
    """
    sampling = SamplingParameters(temperature=0.0, max_output_tokens=len(answer) + 1)
    block_ids = tuple(range(runner.total_blocks))
    runner.poison_blocks(block_ids)
    chunk = Chunk(0, (*prompt, *answer), 0, block_ids, SampleRequest(sampling, len(answer)))
    (result,) = runner.execute(StepBatch((chunk,))).chunks
    (token_id,) = result.token_ids
    return token_id
