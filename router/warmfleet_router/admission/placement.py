"""Decides for one request, from a ranking and the capacity of its workers, whether it goes or waits.

A request goes to the cheapest worker with capacity. If that is not the cheapest of all, and the cheapest is
so because it holds more of the prompt, the request may wait for it a while: an answer from a warm worker
that is busy for another 100 ms comes sooner than one from a cold worker that computes for a second. It
waits no longer than computing elsewhere costs, itself and others (`routing/cost`), so that a wrong estimate
at most doubles the cost, as in the ski rental problem (Karlin, Manasse, Rudolph and Sleator, 1988).
"""

from collections.abc import Callable, Mapping

import msgspec

from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.routing.capacity import (
    CapacityLimits,
    Need,
    Shortage,
    prefill_seconds,
    queued_seconds,
    shortage_in,
)
from warmfleet_router.routing.cost import WorkerLoad
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import PickedWorker, RankedWorkers
from warmfleet_router.routing.policies import EQUAL_MS, EQUAL_RATIO, Candidate


class Placement(msgspec.Struct, frozen=True):
    """Where a request goes, or why it waits."""

    picked: PickedWorker | None
    because: str = ""
    """Why it waits; empty if it goes."""
    plan_uid: str = ""
    """The worker it will probably get."""
    plan: UnreportedLoad = UnreportedLoad()
    """What it will ask of that worker: it counts as load for the requests behind."""
    declines: bool = False
    """Whether another worker has capacity, where it would take longer."""


class Patience(msgspec.Struct, frozen=True):
    """How long a request may decline other workers' capacity for that of the cheapest."""

    declined_seconds: float
    """How long it does already."""
    least_seconds: float
    """It may for this long in any case."""
    most_seconds: float

    @classmethod
    def of(cls, settings: AdmissionSettings, declined_seconds: float = 0.0) -> "Patience":
        """That of a request which declines for so long already."""
        return cls(declined_seconds, settings.patience_seconds, settings.longest_patience_seconds)

    def is_left(self, elsewhere_ms: float) -> bool:
        """Whether it may go on, while it would cost `elsewhere_ms` where there is capacity."""
        longest_seconds = min(max(elsewhere_ms / 1e3, self.least_seconds), self.most_seconds)
        return self.declined_seconds < longest_seconds


def place(
    ranked: RankedWorkers,
    loads: Mapping[str, WorkerLoad],
    limits: CapacityLimits,
    *,
    may_use_headroom: bool,
    patience: Patience | None,
    may_bypass: Callable[[str], bool],
) -> Placement | None:
    """Decide for one request; `loads` are the workers' without what is only planned.

    None if that takes a ranking of all workers: those that are ranked for certain have no capacity.

    Without `patience` a request goes where there is capacity.
    `may_bypass` returns for a worker with a long queue, by uid, whether the request bypasses its prompts.
    """
    cheapest = ranked.ranking.candidates[0]
    with_capacity: Candidate | None = None
    first_lack: Shortage | None = None
    for candidate in ranked.ranking.candidates[: ranked.certain]:
        need = Need(ranked.sequences, ranked.needed_blocks(candidate), may_use_headroom)
        load = loads[candidate.uid]
        lack = shortage_in(load, candidate.rates, need, limits)
        if lack is None or lack is Shortage.PREFILL:
            follows = _follows(candidate, load, limits)
            # A full window is long, and one that is wide may be before it is full.
            is_long = queued_seconds(load, candidate.rates) >= limits.least_window_seconds
            if is_long and not follows and may_bypass(candidate.uid):
                reason = f"{candidate.endpoint}, before further prompts of tenants that got more"
                return Placement(ranked.pick(candidate, reason, bypasses=True))
            if lack is None or follows:
                with_capacity = candidate
                break
        first_lack = first_lack or lack
    if with_capacity is cheapest:
        return Placement(ranked.pick(cheapest))
    if with_capacity is None and ranked.certain < len(ranked.workers):
        return None
    if with_capacity is None:
        return _wait(
            ranked, cheapest, f"no worker has capacity; the cheapest, {cheapest.endpoint}, lacks {first_lack}"
        )
    # A queue of prompts gets shorter at the worker's own speed; seats and blocks get free when answers end,
    # and how long those are is up to other clients.
    elsewhere_ms = with_capacity.cost.total_ms if first_lack is Shortage.PREFILL else 0.0
    if (
        patience is not None
        and patience.is_left(elsewhere_ms)
        and _is_worth_waiting_for(cheapest, with_capacity)
    ):
        because = f"{cheapest.endpoint} lacks {first_lack} but holds more of the prompt"
        return _wait(ranked, cheapest, because, declines=True)
    return Placement(
        ranked.pick(with_capacity, f"first with capacity; {cheapest.endpoint} lacks {first_lack}")
    )


def _wait(ranked: RankedWorkers, candidate: Candidate, because: str, *, declines: bool = False) -> Placement:
    plan = UnreportedLoad(candidate.uncached_tokens, ranked.sequences, ranked.needed_blocks(candidate))
    return Placement(None, because, candidate.uid, plan, declines)


def _follows(candidate: Candidate, load: WorkerLoad, limits: CapacityLimits) -> bool:
    """Whether the prompt's prefix is what the worker's queue is computing, and little else is to be done.

    Its wait is for that very prefill; anywhere else it would be computed a second time. What else is queued
    there counts, or any number of prompts could join by a first block in common.
    """
    other_tokens = max(load.queued_uncached_tokens - candidate.pending_tokens, 0)
    other_seconds = prefill_seconds(other_tokens + candidate.uncached_tokens, candidate.rates)
    return candidate.pending_tokens > 0 and other_seconds <= limits.least_window_seconds


def _is_worth_waiting_for(cheapest: Candidate, with_capacity: Candidate) -> bool:
    saved_ms = with_capacity.cost.total_ms - cheapest.cost.total_ms
    is_warmer = cheapest.cached_tokens > with_capacity.cached_tokens
    return is_warmer and saved_ms > max(EQUAL_MS, EQUAL_RATIO * cheapest.cost.total_ms)
