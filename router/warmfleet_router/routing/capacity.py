"""Whether a worker has capacity for one more request.

A worker computes requests in the order of their arrival. So the router keeps that queue short and decides
the order itself: it dispatches while the worker has a free seat, free KV blocks, and less than a small window
of prefill in its queue. The window covers the time from the end of a step to the arrival of the next request;
a wider one only moves the wait to where the router cannot reorder it. Where a step takes long before its
first prompt token, the window holds several prompts: one by one, each would pay for a step of its own.

Part of the seats and blocks, the headroom, is kept from tenants that have more than their share of a model
while other tenants used it lately: otherwise a light tenant would wait for the end of a long answer.

A report is up to 20 ms old, and N routers each add what they sent since. A router never has more open
dispatches on a worker than the worker has seats; N routers together, which cannot see each other's unreported
dispatches, at most N times as many, and at most N windows of prefill plus N requests. The worker queues the
excess, and the next report ends it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from warmfleet_router.routing.cost import StepRates, WorkerLoad, decode_seconds

PREFILL_WINDOW_SECONDS: Final = 0.1
"""One step of the engine: its automatic token budget is what it computes in about this time."""
WINDOW_STEPS: Final = 4
"""What a step takes without prefill is then a fifth, at most, of one with a whole window."""
LONGEST_WINDOW_SECONDS: Final = 1.0
HEADROOM_RATIO: Final = 1 / 8


class Shortage(StrEnum):
    """What a worker has too little of."""

    SEATS = "seats"
    BLOCKS = "blocks"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """How full a worker may be."""

    window_seconds: float = PREFILL_WINDOW_SECONDS
    """Prefill that may be queued before a new request; more where steps take long, as `window_seconds`."""
    window_steps: int = WINDOW_STEPS
    """As much prefill as takes so many steps of what already runs, if the worker computes it in one step."""
    longest_window_seconds: float = LONGEST_WINDOW_SECONDS
    """Of a window that is longer than `window_seconds`."""
    headroom_ratio: float = HEADROOM_RATIO
    """Part of the seats and of the blocks that is kept from tenants above their share."""


class Need(msgspec.Struct, frozen=True, gc=False):
    """What one request needs of a worker's capacity."""

    sequences: int
    blocks: int = 0
    may_use_headroom: bool = True


def shortage_in(load: WorkerLoad, rates: StepRates, need: Need, limits: CapacityLimits) -> Shortage | None:
    """What a worker under `load` lacks for `need`; None if it has the capacity.

    A worker without any sequence has capacity for every request: nothing will be freed by waiting.
    """
    if not load.sequences:
        return None
    if load.max_running_sequences:
        seats = load.max_running_sequences - _kept(load.max_running_sequences, need, limits)
        # What exceeds all seats gets an empty worker, above; the rest of it waits there.
        if load.sequences + need.sequences > seats:
            return Shortage.SEATS
    if load.total_blocks:
        blocks = load.total_blocks - _kept(load.total_blocks, need, limits)
        if load.pinned_blocks + need.blocks > blocks:
            return Shortage.BLOCKS
    queued_seconds = prefill_seconds(load.queued_uncached_tokens, rates)
    return Shortage.PREFILL if queued_seconds >= window_seconds(load, rates, limits) else None


def window_seconds(load: WorkerLoad, rates: StepRates, limits: CapacityLimits) -> float:
    """Prefill that may be queued on a worker under `load` before a new request."""
    if not load.max_batched_tokens:
        return limits.window_seconds
    one_step_seconds = prefill_seconds(load.max_batched_tokens, rates)
    steps_seconds = limits.window_steps * decode_seconds(load, rates)
    longest_seconds = min(one_step_seconds, steps_seconds, limits.longest_window_seconds)
    return max(limits.window_seconds, longest_seconds)


def prefill_seconds(tokens: int, rates: StepRates) -> float:
    """Time to compute `tokens` of a prompt."""
    return tokens * rates.per_prefill_token_seconds


def _kept(total: int, need: Need, limits: CapacityLimits) -> int:
    # A worker with a single seat has none to keep.
    return 0 if need.may_use_headroom or total < 2 else math.ceil(total * limits.headroom_ratio)
