"""What the scheduler decides for one step, and the same while it is being decided."""

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
    """A plan in the making."""

    planned: dict[Sequence, int]
    """Tokens of each sequence."""
    allowance_tokens: int
    """What prefills may still compute."""
    seats: int
    admissions: list[SequenceUpdate] = field(default_factory=list)

    def plan(self, sequence: Sequence) -> None:
        """Give a prefill as much of the allowance as it can use."""
        tokens = min(sequence.uncomputed_tokens, self.allowance_tokens)
        if tokens:
            self.planned[sequence] = tokens
            self.allowance_tokens -= tokens
