"""One model's workers at one moment: which can be given requests, their load and their capacity."""

import math
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Final

from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage, prefill_seconds, shortage_in
from warmfleet_router.routing.cost import (
    StepRates,
    WorkerLoad,
    WorkerPrices,
    median_rates,
    price_floor,
    worker_prices,
)
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
        known_load = leases.loads.of
        known = {uid: known_load(uid, worker.load) for uid, worker in self.ready.items()}
        unmeasured = {self.ready[uid].identity for uid, one in known.items() if one.prices is None}
        self._peers_rates = {
            identity: median_rates(worker.load.step_time for worker in workers if worker.identity == identity)
            for identity in unmeasured
        }
        self.loads: dict[str, WorkerLoad] = {uid: one.load for uid, one in known.items()}
        self.prices = {uid: one.prices or self._prices_by_peers(uid) for uid, one in known.items()}
        """By each worker's own rates, or its peers'."""
        self.floors = {uid: one.floor or price_floor(self.prices[uid]) for uid, one in known.items()}
        self.rates = {uid: prices.rates for uid, prices in self.prices.items()}
        self.seats = sum([load.max_running_sequences for load in self.loads.values()])
        """Of all of them; 0 while they are unknown."""

    @cached_property
    def block_size_tokens(self) -> int:
        """Of the worker with the largest blocks."""
        sizes = [worker.hello.block_size_tokens for worker in self.ready.values() if worker.hello is not None]
        return max(sizes, default=PRIOR_BLOCK_TOKENS)

    def load_with(self, uid: str, planned: UnreportedLoad) -> WorkerLoad:
        """A worker's load when it has got what is planned for it, too."""
        return self._leases.loads.load_with(uid, self.ready[uid].load, planned)

    def prices_with(self, uid: str, planned: UnreportedLoad) -> WorkerPrices:
        """The same of its prices."""
        return self._prices(uid, self.load_with(uid, planned), self.rates[uid])

    def charged(self, uid: str) -> None:
        """A request was sent to `uid`: read its load again."""
        known = self._leases.loads.of(uid, self.ready[uid].load)
        self.loads[uid] = known.load
        prices = self.prices[uid] = known.prices or self._prices_by_peers(uid)
        self.floors[uid] = known.floor or price_floor(prices)

    def _prices_by_peers(self, uid: str) -> WorkerPrices:
        return self._prices(uid, self.loads[uid], self._peers_rates[self.ready[uid].identity])

    def _prices(self, uid: str, load: WorkerLoad, rates: StepRates) -> WorkerPrices:
        return worker_prices(load, rates, seat_seconds=self._leases.seat_times.seconds(uid))

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
