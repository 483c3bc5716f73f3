"""The end of a wait: a dispatch, an error or a cancellation, and what each gives back."""

import asyncio
import contextlib
from typing import Any, cast

import pytest
from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import RefusedRequests
from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.dispatch import Dispatch, RequestUsage
from warmfleet_router.admission.model_queue import ModelQueue, WaitingRequest
from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.admission.wait_queue import BURST_REQUESTS, STANDING_REQUESTS, WaitQueue
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.tenants import ANONYMOUS, Tenant
from warmfleet_router.workers.breakers import Trial


class Waits:
    """One model's queue and a clock that is set; `released` are the dispatches that were released."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.queue = ModelQueue("m", lambda: self.now)
        self.metrics = RouterMetrics()
        self.waits = WaitQueue(AdmissionSettings(**settings), now=lambda: self.now, metrics=self.metrics)
        self.released: list[Dispatch] = []

    @property
    def refused(self) -> RefusedRequests:
        return self.metrics.models.of("m").refused

    def request(self) -> QueuedRequest:
        return QueuedRequest(
            model="m",
            tenant=ANONYMOUS,
            prompts=RequestPrompts(
                encoded={}, salt=b"", hash_memory=BlockHashMemory(), body_bytes=40, head=b"head"
            ),
            prompt_tokens=10,
            body_bytes=40,
            sequences=1,
            priority=0,
            output_limit_tokens=None,
            arrived_at=0.0,
            body_read_at=0.0,
        )

    def dispatch(self, request: QueuedRequest) -> Dispatch:
        return Dispatch(
            request,
            cast("PickedWorker", None),
            cast("Lease", None),
            cast("Trial", None),
            priority=0,
            tried=frozenset({"w0"}),
            queued_seconds=0.0,
            usage=RequestUsage(1.0),
            isolation=None,
            on_release=self.released.append,
        )


async def test_a_dispatch_ends_the_wait_and_frees_its_place() -> None:
    waits = Waits()
    waiting = waits.waits.add(waits.queue, waits.request())
    assigned = asyncio.create_task(waits.waits.assigned(waits.queue, waiting))
    await asyncio.sleep(0)
    assert waits.waits.total == Amount(1, 40, 10)

    dispatch = waits.dispatch(waiting.request)
    waits.queue.serve(waiting, 1.0)
    waits.waits.assign(waiting, dispatch)

    assert await assigned is dispatch
    assert waits.waits.total == Amount()
    assert not waits.waits.is_filled.is_set()
    assert not waits.released


async def test_a_cancelled_wait_frees_its_place() -> None:
    waits = Waits()
    waiting = waits.waits.add(waits.queue, waits.request())
    assigned = asyncio.create_task(waits.waits.assigned(waits.queue, waiting))
    await asyncio.sleep(0)

    assigned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await assigned

    assert waits.queue.waiting == 0
    assert waits.waits.total == Amount()


async def test_a_dispatch_that_comes_as_its_client_leaves_is_released() -> None:
    waits = Waits()
    waiting = waits.waits.add(waits.queue, waits.request())
    assigned = asyncio.create_task(waits.waits.assigned(waits.queue, waiting))
    await asyncio.sleep(0)

    dispatch = waits.dispatch(waiting.request)
    waits.queue.serve(waiting, 1.0)
    waits.waits.assign(waiting, dispatch)
    assigned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await assigned

    assert waits.released == [dispatch]
    assert waits.waits.total == Amount()


async def test_a_wait_ends_after_its_longest_time() -> None:
    waits = Waits(max_held_seconds=0.01)
    waiting = waits.waits.add(waits.queue, waits.request())

    with pytest.raises(RequestError) as refused:
        await waits.waits.assigned(waits.queue, waiting)

    assert (refused.value.status, refused.value.code) == (429, "overloaded")
    assert waits.queue.waiting == 0
    assert waits.waits.total == Amount()
    assert waits.refused == RefusedRequests(held_too_long=1, tokens=10)


async def test_a_refusal_counts_by_its_bound_and_its_tokens_only_where_more_workers_would_help() -> None:
    # given: as many requests as a burst may have, none served for 5 seconds, most of the tokens one tenant's
    waits = Waits(max_held=Amount(100, 10**6, 10**6))
    large = Tenant(name="large")
    waits.waits.add(waits.queue, replace(waits.request(), tenant=large, prompt_tokens=600_000))
    for _ in range(BURST_REQUESTS):
        waits.waits.add(waits.queue, waits.request())
    waits.now = 5.0

    for tenant, tokens in ((ANONYMOUS, 30), (ANONYMOUS, 10**7), (large, 200)):
        for is_retry in (False, True):
            with pytest.raises(RequestError):
                waits.waits.check(waits.queue, tenant, 0, Amount(1, 40, tokens), is_retry=is_retry)

    assert waits.refused == RefusedRequests(
        wait=1, queue_full=1, tenant_queue=1, retries=3, tokens=10**7 + 30
    )


def most_before(waits: Waits, held: list[WaitingRequest]) -> int:
    """With how many before it a request is still let in: `held`, the last of which leave one by one."""
    while held:
        waits.waits.remove(waits.queue, held.pop())
        with contextlib.suppress(RequestError):
            return waits.waits.check(waits.queue, ANONYMOUS, 0, Amount(1, 40, 10), is_retry=False).requests
    return 0


def served_one_per_second(waits: Waits, held: list[WaitingRequest], until: float) -> None:
    while waits.now < until:
        waits.now += 1.0
        waits.queue.serve(held.pop(0), 10.0)


@pytest.mark.parametrize(("seconds", "most"), [(13, 16), (14, 4)])
async def test_a_slow_fleet_lets_a_burst_wait_and_fewer_requests_once_its_queue_stands(
    seconds: float, most: int
) -> None:
    """The third request waits three seconds, and within ten seconds of that the queue does not stand."""
    waits = Waits()
    held = [waits.waits.add(waits.queue, waits.request()) for _ in range(BURST_REQUESTS + 20)]
    served_one_per_second(waits, held, seconds)

    assert most_before(waits, held) == most - 1


async def test_a_longer_wait_that_is_allowed_lets_the_same_queue_be_a_burst() -> None:
    """As with `warmfleet up`, which allows a minute."""
    waits = Waits(max_wait_seconds=60)
    held = [waits.waits.add(waits.queue, waits.request()) for _ in range(BURST_REQUESTS + 10)]
    for _ in range(2):
        waits.now += 10.0
        waits.queue.serve(held.pop(0), 10.0)

    assert most_before(waits, held) == BURST_REQUESTS - 1


async def test_a_queue_that_stands_lets_any_number_wait_that_is_served_in_time() -> None:
    waits = Waits()
    held = [waits.waits.add(waits.queue, waits.request()) for _ in range(40)]
    while waits.now < 15.0:
        waits.now += 1.0
        for _ in range(2):
            waits.queue.serve(held.pop(0), 10.0)

    assert waits.queue.service_rate.stands(waits.now, 3.0)
    assert most_before(waits, held) == 6  # three seconds by two per second


async def test_requests_that_fit_nowhere_leave_a_queue_in_which_others_are_served_at_once_a_burst() -> None:
    """Five that need more memory than is free, and one per second that goes before them."""
    waits = Waits()
    stuck = [waits.waits.add(waits.queue, waits.request()) for _ in range(STANDING_REQUESTS + 1)]
    for _ in range(60):
        waits.now += 1.0
        waits.queue.serve(waits.waits.add(waits.queue, waits.request()), 10.0)

    before = waits.waits.check(waits.queue, ANONYMOUS, 0, Amount(1, 40, 10), is_retry=False)

    assert before.requests == len(stuck)


async def test_a_retry_goes_before_the_fair_order_and_costs_nothing_more() -> None:
    waits = Waits()
    first = waits.waits.add(waits.queue, waits.request())
    request = waits.request()
    retry = waits.waits.add(waits.queue, request, waits.dispatch(request))

    assert waits.queue.head(10) == [retry, first]
    assert retry.tried == {"w0"}
    waits.waits.remove(waits.queue, retry)
    waits.waits.remove(waits.queue, retry)
    assert waits.queue.head(10) == [first]
    assert waits.waits.total == Amount(1, 40, 10)
