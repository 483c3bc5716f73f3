"""What a replica is made of."""

from dataclasses import dataclass
from typing import Final

from warmfleet_simulator.step_times import StepTimes
from warmfleet_worker.engine.step_time import TARGET_STEP_SECONDS

DEFAULT_SEATS: Final = 256
DEFAULT_TARGET_STEP_MILLISECONDS: Final = round(1000 * TARGET_STEP_SECONDS)


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """One replica; all replicas of a simulation are alike."""

    step_times: StepTimes
    block_size_tokens: int
    total_blocks: int
    """Of its KV cache."""
    seats: int = DEFAULT_SEATS
    """Most sequences that run at once."""
    target_step_milliseconds: int = DEFAULT_TARGET_STEP_MILLISECONDS
    """How long a step takes that computes prompts beside answers: `engine.targetStepMilliseconds`."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens of KV that it holds; no sequence can have more."""
        return self.total_blocks * self.block_size_tokens
