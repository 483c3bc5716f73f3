"""Picks the worker for a request: predict what is cached, price, rank, pick.

The picker reads the workers' status, the prefix index, pending blocks and open dispatches, and changes
nothing. The caller takes a lease on the worker that it picked.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from warmfleet_contracts.cache.kv_events import MAX_COUNT
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.routing.cost import CostTerms, Work, WorkerLoad
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot, KeptFleet
from warmfleet_router.routing.leases import Charge, Leases
from warmfleet_router.routing.matched_prompts import MatchedPrompts
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.policies import (
    LOAD_POLICIES,
    PRICED,
    Candidate,
    Ranking,
    RoutedRequest,
    agreed_policy,
    lowest_cost,
    rendezvous_weights,
)
from warmfleet_router.routing.prediction import Prediction, Predictor
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.routing.shortlist import LISTED_WORKERS, RequestFloor, ascending_floors, shortlist
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import PrefixIndex


class PickedWorker(msgspec.Struct, frozen=True):
    """The worker that was picked, and everything that led to it."""

    endpoint: Endpoint
    epoch: str
    """Epoch of the worker process that was picked."""
    left_out: Mapping[str, str]
    """Why ready workers were not considered, by uid."""
    candidate: Candidate
    prediction: Prediction
    ranking: Ranking
    charge: Charge
    policy: str
    """Name of the policy that ranked the workers."""
    context_tokens: int = MAX_COUNT
    """Most of a prompt and its answer at this worker."""
    bypasses: bool = False
    """It goes before what waits at the worker, also where the prefill window there is full."""
    ignores_ejections: bool = False
    """Too many workers are ejected, so that none is left out."""


class RankedWorkers(msgspec.Struct, frozen=True):
    """The workers that can be given a request, best first; `pick` picks one of them."""

    ranking: Ranking
    policy: str
    """Name of the policy that ranked them."""
    sequences: int
    left_out: Mapping[str, str]
    """Why ready workers were not considered, by uid: ejected, tried before, or kept for another request."""
    ignores_ejections: bool
    workers: Mapping[str, WorkerStatus]
    predictions: Mapping[str, Prediction]
    certain: int
    """So many candidates are the first of a ranking of all workers, in the same order."""

    def needed_blocks(self, candidate: Candidate) -> int:
        """KV blocks that the prompts would pin at that worker."""
        return self.predictions[candidate.uid].needed_blocks

    def pick(self, candidate: Candidate, reason: str = "", *, bypasses: bool = False) -> PickedWorker:
        """Pick `candidate`; `reason` is given where it is not the ranking's first."""
        worker, prediction = self.workers[candidate.uid], self.predictions[candidate.uid]
        return PickedWorker(
            endpoint=worker.endpoint,
            epoch=worker.epoch,
            left_out=self.left_out,
            candidate=candidate,
            prediction=prediction,
            ranking=self.ranking.led_by(candidate, reason) if reason else self.ranking,
            charge=Charge(
                uid=candidate.uid,
                uncached_tokens=candidate.uncached_tokens,
                blocks=prediction.needed_blocks,
                sequences=self.sequences,
                new_hashes=prediction.new_hashes,
                first_hashes=prediction.new_first_hashes,
            ),
            policy=self.policy,
            context_tokens=worker.hello.max_model_length_tokens if worker.hello is not None else MAX_COUNT,
            bypasses=bypasses,
            ignores_ejections=self.ignores_ejections,
        )


NONE_LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType({})
NOTHING_PLANNED: Final[Mapping[str, UnreportedLoad]] = MappingProxyType({})


