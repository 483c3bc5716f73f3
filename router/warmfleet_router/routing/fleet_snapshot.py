"""One model's workers at one moment: which can be given requests, their load and their capacity.

What decisions read of the workers is kept from one to the next (`KeptFleet`). Loads and prices change with
every frame, dispatch and answer; only those that did are read again. All else changes seldom: which workers
there are, which of them are ready or precise, and under which identity they cache. Then everything is read
anew.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import starmap
from typing import Final

from warmfleet_router.routing.capacity import (
    CapacityLimits,
    Need,
    Shortage,
    prefill_seconds,
    queued_seconds,
    shortage_in,
    window_seconds,
)
from warmfleet_router.routing.cost import (
    PriceFloor,
    StepRates,
    WorkerLoad,
    WorkerPrices,
    median_rates,
    price_floor,
    worker_prices,
)
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.policies import agreed_policy
from warmfleet_router.routing.shortlist import PriceClasses
from warmfleet_router.workers.breakers import NONE_EJECTED, Breakers, Ejections
from warmfleet_router.workers.fleet import WorkerStatus

PRIOR_BLOCK_TOKENS: Final = 16


class KeptFleet:
    """The workers of one model, from one decision to the next.

    fleet.update(workers)  # as they are now
    fleet.snapshot()
    """

    def __init__(self, leases: Leases, breakers: Breakers, policy: str) -> None:
        """Without workers. `policy` ranks them where their deployment names none."""
        self._leases = leases
        self._breakers = breakers
        self._own_policy = self.policy = policy
        self._workers: Sequence[WorkerStatus] = ()
        self._change = 0
        """Of `KnownLoads`, the latest that was read."""
        self._unmeasured: set[str] = set()
        """Workers that are priced by their peers' rates."""
        self._peers_rates: dict[bytes, StepRates] = {}
        """By identity, as far as they were asked for since a worker last changed."""
        self.ready: dict[str, WorkerStatus] = {}
        """By uid, as all of the following."""
        self.loads: dict[str, WorkerLoad] = {}
        self.prices: dict[str, WorkerPrices] = {}
        """By each worker's own rates, or its peers'."""
        self.floors: dict[str, PriceFloor] = {}
        self.alike: Sequence[Sequence[str]] = ()
        """The uids, in groups for which a prompt has the same blocks, and that are all precise or all not."""
        self.classes: Sequence[PriceClasses] = ()
        """The floors of each group of `alike`."""
        self.group: dict[str, int] = {}
        """The place of each worker's group in `alike`."""
        self.seats = 0
        """Of all of them; 0 while they are unknown."""

    def update(self, workers: Sequence[WorkerStatus]) -> None:
        """Read what has changed since the last time; `workers` are all of the model as they are now."""
        changed = [
            (now, before) for now, before in zip(workers, self._workers, strict=False) if now is not before
        ]
        if len(workers) != len(self._workers) or any(starmap(_differs_in_more_than_load, changed)):
            self._read_all(workers)
            return
        self._workers = workers
        for worker, _ in changed:
            if worker.ready:
                self.ready[worker.endpoint.uid] = worker
        uids = [worker.endpoint.uid for worker, _ in changed]
        if changed:
            self._peers_rates.clear()
            uids += self._unmeasured
        # A worker that has reported is in both: it is read once.
        self._read(dict.fromkeys([*uids, *self._changed_loads()]))

    def read_charged(self) -> None:
        """Read the loads that have changed since: requests were sent, or ended."""
        self._read(self._changed_loads())

    def snapshot(self, tried: Collection[str] = ()) -> "FleetSnapshot":
        """The workers as they were last read, without those ejected now and those `tried`."""
        ejections = NONE_EJECTED
        if self._breakers.any_opened:
            ejections = self._breakers.ejections({uid: worker.epoch for uid, worker in self.ready.items()})
        return FleetSnapshot(self, self._leases, ejections, tried)

    def _changed_loads(self) -> list[str]:
        """The workers whose load has changed since this was asked for; all of the router's models."""
        loads = self._leases.loads
        uids = list(loads.changed_since(self._change))
        self._change = loads.change
        return uids

    def _read_all(self, workers: Sequence[WorkerStatus]) -> None:
        self._workers = workers
        self._change = self._leases.loads.change
        self._unmeasured, self._peers_rates = set(), {}
        self.policy = agreed_policy((worker.endpoint.policy for worker in workers), self._own_policy)
        self.ready = {worker.endpoint.uid: worker for worker in workers if worker.ready}
        self.loads, self.prices, self.floors, self.seats = {}, {}, {}, 0
        alike: dict[object, list[str]] = {}
        for uid, worker in self.ready.items():
            alike.setdefault(_blocks_key(worker), []).append(uid)
        self.alike = list(alike.values())
        self.classes = [PriceClasses() for _ in self.alike]
        self.group = {uid: place for place, uids in enumerate(self.alike) for uid in uids}
        self._read(self.ready)

    def _read(self, uids: Iterable[str]) -> None:
        """Read the loads of those of `uids` that are ready workers of this model."""
        for uid in uids:
            worker = self.ready.get(uid)
            if worker is None:
                continue
            known, before = self._leases.loads.of(uid, worker.load), self.loads.get(uid)
            self.seats += known.load.max_running_sequences - (before.max_running_sequences if before else 0)
            self.loads[uid] = known.load
            prices, floor = known.prices, known.floor
            if prices is None or floor is None:
                self._unmeasured.add(uid)
                seat_seconds = self._leases.seat_times.seconds(uid)
                prices = worker_prices(known.load, self._peers(worker.identity), seat_seconds=seat_seconds)
                floor = price_floor(prices)
            else:
                self._unmeasured.discard(uid)
            self.prices[uid], self.floors[uid] = prices, floor
            self.classes[self.group[uid]].put(uid, floor)

    def _peers(self, identity: bytes) -> StepRates:
        """What stands for the rates of a worker that has not measured its own."""
        rates = self._peers_rates.get(identity)
        if rates is None:
            fits = (worker.load.step_time for worker in self._workers if worker.identity == identity)
            rates = self._peers_rates[identity] = median_rates(fits)
        return rates


