"""One model's workers at one moment: who can be given requests, how loaded each is, who has room."""

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
    """Workers that can be given requests now; a load is brought up to date after each dispatch."""

    def __init__(
        self,
        views: Sequence[WorkerStatus],
        leases: Leases,
        breakers: Breakers,
        tried: Collection[str] = (),
        *,
        policy: str,
    ) -> None:
        """`views` are all workers of the model; those not ready, ejected or `tried` are left out."""
        self.policy = policy
        """By its name, how one of them is chosen."""
        self._leases = leases
        ready = {view.endpoint.uid: view for view in views if view.ready}
        ejections = breakers.ejections({uid: view.epoch for uid, view in ready.items()})
        self.ignores_ejections = ejections.panic
        """Too many workers are ejected, so that none is left out."""
        self.left_out = {**ejections.reasons, **dict.fromkeys(tried, "tried before")}
        """Why ready workers cannot be given requests, by uid."""
        self.ready = {uid: view for uid, view in ready.items() if uid not in self.left_out}
        self.loads: dict[str, WorkerLoad] = {uid: self.load_with(uid, None) for uid in self.ready}
        self.rates = _rates(self.ready.values(), views)
        """Each worker's own rates, or its peers'."""
        self.seats = sum(load.max_running_sequences for load in self.loads.values())
        """Of all of them; 0 while they are unknown."""
        sizes = [view.hello.block_size_tokens for view in self.ready.values() if view.hello is not None]
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
        """A request was sent to `uid`."""
        self.loads[uid] = self.load_with(uid, None)

    def shortages(
        self, need: Need, rule: CapacityLimits, tried: Collection[str] = ()
    ) -> set[Shortage | None]:
        """What the workers lack for `need`, but for those `tried`; None is among it if one has room."""
        return {
            shortage_in(load, self.rates[uid], need, rule)
            for uid, load in self.loads.items()
            if uid not in tried
        }

    def is_within_window(self, uid: str, tokens: int, rule: CapacityLimits) -> bool:
        """Whether `tokens` of prefill on a worker leave its window open."""
        return prefill_seconds(tokens, self.rates[uid]) < rule.window_seconds

    def has_capacity(self, need: Need, rule: CapacityLimits, tried: Collection[str] = ()) -> bool:
        """Whether `need` fits anywhere."""
        return None in self.shortages(need, rule, tried)


def _rates(ready: Collection[WorkerStatus], views: Sequence[WorkerStatus]) -> Mapping[str, StepRates]:
    own = {view.endpoint.uid: measured_rates(view.load.step_time) for view in ready}
    unmeasured = {view.identity for view in ready if own[view.endpoint.uid] is None}
    peers = {
        identity: median_rates(view.load.step_time for view in views if view.identity == identity)
        for identity in unmeasured
    }
    return {view.endpoint.uid: own[view.endpoint.uid] or peers[view.identity] for view in ready}
