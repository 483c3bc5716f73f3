"""The requests that wait for a worker: how many may, for how long, and what those get that may not.

Waiting requests are bounded in number and size (`queue_bounds`), and so is their wait: a request that would
wait too long is rejected at once, with the time after which a retry is worth it (`service_rate`).

Some may wait longer on a fleet that is slow, so that a burst is answered. In a queue that stays as long each
request is late, and no fewer are refused than with a short one. So fewer may join it; those that wait stay.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.fair_queue import Before
from warmfleet_router.admission.model_queue import ModelQueue, WaitingRequest
from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount, BoundedUsage, Exceeded
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.admission.service_rate import retry_after_seconds
from warmfleet_router.economics.model_counts import QueueBound
from warmfleet_router.error_responses import overloaded_error, quota_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant

BURST_REQUESTS: Final = 16
"""So many may wait however long that takes, unless the queue stands."""
STANDING_REQUESTS: Final = 4
"""So many may where it stands: the rate of fewer is too uncertain to refuse a request by it."""


class WaitQueue:
    """Bounds what waits, over all models. The order in which requests are served is the `ModelQueue`'s."""

    def __init__(
        self, settings: AdmissionSettings, *, now: Callable[[], float], metrics: RouterMetrics
    ) -> None:
        self.is_filled = asyncio.Event()
        """Set while a request waits."""
        self._settings = settings
        self._now = now
        self._metrics = metrics
        self._held = BoundedUsage(settings.max_held)

    @property
    def total(self) -> Amount:
        """What waits now."""
        return self._held.total

    def check(
        self, queue: ModelQueue, tenant: Tenant, priority: int, size: Amount, *, is_retry: bool
    ) -> Before:
        """Reject a request that may not wait; returns what would be served before it.

        `is_retry`: its client had sent it before.

        Raises:
            RequestError: 429.
        """
        bound = self._settings.max_held
        before = queue.before(tenant, priority)
        wait_seconds = queue.service_rate.seconds(before.cost, self._now())
        retry_after = retry_after_seconds(wait_seconds)
        match self._held.exceeded(tenant.name, size, alone=tenant.is_alone):
            case Exceeded.WHOLE:
                self._count("queue_full", queue, tenant, size, is_retry=is_retry)
                raise overloaded_error(
                    f"every replica of model {queue.model!r} is busy and the queue is full: at most "
                    f"{bound.requests} requests, {bound.buffered_bytes} bytes, {bound.tokens} tokens",
                    retry_after,
                )
            case Exceeded.TENANT:
                self._count("tenant_queue", queue, tenant, size, is_retry=is_retry)
                held = self._held.held(tenant.name)
                raise quota_error(
                    f"every replica of model {queue.model!r} is busy and this key's tenant has its share of "
                    f"the queue: {held.requests} requests, {held.tokens} tokens",
                    retry_after,
                )
            case None:
                pass
        too_long = wait_seconds is not None and wait_seconds > self._settings.max_wait_seconds
        if too_long and before.requests >= self._most_late(queue):
            self._count("wait", queue, tenant, size, is_retry=is_retry)
            raise overloaded_error(
                f"every replica of model {queue.model!r} is busy and {before.requests} requests stand before "
                f"this one, more than can be served in {self._settings.max_wait_seconds:g} seconds",
                retry_after,
            )
        return before

    def add(
        self, queue: ModelQueue, request: QueuedRequest, failed: Dispatch | None = None
    ) -> WaitingRequest:
        """Let a request wait from now on; `failed` is the dispatch that it retries."""
        assigned = asyncio.get_running_loop().create_future()
        waiting = WaitingRequest(request, self._now(), failed, assigned)
        queue.add(waiting)
        self._held.take(request.tenant.name, request.size)
        self.is_filled.set()
        return waiting

    async def assigned(self, queue: ModelQueue, waiting: WaitingRequest) -> Dispatch:
        """The dispatch that ends the wait; a cancelled wait leaves the queue and takes no worker.

        Raises:
            RequestError: it waited too long (429), or no worker is left (503).
        """
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._settings.max_held_seconds, self._give_up, queue, waiting)
        try:
            return await waiting.assigned
        except asyncio.CancelledError:
            self.remove(queue, waiting)
            assigned = waiting.assigned
            if assigned.done() and not assigned.cancelled() and assigned.exception() is None:
                assigned.result().release()  # it came at the same moment
            raise
        finally:
            timer.cancel()

    def assign(self, waiting: WaitingRequest, dispatch: Dispatch) -> None:
        """End the wait of a request that left its queue for a worker."""
        self._give_back(waiting)
        waiting.assigned.set_result(dispatch)

    def refuse(self, queue: ModelQueue, waiting: WaitingRequest, error: RequestError) -> None:
        """End a wait with `error`."""
        self.remove(queue, waiting)
        if not waiting.assigned.done():
            waiting.assigned.set_exception(error)

    def remove(self, queue: ModelQueue, waiting: WaitingRequest) -> None:
        """Take out a request that gets no worker. Idempotent."""
        if queue.remove(waiting):
            self._give_back(waiting)

    def _most_late(self, queue: ModelQueue) -> int:
        """How many may wait in `queue` although the last of them waits for too long."""
        stands = queue.service_rate.stands(self._now(), self._settings.max_wait_seconds)
        return STANDING_REQUESTS if stands else BURST_REQUESTS

    def _count(
        self, bound: QueueBound, queue: ModelQueue, tenant: Tenant, size: Amount, *, is_retry: bool
    ) -> None:
        self._metrics.on_overload(bound, tenant.name)
        self._metrics.models.of(queue.model).refused_by(bound, size.tokens, is_retry=is_retry)

    def _give_back(self, waiting: WaitingRequest) -> None:
        self._held.give_back(waiting.request.tenant.name, waiting.request.size)
        if not self._held.total.requests:
            self.is_filled.clear()

    def _give_up(self, queue: ModelQueue, waiting: WaitingRequest) -> None:
        if waiting.assigned.done():
            return
        request = waiting.request
        self._count("held_too_long", queue, request.tenant, request.size, is_retry=request.is_retry)
        longest = self._settings.max_held_seconds
        seconds = queue.service_rate.seconds(queue.waiting_cost, self._now())
        error = overloaded_error(
            f"no replica of model {queue.model!r} had capacity within {longest:g} seconds",
            retry_after_seconds(seconds),
        )
        self.refuse(queue, waiting, error)
