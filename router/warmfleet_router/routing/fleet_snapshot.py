"""One model's workers at one moment: which can be given requests, their load and their capacity."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage, prefill_seconds, shortage_in
from warmfleet_router.routing.cost import StepRates, WorkerLoad, measured_rates, median_rates, worker_load
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
        ejections = breakers.ejections({uid: worker.epoch for uid, worker in ready.items()})
        self.ignores_ejections = ejections.panic
        """Too many workers are ejected, so that none is left out."""
        self.left_out = {**ejections.reasons, **dict.fromkeys(tried, "tried before")}
        """Why ready workers cannot be given requests, by uid."""
        self.ready = {uid: worker for uid, worker in ready.items() if uid not in self.left_out}
        self.loads: dict[str, WorkerLoad] = {uid: self.load_with(uid, None) for uid in self.ready}
        self.rates = _rates(self.ready.values(), workers)
        """Each worker's own rates, or its peers'."""
        self.seats = sum(load.max_running_sequences for load in self.loads.values())
        """Of all of them; 0 while they are unknown."""
        sizes = [worker.hello.block_size_tokens for worker in self.ready.values() if worker.hello is not None]
        self.block_size_tokens = max(sizes, default=PRIOR_BLOCK_TOKENS)

    def load_with(self, uid: str, planned: UnreportedLoad | None) -> WorkerLoad:
        """A worker's report, less what has ended since, plus what this router sent or plans to send."""
        report, dispatches = self.ready[uid].load, self._leases.dispatches
        unreported = dispatches.unreported(uid, report.admitted_dispatches)
        ended = dispatches.ended(uid, report)
        if planned is not None:
            unreported += planned
        return worker_load(
            report,
            unreported_tokens=unreported.tokens,
            unreported_seats=unreported.seats,
            unreported_blocks=unreported.blocks,
            ended_seats=ended.seats,
            ended_blocks=ended.blocks,
        )

    def charged(self, uid: str) -> None:
        """A request was sent to `uid`: read its load again."""
        self.loads[uid] = self.load_with(uid, None)

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


def _rates(ready: Collection[WorkerStatus], workers: Sequence[WorkerStatus]) -> Mapping[str, StepRates]:
    own = {worker.endpoint.uid: measured_rates(worker.load.step_time) for worker in ready}
    unmeasured = {worker.identity for worker in ready if own[worker.endpoint.uid] is None}
    peers = {
        identity: median_rates(worker.load.step_time for worker in workers if worker.identity == identity)
        for identity in unmeasured
    }
    return {worker.endpoint.uid: own[worker.endpoint.uid] or peers[worker.identity] for worker in ready}
