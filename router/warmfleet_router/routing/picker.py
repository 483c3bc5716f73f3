"""Picks the worker for a request: predict what is cached, price, rank, pick.

The picker reads the workers' status, the prefix index, pending blocks and open dispatches, and changes
nothing. The caller takes a lease on the worker that it picked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.routing.cost import Work, request_cost
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.leases import Charge, Leases
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.policies import POLICIES, Candidate, Ranking, RoutedRequest, agreed_policy
from warmfleet_router.routing.prediction import Prediction, Predictor
from warmfleet_router.routing.prompt_hashes import RequestPrompts
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
    """Why ready workers were not considered, by uid: ejected, or tried before."""
    ignores_ejections: bool
    workers: Mapping[str, WorkerStatus]
    predictions: Mapping[str, Prediction]

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
        tried: Collection[str] = (),
        planned: Mapping[str, UnreportedLoad] = NOTHING_PLANNED,
    ) -> RankedWorkers | None:
        """Every worker of `fleet` that was not `tried`, best first; None if there is none.

        `planned` is what will be sent to a worker before this request, by uid.
        """
        workers = {uid: worker for uid, worker in fleet.ready.items() if uid not in tried}
        if not workers:
            return None
        predictions = {uid: self.predictor.predict(worker, prompts) for uid, worker in workers.items()}
        candidates = [
            self._candidate(fleet, worker, predictions[uid], prompts.sequences, planned.get(uid))
            for uid, worker in workers.items()
        ]
        request = RoutedRequest(
            head_key=prompts.head_key,
            tie_key=_tie_key(workers.values(), prompts, predictions.values()),
            dispatch_count=self._leases.dispatches.count,
        )
        return RankedWorkers(
            ranking=POLICIES[fleet.policy](candidates, request),
            policy=fleet.policy,
            sequences=prompts.sequences,
            left_out={**fleet.left_out, **dict.fromkeys(tried, "tried before")},
            ignores_ejections=fleet.ignores_ejections,
            workers=workers,
            predictions=predictions,
        )

    def _candidate(
        self,
        fleet: FleetSnapshot,
        worker: WorkerStatus,
        prediction: Prediction,
        sequences: int,
        planned: UnreportedLoad | None,
    ) -> Candidate:
        uid = worker.endpoint.uid
        load = fleet.loads[uid] if planned is None else fleet.load_with(uid, planned)
        rates = fleet.rates[uid]
        uncached = prediction.prompt_tokens - prediction.cached_tokens
        work = Work(uncached_tokens=uncached, needed_blocks=prediction.needed_blocks, sequences=sequences)
        return Candidate(
            uid=uid,
            endpoint=worker.endpoint.name,
            precise=prediction.precise,
            cached_tokens=prediction.cached_tokens,
            pending_tokens=prediction.pending_tokens,
            uncached_tokens=uncached,
            load=load,
            rates=rates,
            cost=request_cost(work, load, rates, seat_seconds=self._leases.seat_times.seconds(uid)),
        )


def _tie_key(
    workers: Iterable[WorkerStatus], prompts: RequestPrompts, predictions: Iterable[Prediction]
) -> bytes:
    """The first block of the first prompt that no candidate holds; the whole prompt if all are held.

    Only resident blocks count here, not pending ones: every router sees the same residents, so that
    requests with the same new prefix meet at the same worker, whichever router they came through.
    """
    chains = [
        (worker.identity, hashed[0].hashes)
        for worker in workers
        if worker.hello is not None and (hashed := prompts.hashed(worker.hello)) is not None
    ]
    if not chains:
        return prompts.whole_key
    held_blocks = max(prediction.first.resident_blocks for prediction in predictions)
    _, hashes = min(chains)
    return hashes[held_blocks] if held_blocks < len(hashes) else prompts.whole_key
