"""One model's workers at one moment: which can be given requests, their load and their capacity."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage, prefill_seconds, shortage_in
from warmfleet_router.routing.cost import PriceFloor, StepRates, WorkerLoad, median_rates, price_floor
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.fleet import WorkerStatus

PRIOR_BLOCK_TOKENS: Final = 16


class FleetSnapshot:
    """The workers of one model that can be given requests now.

    Take one with `Picker.snapshot` for all requests that are placed together; `charged` updates a worker's
    load after each of them.
    """

    def __init__(
        self,
        workers: Sequence[WorkerStatus],
        leases: Leases,
        breakers: Breakers,
        tried: Collection[str] = (),
        *,
        policy: str,
    ) -> None:
        """`workers` are all workers of the model; those not ready, ejected or `tried` are left out."""
        self.policy = policy
        """Name of the policy that ranks them."""
        self._leases = leases
        ready = {worker.endpoint.uid: worker for worker in workers if worker.ready}
        epochs = {uid: worker.epoch for uid, worker in ready.items()} if breakers.any_opened else {}
        ejections = breakers.ejections(epochs)
        self.ignores_ejections = ejections.panic
        """Too many workers are ejected, so that none is left out."""
        self.left_out = {**ejections.reasons, **dict.fromkeys(tried, "tried before")}
        """Why ready workers cannot be given requests, by uid."""
        left_out = self.left_out
        self.ready = (
            {uid: worker for uid, worker in ready.items() if uid not in left_out} if left_out else ready
        )
        self.serving = frozenset(self.ready)
        """Uids of `ready` as it was made: those that `leave_out` takes from it will get requests again."""
        known = {uid: leases.loads.of(uid, worker.load) for uid, worker in self.ready.items()}
        self.loads: dict[str, WorkerLoad] = {uid: one.load for uid, one in known.items()}
        self.rates = _rates(self.ready, workers, {uid: one.rates for uid, one in known.items()})
        """Each worker's own rates, or its peers'."""
        self._floors = {uid: one.floor for uid, one in known.items()}
        self.seats = sum(load.max_running_sequences for load in self.loads.values())
        """Of all of them; 0 while they are unknown."""
        sizes = [worker.hello.block_size_tokens for worker in self.ready.values() if worker.hello is not None]
        self.block_size_tokens = max(sizes, default=PRIOR_BLOCK_TOKENS)

    def load_with(self, uid: str, planned: UnreportedLoad) -> WorkerLoad:
        """A worker's load when it has got what is planned for it, too."""
        return self._leases.loads.load_with(uid, self.ready[uid].load, planned)

    def floor(self, uid: str) -> PriceFloor:
        """The least that a request costs on a worker."""
        floor = self._floors[uid]
        if floor is None:
            seat_seconds = self._leases.seat_times.seconds(uid)
            floor = price_floor(self.loads[uid], self.rates[uid], seat_seconds=seat_seconds)
        return floor

    def charged(self, uid: str) -> None:
        """A request was sent to `uid`: read its load again."""
        known = self._leases.loads.of(uid, self.ready[uid].load)
        self.loads[uid], self._floors[uid] = known.load, known.floor

    def leave_out(self, uid: str, reason: str) -> None:
        """Give `uid` no request that follows."""
        self.left_out[uid] = reason
        del self.ready[uid], self.loads[uid]

    def nearest(self, need: Need, tried: Collection[str] = ()) -> str:
        """The worker that has the fewest seats, then blocks, too few for `need`.

        A worker that gets no requests stays nearest, or another one becomes nearer.
        """

        def missing(uid: str) -> tuple[float, float, str]:
            load = self.loads[uid]
            sequences = load.sequences + need.sequences - (load.max_running_sequences or math.inf)
            blocks = load.pinned_blocks + need.blocks - (load.total_blocks or math.inf)
            return max(sequences, 0), max(blocks, 0), uid

        return min((uid for uid in self.loads if uid not in tried), key=missing)

    def soonest_idle(self, tried: Collection[str] = ()) -> str:
        """The worker that has the least prefill in its queue.

        A worker that gets no requests stays so, or another one becomes sooner.
        """

        def left(uid: str) -> tuple[float, str]:
            return prefill_seconds(self.loads[uid].queued_uncached_tokens, self.rates[uid]), uid

        return min((uid for uid in self.loads if uid not in tried), key=left)

    def shortages(
        self, need: Need, limits: CapacityLimits, tried: Collection[str] = ()
    ) -> set[Shortage | None]:
        """What the workers that were not `tried` lack for `need`; None stands for one that lacks nothing."""
        return {
            shortage_in(load, self.rates[uid], need, limits)
            for uid, load in self.loads.items()
            if uid not in tried
        }

    def is_within_window(self, uid: str, tokens: int, limits: CapacityLimits) -> bool:
        """Whether `tokens` of prefill on a worker leave its window open."""
        return prefill_seconds(tokens, self.rates[uid]) < limits.window_seconds

    def has_capacity(self, need: Need, limits: CapacityLimits, tried: Collection[str] = ()) -> bool:
        """Whether `need` fits anywhere."""
        return any(
            shortage_in(load, self.rates[uid], need, limits) is None
            for uid, load in self.loads.items()
            if uid not in tried
        )


def _rates(
    ready: Mapping[str, WorkerStatus], workers: Sequence[WorkerStatus], own: Mapping[str, StepRates | None]
) -> Mapping[str, StepRates]:
    unmeasured = {ready[uid].identity for uid, rates in own.items() if rates is None}
    if not unmeasured:
        return cast("Mapping[str, StepRates]", own)
    peers = {
        identity: median_rates(worker.load.step_time for worker in workers if worker.identity == identity)
        for identity in unmeasured
    }
    return {uid: rates or peers[ready[uid].identity] for uid, rates in own.items()}
