"""The end of a wait: a dispatch, an error or a cancellation, and what each gives back."""

import asyncio
from typing import cast

import pytest

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.dispatch import Dispatch, RequestUsage
from warmfleet_router.admission.model_queue import ModelQueue
from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.admission.wait_queue import WaitQueue
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.tenants import ANONYMOUS
from warmfleet_router.workers.breakers import Trial


class Waits:
    """One model's queue and a clock that stands still; `released` are the dispatches that were released."""

    def __init__(self, **settings: float) -> None:
        self.queue = ModelQueue("m", lambda: 0.0)
        self.waits = WaitQueue(AdmissionSettings(**settings), now=lambda: 0.0, metrics=RouterMetrics())
        self.released: list[Dispatch] = []

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
