"""The scheduler's decision for one step, finished (`StepPlan`) and under construction (`PlanDraft`)."""

from dataclasses import dataclass, field

from warmfleet_worker.engine.batch import StepBatch
from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: the batch, and the sequence of each of its chunks in the same order."""

    batch: StepBatch
    sequences: tuple[Sequence, ...]
    preempted_sequences: int
    admissions: tuple[SequenceUpdate, ...]
    """First updates of the sequences that start with this step."""


@dataclass(slots=True)
class PlanDraft:
    """A plan under construction."""

    planned: dict[Sequence, int]
    """Tokens of each sequence."""
    allowance_tokens: int
    """Tokens that prefills may still compute."""
    seats: int
    admissions: list[SequenceUpdate] = field(default_factory=list)

    def plan(self, sequence: Sequence) -> None:
        """Plan a prefill, up to the rest of the allowance."""
        tokens = min(sequence.uncomputed_tokens, self.allowance_tokens)
        if tokens:
            self.planned[sequence] = tokens
            self.allowance_tokens -= tokens