class FleetSnapshot:
    """The workers of one model that can be given requests now.

    For all requests that are placed together: an event that comes meanwhile makes it out of date, and the
    next `KeptFleet.update` changes it. `charged` reads loads again after each of them.
    """

    def __init__(
        self, fleet: KeptFleet, leases: Leases, ejections: Ejections, tried: Collection[str] = ()
    ) -> None:
        """Of the ready workers those ejected or `tried` are left out."""
        self._fleet = fleet
        self._leases = leases
        self.policy = fleet.policy
        """Name of the policy that ranks them."""
        self.ignores_ejections = ejections.panic
        """Too many workers are ejected, so that none is left out."""
        self.left_out = {**ejections.reasons, **dict.fromkeys(tried, "tried before")}
        """Why ready workers cannot be given requests, by uid."""
        self.ready: Mapping[str, WorkerStatus] = _without(fleet.ready, self.left_out)
        self.serving = self.ready
        """`ready` as it was made: those that `leave_out` takes from it will get requests again."""
        self.loads: Mapping[str, WorkerLoad] = fleet.loads
        """Of `ready` and others, as all that follows."""
        self.prices: Mapping[str, WorkerPrices] = fleet.prices
        self.floors: Mapping[str, PriceFloor] = fleet.floors
        self.alike = fleet.alike
        self.classes = fleet.classes
        self.group: Mapping[str, int] = fleet.group
        out = [fleet.loads[uid] for uid in self.left_out if uid in fleet.loads]
        self.seats = fleet.seats - sum(load.max_running_sequences for load in out)
        """Of `serving`; 0 while they are unknown."""

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
        seat_seconds = self._leases.seat_times.seconds(uid)
        return worker_prices(self.load_with(uid, planned), self.prices[uid].rates, seat_seconds=seat_seconds)

    def charged(self) -> None:
        """A request was sent to one of them: read its load again."""
        self._fleet.read_charged()

    def leave_out(self, uid: str, reason: str) -> None:
        """Give `uid` no request that follows."""
        self.left_out[uid] = reason
        self.ready = _without(self.ready, {uid})

    def nearest(self, need: Need, tried: Collection[str] = ()) -> str:
        """The worker that has the fewest seats, then blocks, too few for `need`.

        A worker that gets no requests stays nearest, or another one becomes nearer.
        """

        def missing(uid: str) -> tuple[float, float, str]:
            load = self.loads[uid]
            sequences = load.sequences + need.sequences - (load.max_running_sequences or math.inf)
            blocks = load.pinned_blocks + need.blocks - (load.total_blocks or math.inf)
            return max(sequences, 0), max(blocks, 0), uid

        return min((uid for uid in self.ready if uid not in tried), key=missing)

    def soonest_idle(self, tried: Collection[str] = ()) -> str:
        """The worker that has the least prefill in its queue.

        A worker that gets no requests stays so, or another one becomes sooner.
        """

        def left(uid: str) -> tuple[float, str]:
            return queued_seconds(self.loads[uid], self.prices[uid].rates), uid

        return min((uid for uid in self.ready if uid not in tried), key=left)

    def shortages(
        self, need: Need, limits: CapacityLimits, tried: Collection[str] = ()
    ) -> set[Shortage | None]:
        """What the workers that were not `tried` lack for `need`; None stands for one that lacks nothing."""
        return {
            shortage_in(self.loads[uid], self.prices[uid].rates, need, limits)
            for uid in self.ready
            if uid not in tried
        }

    def is_within_window(self, uid: str, tokens: int, limits: CapacityLimits) -> bool:
        """Whether `tokens` of prefill on a worker leave its window open."""
        rates = self.prices[uid].rates
        return prefill_seconds(tokens, rates) < window_seconds(self.loads[uid], rates, limits)

    def has_capacity(self, need: Need, limits: CapacityLimits, tried: Collection[str] = ()) -> bool:
        """Whether `need` fits anywhere."""
        return any(
            shortage_in(self.loads[uid], self.prices[uid].rates, need, limits) is None
            for uid in self.ready
            if uid not in tried
        )


def _without(workers: Mapping[str, WorkerStatus], left_out: Collection[str]) -> Mapping[str, WorkerStatus]:
    if not left_out:
        return workers
    return {uid: worker for uid, worker in workers.items() if uid not in left_out}


def _differs_in_more_than_load(now: WorkerStatus, before: WorkerStatus) -> bool:
    return (
        now.endpoint is not before.endpoint
        or now.hello is not before.hello
        or now.ready != before.ready
        or now.precise != before.precise
    )


def _blocks_key(worker: WorkerStatus) -> object:
    """Equal for workers for which a prompt has the same blocks, and that are both precise or both not."""
    hello = worker.hello
    if hello is None:
        return worker.precise
    return hello.identity, hello.block_size_tokens, hello.tokenizer_digest, worker.precise
