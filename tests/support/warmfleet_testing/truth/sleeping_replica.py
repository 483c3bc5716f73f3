"""The worker that sleeps in `simulator_truth`, and of which live runs are recorded."""

from typing import Final

from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.step_times import StepTimes

_MILLISECOND_PS: Final = 10**9
SLEEPING_REPLICA: Final = ReplicaSettings(
    StepTimes(
        base_ps=40 * _MILLISECOND_PS,
        prefill_token_ps=_MILLISECOND_PS * 2 // 5,
        decode_ps=4 * _MILLISECOND_PS,
        context_token_ps=_MILLISECOND_PS // 1000,
    ),
    block_size_tokens=16,
    total_blocks=1400,
    seats=16,
)
"""Steps so long that little of a time is the machine's. One cache holds about half of what is open."""
