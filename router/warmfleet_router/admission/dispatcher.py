"""Serves the queues whenever a worker may have capacity again.

`capacity_changed` is set when an answer or a prefill ended, a load report came or the fleet changed. While
requests wait a slow tick does the same, so that a lost event cannot strand a request.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from warmfleet_router.admission.assignment import Assigner
from warmfleet_router.admission.model_queue import ModelQueue, WaitingRequest
from warmfleet_router.admission.placement import Placement
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.wait_queue import WaitQueue
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.capacity import Need, Shortage
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import PickedWorker

PAUSE_SECONDS: Final = 0.002
"""The queues are served once in this time at most, however many events come."""
TICK_SECONDS: Final = 0.5
SCANNED_REQUESTS: Final = 64
"""Requests considered in one go, in their order."""
MAX_PASSED_OVER: Final = 16
"""Requests without a fitting worker that may be passed over in one go, each at the price of a choice."""

_log = structlog.get_logger("warmfleet.router.admission")


@dataclass(slots=True)
class _Scan:
    """What one pass over a queue has found so far."""

    planned: dict[str, UnreportedLoad] = field(default_factory=dict)
    """What requests that wait for a worker will ask of it, by uid."""
    done: set[str] = field(default_factory=set)
    """Tenants none of whose further requests can fit."""
    passed_over: int = 0

    @property
    def is_over(self) -> bool:
        return self.passed_over >= MAX_PASSED_OVER

    def pass_over(self, placement: Placement) -> None:
        """A request prefers to wait for a worker: those behind it must reckon with that."""
        self.passed_over += 1
        before = self.planned.get(placement.plan_uid, UnreportedLoad())
        self.planned[placement.plan_uid] = before + placement.plan


class Dispatcher:
    """Assigns workers to the requests that wait, between `start` and `stop`."""

    def __init__(
        self,
        settings: AdmissionSettings,
        queues: Mapping[str, ModelQueue],
        wait_queue: WaitQueue,
        assigner: Assigner,
        *,
        capacity_changed: asyncio.Event,
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        self._settings = settings
        self._queues = queues
        self._wait_queue = wait_queue
        self._assigner = assigner
        self._capacity_changed = capacity_changed
        self._now = now
        self._metrics = metrics
        self._unready_since: dict[str, float] = {}
        """Since when a model has no ready worker, seen while requests waited for one."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to serve the queues; returns at once."""
        self._tasks.append(asyncio.create_task(self._run(), name="dispatcher"))

    async def stop(self) -> None:
        """End it; what still waits is not served any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self) -> None:
        served_at = float("-inf")
        while True:
            await self._wait_queue.is_filled.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._capacity_changed.wait()
            pause_seconds = served_at + PAUSE_SECONDS - self._now()
            if pause_seconds > 0:
                await asyncio.sleep(pause_seconds)
            self._capacity_changed.clear()
            served_at = self._now()
            for queue in [queue for queue in self._queues.values() if queue.waiting]:
                try:
                    self._serve(queue)
                except Exception:  # noqa: BLE001
                    # A fault must not end the service of all queues.
                    _log.exception("queue not served, the next event tries again", model=queue.model)

    def _serve(self, queue: ModelQueue) -> None:
        fleet = self._assigner.snapshot(queue)
        if not fleet.ready:
            self._wait_for_a_worker(queue)
            return
        self._unready_since.pop(queue.model, None)
        head = queue.head(SCANNED_REQUESTS)
        scan = _Scan()
        for waiting in head:
            if waiting.assigned.done():
                continue  # cancelled, and about to leave the queue
            is_next = scan.passed_over == 0
            if scan.is_over or not (is_next or fleet.has_capacity(Need(1), self._assigner.limits)):
                return
            picked = self._consider(waiting, queue, fleet, scan, is_next=is_next)
            if picked is not None:
                dispatch = self._assigner.assign_waiting(waiting, queue, picked)
                self._wait_queue.assign(waiting, dispatch)
                self._metrics.on_held(queue.model, dispatch.queued_seconds or 0.0)
                if dispatch.trial.is_probe:
                    fleet = self._assigner.snapshot(queue)  # the half-open worker gets no other request
                else:
                    fleet.charged(picked.candidate.uid)
        if queue.waiting and len(head) >= SCANNED_REQUESTS:
            self._capacity_changed.set()

    def _consider(
        self,
        waiting: WaitingRequest,
        queue: ModelQueue,
        fleet: FleetSnapshot,
        scan: _Scan,
        *,
        is_next: bool,
    ) -> PickedWorker | None:
        """A worker for `waiting`; None if it is passed over this time. `is_next`: none before it was."""
        request, tried = waiting.request, waiting.tried
        if tried.issuperset(fleet.ready):
            self._wait_queue.refuse(queue, waiting, no_worker_error(queue.model))
            return None
        if request.tenant.name in scan.done:
            return None
        assigner, limits = self._assigner, self._assigner.limits
        aged = self._now() - waiting.since >= self._settings.patience_seconds
        shortages = fleet.shortages(assigner.need(request, queue, fleet), limits, tried)
        if None in shortages or (
            is_next and any(assigner.may_bypass(request, queue, fleet, uid) for uid in fleet.ready)
        ):
            placement = assigner.decide(
                request,
                queue,
                fleet,
                may_wait=not aged and not tried,
                is_next=is_next,
                tried=tried,
                planned=scan.planned,
            )
            if placement.picked is None:
                scan.pass_over(placement)
            return placement.picked
        scan.passed_over += 1
        if aged or (request.sequences == 1 and Shortage.BLOCKS not in shortages):
            scan.done.add(request.tenant.name)
        widest = assigner.need(request, queue, fleet, may_use_headroom=True)
        if aged and not fleet.has_capacity(widest, limits, tried):
            # It fits nowhere and was passed over for long enough: what becomes free is kept for it.
            scan.passed_over = MAX_PASSED_OVER
        return None

    def _wait_for_a_worker(self, queue: ModelQueue) -> None:
        now = self._now()
        since = self._unready_since.setdefault(queue.model, now)
        if now - since >= self._settings.no_worker_seconds:
            for waiting in list(queue):
                self._wait_queue.refuse(queue, waiting, no_worker_error(queue.model))
