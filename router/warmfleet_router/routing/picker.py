"""Picks the worker for a request: predict what is cached, price, rank, pick.

The picker reads the workers' status, the prefix index, pending blocks and open dispatches, and changes
nothing. The caller takes a lease on the worker that it picked.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.routing.cost import CostTerms, Work, WorkerLoad, request_cost
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.leases import Charge, Leases
from warmfleet_router.routing.matched_prompts import MatchedPrompts
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.policies import (
    POLICIES,
    PRICED,
    Candidate,
    Ranking,
    RoutedRequest,
    agreed_policy,
    rendezvous_weights,
)
from warmfleet_router.routing.prediction import Prediction, Predictor
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.routing.seat_times import SeatTimes
from warmfleet_router.routing.shortlist import LISTED_WORKERS, Shortlist, shortlist
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
    bypasses: bool = False
    """It goes although the worker's prefill window is full, before what waits there."""
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
            ),
            policy=self.policy,
            bypasses=bypasses,
            ignores_ejections=self.ignores_ejections,
        )


NONE_LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType({})
NOTHING_PLANNED: Final[Mapping[str, UnreportedLoad]] = MappingProxyType({})


class Picker:
    """Picks among the workers of one model.

    snapshot = picker.snapshot(fleet.workers("org/model"))
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
        return FleetSnapshot(workers, self._leases, self._breakers, tried, policy=self.policy_among(workers))

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

        `left_out` holds reasons by uid; `planned` is what will be sent to a worker before this request. Under
        `LowestCost` only the cheapest of a large fleet are priced and ranked, unless all are asked for:
        `shortlisted=False`.
        """
        workers = dict(fleet.ready)
        for uid in left_out:
            workers.pop(uid, None)
        if not workers:
            return None
        matched = MatchedPrompts(prompts, self._index, self._leases.pending, self.predictor)
        price = _Pricing(fleet, self._leases.seat_times, matched, prompts.sequences, planned)
        listed = Shortlist(tuple(workers), certain=len(workers))
        if shortlisted and fleet.policy in PRICED and len(workers) > LISTED_WORKERS:
            listed = price.shortlist(workers)
        predictions = {uid: matched.prediction(workers[uid]) for uid in listed.uids}
        candidates = [price.candidate(workers[uid], predictions[uid]) for uid in listed.uids]
        request = RoutedRequest(
            head_key=prompts.head_key,
            tie_key=matched.tie_key(workers),
            dispatch_count=self._leases.dispatches.count,
            unlisted_equals=listed.unlisted_equals,
        )
        ranking = POLICIES[fleet.policy](candidates, request)
        return RankedWorkers(
            ranking=msgspec.structs.replace(ranking, unlisted=len(workers) - len(candidates)),
            policy=fleet.policy,
            sequences=prompts.sequences,
            left_out={**fleet.left_out, **left_out},
            ignores_ejections=fleet.ignores_ejections,
            workers=workers,
            predictions=predictions,
            certain=listed.certain,
        )


class _Pricing:
    """What one request costs on each worker of a fleet."""

    def __init__(
        self,
        fleet: FleetSnapshot,
        seat_times: SeatTimes,
        matched: MatchedPrompts,
        sequences: int,
        planned: Mapping[str, UnreportedLoad],
    ) -> None:
        self._fleet = fleet
        self._seat_times = seat_times
        self._matched = matched
        self._sequences = sequences
        self._planned = planned

    def shortlist(self, workers: Mapping[str, WorkerStatus]) -> Shortlist:
        """Those of `workers` where it costs least."""
        least_tokens = self._matched.least_uncached_tokens(workers)
        # Where something is planned the wait for seats may be shorter, as more sequences will end.
        floors = {
            uid: 0.0 if uid in self._planned else self._fleet.floor(uid).at(tokens)
            for uid, tokens in least_tokens.items()
        }
        return shortlist(
            floors,
            lambda uid: self._cost(uid, self._matched.prediction(workers[uid])).total_ms,
            rendezvous_weights(self._matched.tie_key(workers)),
        )

    def candidate(self, worker: WorkerStatus, prediction: Prediction) -> Candidate:
        """A worker with its price."""
        uid = worker.endpoint.uid
        return Candidate(
            uid=uid,
            endpoint=worker.endpoint.name,
            precise=prediction.precise,
            cached_tokens=prediction.cached_tokens,
            pending_tokens=prediction.pending_tokens,
            uncached_tokens=prediction.prompt_tokens - prediction.cached_tokens,
            load=self._load(uid),
            rates=self._fleet.rates[uid],
            cost=self._cost(uid, prediction),
        )

    def _cost(self, uid: str, prediction: Prediction) -> CostTerms:
        work = Work(
            uncached_tokens=prediction.prompt_tokens - prediction.cached_tokens,
            needed_blocks=prediction.needed_blocks,
            sequences=self._sequences,
        )
        seat_seconds = self._seat_times.seconds(uid)
        return request_cost(work, self._load(uid), self._fleet.rates[uid], seat_seconds=seat_seconds)

    def _load(self, uid: str) -> WorkerLoad:
        planned = self._planned.get(uid)
        return self._fleet.loads[uid] if planned is None else self._fleet.load_with(uid, planned)
