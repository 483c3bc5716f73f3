"""Assigns workers to requests: which one, what is charged for it, and how that is given back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.worker_api import HIGHEST_PRIORITY
from warmfleet_router.admission.dispatch import Dispatch, RequestUsage
from warmfleet_router.admission.isolation import ALONE_SECONDS, Isolations
from warmfleet_router.admission.model_queue import ModelQueue, WaitingRequest, cost_of
from warmfleet_router.admission.placement import Patience, Placement, place
from warmfleet_router.admission.queue_bypass import may_bypass
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage, shortage_in
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot, KeptFleet
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import NONE_LEFT_OUT, NOTHING_PLANNED, PickedWorker, Picker
from warmfleet_router.routing.policies import PRICED
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.fleet import WorkerStatus

NONE_TRIED: Final[frozenset[str]] = frozenset()


class Assigner:
    """Decides for one request at a time; `assign` charges the worker and the tenant."""

    def __init__(
        self,
        limits: CapacityLimits,
        *,
        workers: Callable[[str], Sequence[WorkerStatus]],
        picker: Picker,
        leases: Leases,
        breakers: Breakers,
        on_release: Callable[[Dispatch], None],
        touched: Callable[[Sequence[BlockHash]], None],
    ) -> None:
        """`workers` returns a model's; `touched` counts a use of the blocks of a prompt."""
        self.limits = limits
        self._workers = workers
        self._picker = picker
        self._leases = leases
        self._breakers = breakers
        self._on_release = on_release
        self._touched = touched
        self._isolations = Isolations(leases.now)
        self._fleets: dict[str, KeptFleet] = {}

    def forget(self, model: str) -> None:
        """A model has gone, and no request waits for it."""
        self._fleets.pop(model, None)

    def most_seats(self, model: str) -> int:
        """What the widest worker of a model has reported; 0 if none has."""
        return max((worker.load.max_running_sequences for worker in self._workers(model)), default=0)

    def has_workers(self, model: str) -> bool:
        """Whether a model has workers at all, ready or not."""
        return bool(self._workers(model))

    def snapshot(self, queue: ModelQueue, tried: Collection[str] = NONE_TRIED) -> FleetSnapshot:
        """The workers of a model that can be given requests now."""
        kept = self._fleets.get(queue.model)
        if kept is None:
            kept = self._fleets[queue.model] = self._picker.fleet()
        kept.update(self._workers(queue.model))
        fleet = kept.snapshot(tried)
        for uid in self._isolations.workers:
            if uid in fleet.ready:
                fleet.leave_out(uid, "computes a prompt alone that may have ended an engine")
        return fleet

    def decide(
        self,
        request: QueuedRequest,
        queue: ModelQueue,
        fleet: FleetSnapshot,
        *,
        patience: Patience | None,
        is_next: bool,
        left_out: Mapping[str, str] = NONE_LEFT_OUT,
        planned: Mapping[str, UnreportedLoad] = NOTHING_PLANNED,
    ) -> Placement:
        """A worker of `fleet` that is not `left_out`, or why it is better to wait; changes nothing.

        `patience`: for the cheapest worker while another has capacity. `is_next`: the request is first in the
        fair order, so that it may bypass what a worker was sent.
        """
        for shortlisted in (True, False):
            ranked = self._picker.rank(
                fleet, request.prompts, left_out=left_out, planned=planned, shortlisted=shortlisted
            )
            if ranked is None:
                break
            placement = place(
                ranked,
                fleet.loads,
                self.limits,
                may_use_headroom=_is_within_share(request, queue, fleet),
                # Only where the order is one of cost can a wait pay.
                patience=patience if fleet.policy in PRICED else None,
                may_bypass=lambda uid: is_next and self.may_bypass(request, queue, fleet, uid),
            )
            if placement is not None:
                return placement
        reasons = sorted({*fleet.left_out.values(), *left_out.values()})
        return Placement(None, f"every ready worker is left out: {'; '.join(reasons)}")

    def left_out(
        self,
        request: QueuedRequest,
        fleet: FleetSnapshot,
        *,
        tried: frozenset[str] = NONE_TRIED,
        waited_seconds: float = 0.0,
    ) -> dict[str, str]:
        """Workers of `fleet` that this request does not get now, by uid, with the reason.

        A suspect gets none that computes another prompt, until it has waited for too long.
        """
        left_out = dict.fromkeys(tried, "tried before")
        if request.is_suspect and waited_seconds < ALONE_SECONDS:
            computing = [uid for uid in fleet.ready if self._computes_a_prompt(fleet, uid)]
            left_out = {**dict.fromkeys(computing, "computes another prompt"), **left_out}
        return left_out

    def _computes_a_prompt(self, fleet: FleetSnapshot, uid: str) -> bool:
        """Whether a prompt at a worker may have no token yet, by its report and by what was sent to it."""
        load = fleet.loads[uid]
        is_reported = load.queued_uncached_tokens > 0 or load.waiting_sequences > 0
        return is_reported or self._leases.awaits_first_byte(uid)

    def lacks_capacity(
        self, request: QueuedRequest, queue: ModelQueue, fleet: FleetSnapshot, wished: Placement
    ) -> bool:
        """Whether the worker that a request waits for is there and still lacks capacity for it.

        Prices no other worker, and that one only if the request might follow what it is computing.
        """
        uid, plan = wished.plan_uid, wished.plan
        if uid not in fleet.ready:
            return False
        need = Need(plan.seats, plan.blocks, _is_within_share(request, queue, fleet))
        lack = shortage_in(fleet.loads[uid], fleet.prices[uid].rates, need, self.limits)
        if lack is not Shortage.PREFILL:
            return lack is not None
        others = {other: "is not waited for" for other in fleet.ready if other != uid}
        placement = self.decide(request, queue, fleet, patience=None, is_next=False, left_out=others)
        return placement.picked is None

    def may_bypass(self, request: QueuedRequest, queue: ModelQueue, fleet: FleetSnapshot, uid: str) -> bool:
        """Whether the request, if it is next, passes what this router has sent to a worker."""
        return may_bypass(
            request.tenant.name,
            request.priority,
            queue.prefills.on(uid),
            counter=queue.received_by,
            is_within_window=lambda tokens: fleet.is_within_window(uid, tokens, self.limits),
        )

    def need(
        self,
        request: QueuedRequest,
        queue: ModelQueue,
        fleet: FleetSnapshot,
        *,
        may_use_headroom: bool | None = None,
    ) -> Need:
        """What the request needs of a worker; headroom by the tenant's share unless it is given."""
        if may_use_headroom is None:
            may_use_headroom = _is_within_share(request, queue, fleet)
        return Need(request.sequences, -(-request.prompt_tokens // fleet.block_size_tokens), may_use_headroom)

    def assign_at_once(self, request: QueuedRequest, queue: ModelQueue, picked: PickedWorker) -> Dispatch:
        """Charge worker and tenant for a request that did not have to wait."""
        cost = queue.expected_cost(request, picked.candidate.uncached_tokens)
        queue.serve_at_once(request, cost)
        return self._dispatch(request, queue, picked, RequestUsage(cost), is_alone=request.is_suspect)

    def assign_waiting(self, waiting: WaitingRequest, queue: ModelQueue, picked: PickedWorker) -> Dispatch:
        """Take a request out of its queue and charge the worker; a retry costs its tenant nothing more."""
        request, failed = waiting.request, waiting.failed
        waited_seconds = self._leases.now() - waiting.since
        if failed is not None:
            queue.remove(waiting)
            return self.reassign(request, failed, queue, picked, waited_seconds=waited_seconds)
        cost = queue.expected_cost(request, picked.candidate.uncached_tokens)
        queue.serve(waiting, cost)
        return self._dispatch(
            request,
            queue,
            picked,
            RequestUsage(cost),
            is_alone=_is_alone(request, waited_seconds),
            queued_seconds=waited_seconds,
        )

    def reassign(
        self,
        request: QueuedRequest,
        failed: Dispatch,
        queue: ModelQueue,
        picked: PickedWorker,
        *,
        waited_seconds: float | None = None,
    ) -> Dispatch:
        """Charge another worker for a request whose dispatch failed."""
        queued_seconds = failed.queued_seconds
        if waited_seconds is not None:
            queued_seconds = (queued_seconds or 0.0) + waited_seconds
        return self._dispatch(
            request,
            queue,
            picked,
            failed.usage,
            is_alone=_is_alone(request, waited_seconds or 0.0),
            tried=failed.tried,
            queued_seconds=queued_seconds,
        )

    def leave_worker(self, dispatch: Dispatch, queue: ModelQueue) -> None:
        """Give back the worker of `dispatch`. Idempotent."""
        usage = dispatch.usage
        if not usage.is_completed:
            usage.output_tokens = max(usage.output_tokens, dispatch.lease.generated_tokens)
        dispatch.lease.close()
        dispatch.trial.release()
        queue.prefills.remove(dispatch.lease)
        if dispatch.isolation is not None:
            self._isolations.end(dispatch.isolation)
        if usage.seats:
            queue.shares.give_back(dispatch.request.tenant.name, usage.seats)
            usage.seats = 0

    def settle(self, dispatch: Dispatch, queue: ModelQueue) -> bool:
        """Give back the worker and correct what the tenant was charged; False if that was done before."""
        self.leave_worker(dispatch, queue)
        usage = dispatch.usage
        if usage.is_settled:
            return False
        usage.is_settled = True
        usage.output_tokens = min(usage.output_tokens, dispatch.request.most_output_tokens)
        true_cost = cost_of(dispatch.picked.candidate.uncached_tokens, usage.output_tokens)
        queue.correct(dispatch.request.tenant.name, true_cost - usage.charged_cost)
        return True

    def _dispatch(
        self,
        request: QueuedRequest,
        queue: ModelQueue,
        picked: PickedWorker,
        usage: RequestUsage,
        *,
        is_alone: bool,
        tried: frozenset[str] = NONE_TRIED,
        queued_seconds: float | None = None,
    ) -> Dispatch:
        if not tried:
            for prompt in picked.prediction.prompts:
                self._touched(prompt.hashes)
        tenant = request.tenant.name
        priority = max(request.priority - picked.bypasses, HIGHEST_PRIORITY)
        most_tokens = min(request.most_output_tokens, request.sequences * picked.context_tokens)
        lease = self._leases.lease(picked.charge, most_generated_tokens=most_tokens).open()
        queue.prefills.add(lease, tenant, priority)
        self._isolations.join(picked.candidate.uid)
        isolation = self._isolations.begin(lease) if is_alone else None
        usage.seats = request.sequences
        queue.shares.take(tenant, usage.seats)
        return Dispatch(
            request,
            picked,
            lease,
            self._breakers.trial(picked.endpoint.uid, picked.epoch),
            priority,
            tried | {picked.candidate.uid},
            queued_seconds,
            usage,
            isolation,
            self._on_release,
        )


def _is_alone(request: QueuedRequest, waited_seconds: float) -> bool:
    """Whether a request was assigned to a worker because that computes no other prompt (`left_out`)."""
    return request.is_suspect and waited_seconds < ALONE_SECONDS


def _is_within_share(request: QueuedRequest, queue: ModelQueue, fleet: FleetSnapshot) -> bool:
    tenant = request.tenant
    return queue.shares.is_within(tenant.name, tenant.weight, request.sequences, fleet.seats)