class Picker:
    """Picks among the workers of one model.

    snapshot = picker.snapshot(fleet.workers("org/model"))  # or that of a `KeptFleet`, for many decisions
    ranked = picker.rank(snapshot, prompts)  # None if no worker is ready
    picked = ranked.pick(ranked.ranking.candidates[0])
    """

    def __init__(
        self, index: PrefixIndex, leases: Leases, policy: str, breakers: Breakers | None = None
    ) -> None:
        """`policy` ranks for models whose deployment names none. Without `breakers` no worker is left out."""
        self.predictor = Predictor(index, leases.pending)
        self._index = index
        self._breakers = breakers if breakers is not None else Breakers()
        self._leases = leases
        self._policy = policy

    def snapshot(self, workers: Sequence[WorkerStatus], tried: Collection[str] = ()) -> FleetSnapshot:
        """The workers as they are now, for all calls of `rank` that follow at once."""
        fleet = self.fleet()
        fleet.update(workers)
        return fleet.snapshot(tried)

    def fleet(self) -> KeptFleet:
        """Keeps one model's workers from one decision to the next."""
        return KeptFleet(self._leases, self._breakers, self._policy)

    def policy_among(self, workers: Sequence[WorkerStatus]) -> str:
        """Name of the policy by which `workers` are ranked."""
        return agreed_policy((worker.endpoint.policy for worker in workers), self._policy)

    def pick(
        self, workers: Sequence[WorkerStatus], prompts: RequestPrompts, *, excluded: Collection[str] = ()
    ) -> PickedWorker | None:
        """The best ready worker that is neither `excluded` nor ejected; None if there is none."""
        ranked = self.rank(self.snapshot(workers, excluded), prompts)
        return ranked.pick(ranked.ranking.candidates[0]) if ranked is not None else None

    def rank(
        self,
        fleet: FleetSnapshot,
        prompts: RequestPrompts,
        *,
        left_out: Mapping[str, str] = NONE_LEFT_OUT,
        planned: Mapping[str, UnreportedLoad] = NOTHING_PLANNED,
        shortlisted: bool = True,
    ) -> RankedWorkers | None:
        """The workers of `fleet` that are not `left_out`, best first; None if there is none.

        `left_out` holds reasons by uid; `planned` is what will be sent to a worker before this request. Of a
        large fleet only the first workers are candidates, unless all are asked for: `shortlisted=False`.
        """
        workers = self.considered(fleet, prompts, left_out)
        if not workers:
            return None
        matched = MatchedPrompts(prompts, self._index, self._leases.pending, self.predictor)
        pricing = _Pricing(fleet, matched, workers, planned)
        count = LISTED_WORKERS if shortlisted else len(workers)
        request = RoutedRequest(
            head_key=prompts.head_key,
            tie_key=matched.tie_key(workers),
            dispatch_count=self._leases.dispatches.count,
        )
        if fleet.policy in PRICED:
            listed = shortlist(
                pricing.request_floors(),
                pricing.total_ms,
                partial(rendezvous_weights, request.tie_key),
                count=count,
            )
            request = replace(request, unlisted_equals=listed.unlisted_equals)
            ranking = lowest_cost([pricing.candidate(uid) for uid in listed.uids], request)
            certain = listed.certain
        else:
            order = LOAD_POLICIES[fleet.policy](pricing.loads(), request, count)
            candidates = tuple([pricing.candidate(uid) for uid in order.uids])
            ranking = Ranking(candidates, order.scores, order.reason)
            certain = len(candidates)
        return RankedWorkers(
            ranking=replace(ranking, unlisted=len(workers) - len(ranking.candidates)),
            policy=fleet.policy,
            sequences=prompts.sequences,
            left_out={**fleet.left_out, **left_out},
            ignores_ejections=fleet.ignores_ejections,
            workers=workers,
            predictions=pricing.predictions,
            certain=certain,
        )

    def considered(
        self,
        fleet: FleetSnapshot,
        prompts: RequestPrompts,  # noqa: ARG002 - others consider by prompt
        left_out: Mapping[str, str],
    ) -> Mapping[str, WorkerStatus]:
        """The ready workers among which the prompts' place is decided."""
        if not left_out:
            return fleet.ready
        return {uid: worker for uid, worker in fleet.ready.items() if uid not in left_out}


class _Pricing:
    """What one request costs on each of `workers`."""

    def __init__(
        self,
        fleet: FleetSnapshot,
        matched: MatchedPrompts,
        workers: Mapping[str, WorkerStatus],
        planned: Mapping[str, UnreportedLoad],
    ) -> None:
        self.predictions: dict[str, Prediction] = {}
        """Of each candidate."""
        self._fleet = fleet
        self._floors, self._group = fleet.floors, fleet.group
        self._matched = matched
        self._workers = workers
        self._planned = planned
        self._cold: dict[int, Work] = {}
        """By the place of their group, of workers that hold and compute nothing of the prompts."""
        self._warm: dict[str, Work] = {}
        """By uid, of the others."""
        for place, alike in enumerate(fleet.alike):
            works = matched.works(alike, workers)
            if works.cold is not None:
                self._cold[place] = works.cold
            self._warm.update(works.warm)
        self._costs: dict[str, CostTerms] = {}

    def request_floors(self) -> Iterator[RequestFloor]:
        """What it costs at least on each worker, in ascending order."""
        floors, left_out = self._floors, set[str]()
        if len(self._workers) < len(floors):
            left_out = floors.keys() - self._workers.keys()
        # Where something is planned the wait for seats may be shorter, as more sequences will end.
        known: list[RequestFloor] = [(0.0, uid, False) for uid in self._planned if uid in self._workers]
        known += [
            (floors[uid].at(work.uncached_tokens), uid, floors[uid].is_price_of(work))
            for uid, work in self._warm.items()
            if uid not in self._planned
        ]
        return ascending_floors(
            [(self._fleet.classes[place], work) for place, work in self._cold.items()],
            known=known,
            skipped={*self._warm, *self._planned, *left_out},
        )

    def total_ms(self, uid: str) -> float:
        """What it costs on a worker."""
        planned = self._planned.get(uid)
        prices = self._fleet.prices[uid] if planned is None else self._fleet.prices_with(uid, planned)
        cost = self._costs[uid] = prices.cost(self._work(uid))
        return cost.total_ms

    def loads(self) -> Mapping[str, WorkerLoad]:
        """Load of each worker."""
        return {uid: self._load(uid) for uid in self._workers}

    def candidate(self, uid: str) -> Candidate:
        """A worker with its price."""
        worker, fleet = self._workers[uid], self._fleet
        prediction = self.predictions[uid] = self._matched.prediction(worker)
        if uid not in self._costs:
            self.total_ms(uid)
        return Candidate(
            uid=uid,
            endpoint=worker.endpoint.name,
            precise=prediction.precise,
            cached_tokens=prediction.cached_tokens,
            pending_tokens=prediction.pending_tokens,
            uncached_tokens=prediction.uncached_tokens,
            load=self._load(uid),
            rates=fleet.prices[uid].rates,
            cost=self._costs[uid],
        )

    def _work(self, uid: str) -> Work:
        return self._warm.get(uid) or self._cold[self._group[uid]]

    def _load(self, uid: str) -> WorkerLoad:
        planned = self._planned.get(uid)
        return self._fleet.loads[uid] if planned is None else self._fleet.load_with(uid, planned)
