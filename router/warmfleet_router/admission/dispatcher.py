"""Serves the queues whenever a worker may have capacity again.

`capacity_changed` is set when an answer or a prefill ended, a load report came or the fleet changed. While
requests wait a slow tick does the same, so that no request waits for good because an event was lost.

A pass prices a request over all workers only if that can assign it: one that waits for a worker which still
lacks capacity is passed over, and so is one that needs as much as another that fits nowhere. A pass lets the
event loop run whenever its time budget is spent, and goes on with the workers as they are then.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from warmfleet_router.admission.assignment import Assigner
from warmfleet_router.admission.model_queue import ModelQueue, WaitingRequest
from warmfleet_router.admission.placement import Patience, Placement
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.admission.wait_queue import WaitQueue
from warmfleet_router.admission.waking_queue import WakingQueue
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import PickedWorker

PAUSE_SECONDS: Final = 0.002
"""The queues are served once in this time at most, however many events come."""
PASS_SECONDS: Final = 0.005
"""A pass occupies the event loop for no longer than this, and the choice that it is at."""
TICK_SECONDS: Final = 0.5
SCANNED_REQUESTS: Final = 64
"""Requests considered in one pass, in their order."""
REPRICE_SECONDS: Final = 0.25
"""A request that waits for a worker is priced over all workers again after this time."""

FALLING_ASLEEP_SECONDS: Final = 1.0
"""The last worker of a model that may sleep refuses requests a moment before it reports that it drains."""

SMALLEST_NEED: Final = Need(1)

_log = structlog.get_logger("warmfleet.router.admission")


class _Scan:
    """What one pass over a queue has found so far."""

    def __init__(self, fleet: FleetSnapshot, limits: CapacityLimits) -> None:
        self.fleet = fleet
        """The workers that requests may still get."""
        self.planned: dict[str, UnreportedLoad] = {}
        """What requests that wait for a worker will ask of it, by uid."""
        self.is_next = True
        """Whether no request was passed over yet."""
        self._limits = limits
        self._fitting: set[Need] = set()
        """Needs that fit a worker, until one is charged."""
        self._unfit: list[Need] = []
        """Needs that fit nowhere. No worker gets more capacity until the next `look`."""
        self._kept_uid = ""

    def look(self, fleet: FleetSnapshot) -> None:
        """Go on with a newer snapshot."""
        self.fleet = fleet
        self._fitting.clear()
        self._unfit.clear()
        if self._kept_uid in fleet.ready:
            self.keep(self._kept_uid)

    def charged(self) -> None:
        """A request was assigned to a worker."""
        self.fleet.charged()
        self._fitting.clear()

    def keep(self, uid: str) -> None:
        """Keep what becomes free on a worker for a request that gets none: those behind it get others."""
        self._kept_uid = uid
        self.fleet.leave_out(uid, "kept for a request that needs more of it than is free")
        self._fitting.clear()

    @property
    def keeps_a_worker(self) -> bool:
        return bool(self._kept_uid)

    def pass_over(self, wish: Placement | None = None) -> None:
        """A request is not assigned. What it plans for the worker it waits for counts for those behind it."""
        self.is_next = False
        if wish is not None:
            before = self.planned.get(wish.plan_uid, UnreportedLoad())
            self.planned[wish.plan_uid] = before + wish.plan

    def fits_nowhere(self, need: Need) -> bool:
        """Whether no worker has capacity for `need`."""
        if need in self._fitting:
            return False
        if any(_is_contained(unfit, need) for unfit in self._unfit):
            return True
        shortages = self.fleet.shortages(need, self._limits)
        if None in shortages:
            self._fitting.add(need)
            return False
        blocks = need.blocks if Shortage.BLOCKS in shortages else 0
        self._unfit.append(Need(need.sequences, blocks, need.may_use_headroom))
        return True


class Dispatcher:
    """Assigns workers to the requests that wait, between `start` and `stop`."""

    def __init__(
        self,
        settings: AdmissionSettings,
        queues: Mapping[str, ModelQueue],
        wait_queue: WaitQueue,
        assigner: Assigner,
        waking: WakingQueue,
        *,
        capacity_changed: asyncio.Event,
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        self._settings = settings
        self._queues = queues
        self._wait_queue = wait_queue
        self._assigner = assigner
        self._waking = waking
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

    def forget(self, model: str) -> None:
        """A model has gone, and no request waits for it."""
        self._unready_since.pop(model, None)

    async def _run(self) -> None:
        while True:
            await self._wait_queue.is_filled.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._capacity_changed.wait()
            self._capacity_changed.clear()
            for queue in [queue for queue in self._queues.values() if queue.waiting]:
                try:
                    await self._serve(queue)
                except Exception:  # noqa: BLE001
                    # A fault must not end the service of all queues.
                    _log.exception("queue not served, the next event tries again", model=queue.model)
                await asyncio.sleep(0)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _serve(self, queue: ModelQueue) -> None:
        """One pass over a queue."""
        queue.shares.expire()
        fleet = self._assigner.snapshot(queue)
        if not fleet.serving:
            self._wait_for_a_worker(queue)
            return
        self._unready_since.pop(queue.model, None)
        head = queue.head(SCANNED_REQUESTS)
        scan = _Scan(fleet, self._assigner.limits)
        resumed_at, assigned = self._now(), 0
        for waiting in head:
            if self._now() - resumed_at >= PASS_SECONDS:
                await asyncio.sleep(0)
                resumed_at = self._now()
                scan.look(self._assigner.snapshot(queue))
                if not scan.fleet.serving:
                    return
            if waiting.assigned.done():
                continue  # cancelled, and about to leave the queue
            if not scan.is_next and scan.fits_nowhere(SMALLEST_NEED):
                return
            picked = self._consider(waiting, queue, scan)
            if picked is not None:
                assigned += 1
                dispatch = self._assigner.assign_waiting(waiting, queue, picked)
                self._wait_queue.assign(waiting, dispatch)
                self._metrics.on_held(queue.model, dispatch.queued_seconds or 0.0)
                if dispatch.trial.is_probe or dispatch.is_alone:
                    scan.look(self._assigner.snapshot(queue))  # the worker gets no other request
                else:
                    scan.charged()
        if assigned and len(head) >= SCANNED_REQUESTS:
            self._capacity_changed.set()  # those behind them have not been considered yet

    def _consider(self, waiting: WaitingRequest, queue: ModelQueue, scan: _Scan) -> PickedWorker | None:
        """A worker for `waiting`; None if it is passed over this time."""
        request, fleet = waiting.request, scan.fleet
        assigner, waited_seconds = self._assigner, self._now() - waiting.since
        if fleet.serving.keys() <= waiting.tried:
            may_sleep = self._waking.hold_seconds(queue.model) is not None
            if may_sleep and waited_seconds < FALLING_ASLEEP_SECONDS:
                scan.pass_over()
            else:
                self._wait_queue.refuse(queue, waiting, no_worker_error(queue.model))
            return None
        is_aged = waited_seconds >= self._settings.patience_seconds
        left_out = assigner.left_out(request, fleet, tried=waiting.tried, waited_seconds=waited_seconds)
        if left_out.keys() >= fleet.ready.keys():
            if is_aged:
                self._keep_a_worker_alone(scan, waiting.tried)
            scan.pass_over()
            return None
        bypasses = scan.is_next and any(
            assigner.may_bypass(request, queue, fleet, uid) for uid in fleet.ready
        )
        if not bypasses:
            wish = self._standing_wish(waiting, queue, scan)
            if wish is not None and (wish.declines or not is_aged):
                scan.pass_over(wish)
                return None
            need = assigner.need(request, queue, fleet)
            if scan.fits_nowhere(need) or (
                left_out and not fleet.has_capacity(need, assigner.limits, left_out)
            ):
                if is_aged:
                    self._keep_a_worker(request, queue, scan, left_out)
                scan.pass_over()
                return None
        placement = assigner.decide(
            request,
            queue,
            fleet,
            patience=None if left_out else Patience.of(self._settings, queue.declined_seconds(waiting)),
            is_next=scan.is_next,
            left_out=left_out,
            planned=scan.planned,
        )
        if placement.picked is None:
            queue.wish(waiting, placement)
            scan.pass_over(placement)
        return placement.picked

    def _standing_wish(self, waiting: WaitingRequest, queue: ModelQueue, scan: _Scan) -> Placement | None:
        """What `waiting` was last found to wait for, while that worker lacks capacity as before."""
        wish = queue.wish_of(waiting)
        if wish is None or self._now() - wish.since >= REPRICE_SECONDS:
            return None
        stands = self._assigner.lacks_capacity(waiting.request, queue, scan.fleet, wish.placement)
        return wish.placement if stands else None

    def _keep_a_worker(
        self, request: QueuedRequest, queue: ModelQueue, scan: _Scan, left_out: Mapping[str, str]
    ) -> None:
        """Keep what becomes free on a worker for a request that fits nowhere and has waited for long enough.

        On one worker only, for all that wait so: the others serve the requests behind them.
        """
        if scan.keeps_a_worker:
            return
        need = self._assigner.need(request, queue, scan.fleet, may_use_headroom=True)
        shortages = scan.fleet.shortages(need, self._assigner.limits, left_out)
        # None: only the headroom is missing. A full prefill window empties by itself.
        if shortages.isdisjoint({None, Shortage.PREFILL}):
            scan.keep(scan.fleet.nearest(need, left_out))

    def _keep_a_worker_alone(self, scan: _Scan, tried: frozenset[str]) -> None:
        """Send no further prompt to a worker until a suspect that has waited for long enough can have it."""
        if not scan.keeps_a_worker and not tried.issuperset(scan.fleet.ready):
            scan.keep(scan.fleet.soonest_idle(tried))

    def _wait_for_a_worker(self, queue: ModelQueue) -> None:
        now = self._now()
        since = self._unready_since.setdefault(queue.model, now)
        longest_seconds = self._settings.no_worker_seconds
        if (hold_seconds := self._waking.hold_seconds(queue.model)) is not None:
            # It has fallen asleep after these were encoded, and wakes for them.
            longest_seconds = 0.0 if self._waking.is_draining else max(hold_seconds, longest_seconds)
        for waiting in list(queue):
            if now - max(since, waiting.since) >= longest_seconds:
                self._wait_queue.refuse(queue, waiting, no_worker_error(queue.model))


def _is_contained(small: Need, need: Need) -> bool:
    """Whether a worker without capacity for `small` has none for `need` either."""
    return (
        small.sequences <= need.sequences
        and small.blocks <= need.blocks
        and small.may_use_headroom >= need.may_use_headroom
    )
