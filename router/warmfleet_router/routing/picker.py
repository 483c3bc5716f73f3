"""Which worker gets a request: predict, cost, choose among those that can be given one.

The picker reads the fleet of the moment, the index, pending blocks and open dispatches; it changes nothing.
Whoever acts on its choice takes a lease.
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
    """The worker that was chosen, and everything that led to it."""

    endpoint: Endpoint
    epoch: str
    """The life of the worker that was chosen."""
    left_out: Mapping[str, str]
    """Why ready workers were not considered, by uid."""
    candidate: Candidate
    prediction: Prediction
    ranking: Ranking
    charge: Charge
    policy: str
    """By which it was chosen."""
    bypasses: bool = False
    """It goes although the worker's prefill window is full, before what waits there."""
    ignores_ejections: bool = False
    """Too many workers are ejected, so that none is left out."""


class RankedWorkers(msgspec.Struct, frozen=True):
    """The workers that can be given a request, best first; `choice` makes one of them the chosen one."""

    ranking: Ranking
    policy: str
    """By which they were ranked."""
    sequences: int
    left_out: Mapping[str, str]
    """Why ready workers were not considered, by uid: ejected, or tried before."""
    ignores_ejections: bool
    views: Mapping[str, WorkerStatus]
    predictions: Mapping[str, Prediction]

    def needed_blocks(self, candidate: Candidate) -> int:
        """KV blocks that the prompts would pin there."""
        return self.predictions[candidate.uid].needed_blocks

    def pick(self, candidate: Candidate, reason: str = "", *, bypasses: bool = False) -> PickedWorker:
        """`candidate` chosen; `reason` says why, where it is not the ranking's first."""
        view, prediction = self.views[candidate.uid], self.predictions[candidate.uid]
        return PickedWorker(
            endpoint=view.endpoint,
            epoch=view.epoch,
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
    """Chooses among the views of one model."""

    def __init__(
        self, index: PrefixIndex, leases: Leases, policy: str, breakers: Breakers | None = None
    ) -> None:
        """`policy` is for models whose deployment asks for none. Without `breakers` nobody is left out."""
        self.predictor = Predictor(index, leases.pending)
        self._breakers = breakers if breakers is not None else Breakers()
        self._leases = leases
        self._policy = policy

    def snapshot(self, views: Sequence[WorkerStatus], tried: Collection[str] = ()) -> FleetSnapshot:
        """The fleet as it is now, for as many `rank` as follow at once."""
        policy = agreed_policy((view.endpoint.policy for view in views), self._policy)
        return FleetSnapshot(views, self._leases, self._breakers, tried, policy=policy)

    def pick(
        self, views: Sequence[WorkerStatus], prompts: RequestPrompts, *, excluded: Collection[str] = ()
    ) -> PickedWorker | None:
        """The best ready worker that is neither `excluded` nor ejected; None if there is none."""
        ranked = self.rank(self.snapshot(views, excluded), prompts)
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
        views = {uid: view for uid, view in fleet.ready.items() if uid not in tried}
        if not views:
            return None
        predictions = {uid: self.predictor.predict(view, prompts) for uid, view in views.items()}
        candidates = [
            self._candidate(fleet, view, predictions[uid], prompts.sequences, planned.get(uid))
            for uid, view in views.items()
        ]
        request = RoutedRequest(
            head_key=prompts.head_key,
            tie_key=_tie_key(views.values(), prompts, predictions.values()),
            dispatch_count=self._leases.dispatches.count,
        )
        return RankedWorkers(
            ranking=POLICIES[fleet.policy](candidates, request),
            policy=fleet.policy,
            sequences=prompts.sequences,
            left_out={**fleet.left_out, **dict.fromkeys(tried, "tried before")},
            ignores_ejections=fleet.ignores_ejections,
            views=views,
            predictions=predictions,
        )

    def _candidate(
        self,
        fleet: FleetSnapshot,
        view: WorkerStatus,
        prediction: Prediction,
        sequences: int,
        planned: UnreportedLoad | None,
    ) -> Candidate:
        uid = view.endpoint.uid
        load = fleet.loads[uid] if planned is None else fleet.load_with(uid, planned)
        rates = fleet.rates[uid]
        uncached = prediction.prompt_tokens - prediction.cached_tokens
        work = Work(uncached_tokens=uncached, needed_blocks=prediction.needed_blocks, sequences=sequences)
        return Candidate(
            uid=uid,
            endpoint=view.endpoint.name,
            precise=prediction.precise,
            cached_tokens=prediction.cached_tokens,
            pending_tokens=prediction.pending_tokens,
            uncached_tokens=uncached,
            load=load,
            rates=rates,
            cost=request_cost(work, load, rates, seat_seconds=self._leases.seat_times.seconds(uid)),
        )


def _tie_key(
    views: Iterable[WorkerStatus], prompts: RequestPrompts, predictions: Iterable[Prediction]
) -> bytes:
    """The first block of the first prompt that no candidate holds; the whole prompt if all are held.

    Only resident blocks count here, not pending ones: every router sees the same residents, so that
    siblings of a new prefix meet at the same worker whichever router they came through.
    """
    chains = [
        (view.identity, hashed[0].hashes)
        for view in views
        if view.hello is not None and (hashed := prompts.hashed(view.hello)) is not None
    ]
    if not chains:
        return prompts.whole_key
    held_blocks = max(prediction.first.resident_blocks for prediction in predictions)
    _, hashes = min(chains)
    return hashes[held_blocks] if held_blocks < len(hashes) else prompts.whole_key
