"""Admits requests: gives each a worker with capacity, or lets it wait in its model's queue for one.

A request goes to a worker at once while one has capacity and no other request waits. Otherwise it waits here,
where the order can be decided: between tenants by what they have got (`fair_queue`), within a tenant by
priority and arrival. The `dispatcher` assigns workers to the requests that wait.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.assignment import Assigner
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.dispatcher import Dispatcher
from warmfleet_router.admission.in_flight_limits import InFlightLimits, InFlightTicket
from warmfleet_router.admission.model_queue import ModelQueue
from warmfleet_router.admission.placement import Patience
from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.admission.wait_queue import WaitQueue
from warmfleet_router.admission.waking_queue import WakingQueue
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.prompt_hashes import BYTES_PER_TOKEN
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.fleet import WorkerStatus


class ModelWaits(NamedTuple):
    """Requests of one model that wait in this router, and their prompts' tokens."""

    queued_requests: int = 0
    queued_tokens: int = 0
    """For a worker with capacity."""
    held_requests: int = 0
    held_tokens: int = 0
    """For the model to wake."""


class Admission:
    """The queues of one router. Not shared between threads.

    with limits.enter(tenant) as ticket:
        ...  # read the body, each piece of it through `ticket.receive`
        answer_tokens = admission.reserve(ticket, model, priority=0, sequences=1, output_limit_tokens=None)
        ...  # encode the prompt
        dispatch = await admission.submit(request, on_queued=recorder.queued)
        ...  # if the worker fails: await admission.retry(dispatch)
        dispatch.release()
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        limits: InFlightLimits,
        workers: Callable[[str], Sequence[WorkerStatus]],
        picker: Picker,
        leases: Leases,
        breakers: Breakers,
        capacity_changed: asyncio.Event,
        metrics: RouterMetrics,
        touched: Callable[[Sequence[BlockHash]], None] = lambda _: None,
        hold_seconds: Callable[[str], float | None] = lambda _: None,
        is_settled: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`workers` returns those of a model; `capacity_changed` is set when one may have capacity again.

        `touched` counts a use of the blocks of a prompt, once per request. `hold_seconds` and `is_settled`
        are for the requests of models that may sleep (`waking_queue`).
        """
        self._limits = limits
        self._now = leases.now
        self._capacity_changed = capacity_changed
        self._queues: dict[str, ModelQueue] = {}
        self._settings = settings
        self._wait_queue = WaitQueue(settings, now=leases.now, metrics=metrics)
        self._assigner = Assigner(
            settings.room,
            workers=workers,
            picker=picker,
            leases=leases,
            breakers=breakers,
            on_release=self._release,
            touched=touched,
        )
        self.waking = WakingQueue(
            settings.max_waking,
            hold_seconds=hold_seconds,
            workers=workers,
            is_settled=is_settled,
            queued=self._queued,
            now=leases.now,
            metrics=metrics,
        )
        """Requests of models that sleep, before they are encoded."""
        self._dispatcher = Dispatcher(
            settings,
            self._queues,
            self._wait_queue,
            self._assigner,
            self.waking,
            capacity_changed=capacity_changed,
            now=leases.now,
            metrics=metrics,
        )

    async def start(self) -> None:
        """Begin to serve requests that wait; returns at once."""
        await self._dispatcher.start()
        await self.waking.start()

    async def stop(self) -> None:
        """End that service."""
        await self.waking.stop()
        await self._dispatcher.stop()

    def reserve(
        self,
        ticket: InFlightTicket,
        model: str,
        *,
        priority: int,
        sequences: int,
        output_limit_tokens: int | None,
    ) -> int:
        """Reject, before its prompt is encoded, a request that no worker can hold, or that may not wait.

        `model` is one that the fleet serves. Returns the tokens to reserve for the answer: what recent ones
        took, at most what is asked for.

        Raises:
            RequestError: 400 for more sequences than any worker has seats, 429.
        """
        if sequences > 1 and 0 < (seats := self._assigner.most_seats(model)) < sequences:
            raise RequestError(
                f"the request asks for {sequences} sequences, prompts times n; a replica of model {model!r} "
                f"computes at most {seats} at once: send it in parts",
                code="too_many_sequences",
            )
        queue, tenant = self._queue(model), ticket.tenant
        queue.shares.seen(tenant.name, tenant.weight)
        if queue.waiting:
            size = Amount(1, ticket.body_bytes, ticket.body_bytes // BYTES_PER_TOKEN)
            self._wait_queue.check(queue, tenant, priority, size, is_retry=ticket.is_retry)
        return round(queue.expected_output_tokens(output_limit_tokens, sequences))

    async def submit(self, request: QueuedRequest, *, on_queued: Callable[[int, str], object]) -> Dispatch:
        """A worker for `request`, at once or after it waited.

        `on_queued` is called when it begins to wait, with about how many are before it, and why it waits.

        Raises:
            RequestError: no worker is there, or none became ready (503); it may not wait, or it waited too
                long (429).
        """
        queue = self._queue(request.model)
        fleet = self._assigner.snapshot(queue)
        because = f"{queue.waiting} wait already"
        if not fleet.serving:
            if not (self._assigner.has_workers(request.model) or self.waking.is_asleep(request.model)):
                raise no_worker_error(request.model)
            because = "no worker is ready"
        elif not queue.waiting:
            placement = self._assigner.decide(
                request,
                queue,
                fleet,
                patience=Patience.of(self._settings),
                is_next=True,
                left_out=self._assigner.left_out(request, fleet),
            )
            if placement.picked is not None:
                return self._assigner.assign_at_once(request, queue, placement.picked)
            because = placement.because
        before = self._wait_queue.check(
            queue, request.tenant, request.priority, request.size, is_retry=request.is_retry
        )
        on_queued(before.requests, because)
        waiting = self._wait_queue.add(queue, request)
        self._capacity_changed.set()
        try:
            return await self._wait_queue.assigned(queue, waiting)
        finally:
            self.waking.look()

    async def retry(self, failed: Dispatch, *, is_suspect: bool = False) -> Dispatch | None:
        """Another worker than those tried so far: at once, or after earlier retries. None if none is left.

        A model that may sleep may be falling asleep: for it the request waits until it has woken.
        `is_suspect` is what the request is by now. The new dispatch takes over from `failed`; until it is
        there, `failed` is still to be released.

        Raises:
            RequestError: as for `submit`, where it had to wait.
        """
        request = replace(failed.request, is_suspect=is_suspect)
        queue = self._queue(request.model)
        self._assigner.leave_worker(failed, queue)
        fleet = self._assigner.snapshot(queue, failed.tried)
        if not fleet.serving and self.waking.hold_seconds(request.model) is None:
            return None
        if fleet.serving and not queue.waiting_retries:
            placement = self._assigner.decide(
                request,
                queue,
                fleet,
                patience=None,
                is_next=False,
                left_out=self._assigner.left_out(request, fleet, tried=failed.tried),
            )
            if placement.picked is not None:
                return self._assigner.reassign(request, failed, queue, placement.picked)
        waiting = self._wait_queue.add(queue, request, failed)
        self._capacity_changed.set()
        return await self._wait_queue.assigned(queue, waiting)

    @property
    def held(self) -> Amount:
        """What waits now, over all models."""
        return self._wait_queue.total

    def any_waits(self, models: Collection[str]) -> bool:
        """Whether a request for one of these models waits now, or for the model to wake."""
        return any(self._queued(model) or self.waking.holds_any(model) for model in models)

    def held_by_model(self) -> dict[str, tuple[int, int]]:
        """Requests and prompt tokens that wait, by model, for each model that was asked for before."""
        return {
            model: (queue.waiting, sum(waiting.request.prompt_tokens for waiting in queue))
            for model, queue in self._queues.items()
        }

    def waits(self) -> dict[str, ModelWaits]:
        """What waits, by model, as the operator is to read it.

        A request that was queued when its model fell asleep counts as held.
        """
        queued, held = self.held_by_model(), self.waking.reported()
        waits = {}
        for model in queued.keys() | held.keys():
            of_queue, of_sleep = queued.get(model, (0, 0)), held.get(model, (0, 0))
            if of_queue[0] and self.waking.is_asleep(model):
                of_queue, of_sleep = (0, 0), (of_queue[0] + of_sleep[0], of_queue[1] + of_sleep[1])
            waits[model] = ModelWaits(*of_queue, *of_sleep)
        return waits

    def keep_models(self, models: Collection[str]) -> None:
        """Drop what is kept of other models, but for those whose requests have not ended."""
        gone = [model for model, queue in self._queues.items() if model not in models and queue.is_idle]
        for model in gone:
            del self._queues[model]
            self._dispatcher.forget(model)
            self._assigner.forget(model)
        self.waking.keep_models(models)

    def _queued(self, model: str) -> int:
        """How many requests of a model wait."""
        queue = self._queues.get(model)
        return queue.waiting if queue is not None else 0

    def _queue(self, model: str) -> ModelQueue:
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = ModelQueue(model, self._now)
        return queue

    def _release(self, dispatch: Dispatch) -> None:
        request, usage = dispatch.request, dispatch.usage
        queue = self._queue(request.model)
        if not self._assigner.settle(dispatch, queue):
            return
        if usage.is_completed:
            queue.observe_output(usage.output_tokens, request.sequences)
            self._limits.observe_request(self._now() - request.arrived_at)
        self._capacity_changed.set()
