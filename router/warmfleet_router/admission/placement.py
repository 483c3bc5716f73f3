"""Go or wait: what a ranking and the room of its workers say about one request.

A request goes to the cheapest worker that has room. If that is not the cheapest of all, and the cheapest is
so because it holds more of the prompt, the request may wait for it a short while: an answer from a warm
worker that is busy for another 100 ms comes sooner than one from a cold worker that computes for a second.
"""

from collections.abc import Callable, Mapping

import msgspec

from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage, prefill_seconds, shortage_in
from warmfleet_router.routing.cost import WorkerLoad
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import PickedWorker, RankedWorkers
from warmfleet_router.routing.policies import EQUAL_MS, EQUAL_RATIO, Candidate


class Placement(msgspec.Struct, frozen=True):
    """Where a request goes, or why it waits."""

    choice: PickedWorker | None
    because: str = ""
    """Why it waits; empty if it goes."""
    plan_uid: str = ""
    """The worker it will probably get."""
    plan: UnreportedLoad = UnreportedLoad()
    """What it will ask of that worker: those behind it must reckon with it."""


def place(
    ranked: RankedWorkers,
    loads: Mapping[str, WorkerLoad],
    rule: CapacityLimits,
    *,
    may_use_headroom: bool,
    may_wait_for_cheapest: bool,
    may_bypass: Callable[[str], bool],
) -> Placement:
    """Decide for one request; `loads` are the workers' without what is only planned.

    `may_bypass` says of a worker whose window is full, by uid, whether the request passes what it holds.
    """
    cheapest = ranked.ranking.candidates[0]
    with_room: Candidate | None = None
    first_lack: Shortage | None = None
    for candidate in ranked.ranking.candidates:
        need = Need(ranked.sequences, ranked.needed_blocks(candidate), may_use_headroom)
        lack = shortage_in(loads[candidate.uid], candidate.rates, need, rule)
        if lack is None or (lack is Shortage.PREFILL and _follows(candidate, rule)):
            with_room = candidate
            break
        if lack is Shortage.PREFILL and may_bypass(candidate.uid):
            reason = f"{candidate.endpoint}, before further prompts of tenants that got more"
            return Placement(ranked.pick(candidate, reason, bypasses=True))
        first_lack = first_lack or lack
    if with_room is cheapest:
        return Placement(ranked.pick(cheapest))
    if with_room is None:
        return _wait(
            ranked, cheapest, f"no worker has room; the cheapest, {cheapest.endpoint}, lacks {first_lack}"
        )
    if may_wait_for_cheapest and _is_worth_waiting_for(cheapest, with_room):
        return _wait(ranked, cheapest, f"{cheapest.endpoint} lacks {first_lack} but holds more of the prompt")
    return Placement(ranked.pick(with_room, f"first with room; {cheapest.endpoint} lacks {first_lack}"))


def _wait(ranked: RankedWorkers, candidate: Candidate, because: str) -> Placement:
    plan = UnreportedLoad(candidate.uncached_tokens, ranked.sequences, ranked.needed_blocks(candidate))
    return Placement(None, because, candidate.uid, plan)


def _follows(candidate: Candidate, rule: CapacityLimits) -> bool:
    """Whether the prompt's prefix is what the worker's queue is computing, and little else is to be done.

    Its wait is for that very prefill; anywhere else it would be computed a second time.
    """
    own_seconds = prefill_seconds(candidate.uncached_tokens, candidate.rates)
    return candidate.pending_tokens > 0 and own_seconds <= rule.window_seconds


def _is_worth_waiting_for(cheapest: Candidate, with_room: Candidate) -> bool:
    saved_ms = with_room.cost.total_ms - cheapest.cost.total_ms
    is_warmer = cheapest.cached_tokens > with_room.cached_tokens
    return is_warmer and saved_ms > max(EQUAL_MS, EQUAL_RATIO * cheapest.cost.total_ms)
