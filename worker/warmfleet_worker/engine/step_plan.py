"""The scheduler's decision for one step, finished (`StepPlan`) and under construction (`PlanDraft`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from warmfleet_worker.engine.batch import Chunk, SampleRequest, ScoreRequest, StepBatch
from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.engine.sequence import Sequence
from warmfleet_worker.engine.step_time import StepShape, StepTimeEstimator
from warmfleet_worker.kv_cache.block_table import blocks_for


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One step: how many tokens of which sequences, and what became of others meanwhile."""

    planned: Mapping[Sequence, int]
    """Tokens of each sequence, in the order of the batch's chunks."""
    block_size_tokens: int
    preempted_sequences: int
    admissions: tuple[SequenceUpdate, ...]
    """First updates of the sequences that start with this step, and ends of idle ones that cannot start."""

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """That of each chunk."""
        return tuple(self.planned)

    @cached_property
    def batch(self) -> StepBatch:
        """What a runner computes. Made when it is first asked for: that is before the plan is applied."""
        return StepBatch(
            tuple(
                _chunk(sequence, tokens, self.block_size_tokens) for sequence, tokens in self.planned.items()
            )
        )

    @property
    def shape(self) -> StepShape:
        """That of the batch; asked for before the plan is applied."""
        return StepShape.of_shares(
            (sequence.computed_tokens, tokens, tokens == 1 and sequence.samples_after(tokens))
            for sequence, tokens in self.planned.items()
        )


class StepBudget(Protocol):
    """How much prefill one step computes beside its decodes."""

    def prefill_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int, /) -> int:
        """Tokens of a prompt, from `first_position` on, that fit beside what is planned."""

    def idle_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int, /) -> int:
        """The same of a prompt that no client waits for: what is planned, not nothing, is hardly slower."""


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """Each step computes at most `tokens`, decodes included, and less where that takes too long.

    An engine reports nothing while a step computes: the watchdog takes a long one for a hang.
    """

    tokens: int
    step_time: StepTimeEstimator | None = None
    """Predicts how long they take; None: no time."""

    def prefill_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int, /) -> int:
        room = max(min(wanted_tokens, self.tokens - planned.tokens), 0)
        if self.step_time is None:
            return room
        return self.step_time.tokens_before_a_stall(planned, first_position, room)

    def idle_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int, /) -> int:
        del planned, first_position, wanted_tokens
        return 0  # how long a token takes is not known here


@dataclass(slots=True)
class PlanDraft:
    """A plan under construction."""

    planned: dict[Sequence, int]
    """Tokens of each sequence."""
    shape: StepShape
    """Of what is planned."""
    budget: StepBudget
    seats: int
    admissions: list[SequenceUpdate] = field(default_factory=list)
    adopted_blocks: int = 0
    """Cached blocks that the sequences admitted so far start with."""

    def has_room(self, first_position: int) -> bool:
        """Whether the step takes a token more of a prompt that is computed up to `first_position`."""
        return self.budget.prefill_tokens(self.shape, first_position, 1) > 0

    def has_room_for(self, sequence: Sequence, first_position: int) -> bool:
        """Whether the step takes a token of this sequence that is computed or cached up to there."""
        return self._tokens_of(sequence, first_position, 1) > 0

    def plan(self, sequence: Sequence) -> None:
        """Plan a prefill, as much as the step takes."""
        first_position = sequence.computed_tokens
        # One prediction for each prompt that a full step leaves out, where the bisection takes a dozen.
        if self.has_room_for(sequence, first_position):
            tokens = self._tokens_of(sequence, first_position, sequence.uncomputed_tokens)
            self.planned[sequence] = tokens
            self.shape = self.shape.with_prefill(first_position, tokens)

    def _tokens_of(self, sequence: Sequence, first_position: int, wanted_tokens: int) -> int:
        """An idle sequence alone gets as much of a step as any other."""
        delays = sequence.is_idle and self.shape.tokens
        tokens = self.budget.idle_tokens if delays else self.budget.prefill_tokens
        return tokens(self.shape, first_position, wanted_tokens)


def _chunk(sequence: Sequence, tokens: int, block_size_tokens: int) -> Chunk:
    """The next `tokens` of a sequence that has the blocks for them."""
    first = sequence.computed_tokens
    end = first + tokens
    sample = None
    if sequence.samples_after(tokens):
        sample = SampleRequest(sequence.sampling, sequence.output_tokens, sequence.token_counts)
    return Chunk(
        sequence_id=sequence.sequence_id,
        token_ids=sequence.token_ids[first:end],
        first_position=first,
        block_ids=sequence.table.ids(blocks_for(end, block_size_tokens)),
        sample=sample,
        score=_score_request(sequence, first, end),
    )


def _score_request(sequence: Sequence, first: int, end: int) -> ScoreRequest | None:
    """The prompt log probabilities that tokens `first` to `end` give and that are not reported yet."""
    start = max(first, sequence.scored_tokens)
    stop = min(end, sequence.prompt_tokens - 1)
    if sequence.sampling.prompt_logprobs is None or start >= stop:
        return None
    return ScoreRequest(
        first=start - first,
        next_token_ids=tuple(sequence.token_ids[start + 1 : stop + 1]),
        top=sequence.sampling.prompt_logprobs,
    )
