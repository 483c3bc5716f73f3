"""Whether a worker has capacity for one more request.

A worker computes requests in the order of their arrival. So the router keeps that queue short and decides
the order itself: it dispatches while the worker has a free seat, free KV blocks, and less than a window of
prefill in its queue. The window covers the time from the end of a step to the arrival of the next request;
a wider one moves the wait to where the router cannot reorder it. That has a use only where a step takes long
before its first prompt token: prompts that are computed one by one each pay for a step of their own.

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

from warmfleet_router.routing.cost import StepRates, WorkerLoad

PREFILL_WINDOW_SECONDS: Final = 0.1
"""A step of the engine by default: its automatic token budget is what it computes in about this time. With a
shorter target it is several."""
WINDOW_STEPS: Final = 4
"""What a step takes in any case, above all to read the weights, is then a fifth of one with a whole window,
unless another bound of the window is lower."""
LONGEST_WINDOW_SECONDS: Final = 1.0
"""What other tenants may have to wait for, even behind a worker that reports longer steps."""
HEADROOM_RATIO: Final = 1 / 8


class Shortage(StrEnum):
    """What a worker has too little of."""

    SEATS = "seats"
    BLOCKS = "blocks"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """How full a worker may be."""

    least_window_seconds: float = PREFILL_WINDOW_SECONDS
    """Prefill that may be queued before a new request in any case."""
    window_steps: int = WINDOW_STEPS
    """As much prefill as so many steps take in any case, if the worker computes it in one step."""
    longest_window_seconds: float = LONGEST_WINDOW_SECONDS
    """Of a window that is longer than `least_window_seconds`."""
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
    return Shortage.PREFILL if queued_seconds(load, rates) >= window_seconds(load, rates, limits) else None


def window_seconds(load: WorkerLoad, rates: StepRates, limits: CapacityLimits) -> float:
    """Prefill that may be queued on a worker under `load` before a new request.

    It depends on the load only by what decodes leave of a step: no prompt that is sent opens a full window.
    """
    free_tokens = max(load.fixed_batched_tokens - load.running_sequences, 0)
    steps_seconds = limits.window_steps * rates.base_seconds
    wider_seconds = min(prefill_seconds(free_tokens, rates), steps_seconds, limits.longest_window_seconds)
    return max(limits.least_window_seconds, wider_seconds)


def queued_seconds(load: WorkerLoad, rates: StepRates) -> float:
    """Time to compute the prompts that a worker has."""
    return prefill_seconds(load.queued_uncached_tokens, rates)


def prefill_seconds(tokens: int, rates: StepRates) -> float:
    """Time to compute `tokens` of a prompt."""
    return tokens * rates.per_prefill_token_seconds


def _kept(total: int, need: Need, limits: CapacityLimits) -> int:
    # A worker with a single seat has none to keep.
    return 0 if need.may_use_headroom or total < 2 else math.ceil(total * limits.headroom_ratio)
