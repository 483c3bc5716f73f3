"""A router whose workers are full: requests that occupy them, requests that wait, and waits for both."""

# ruff: noqa: ASYNC110 - what is waited for happens in other threads

import asyncio
from collections.abc import Callable
from typing import Any, Final

from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_testing.router.router_fixture import RunningRouter
from warmfleet_testing.router.stub_worker import StubWorker

SLOW: Final[dict[str, Any]] = {"events": 4, "event_seconds": 0.05}
"""A stub whose streams take 200 ms."""
BRISK: Final[dict[str, Any]] = {"events": 4, "event_seconds": 0.02}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def held(router: RunningRouter) -> Amount:
    return router.router.admission.held


async def is_empty(router: RunningRouter) -> None:
    """Nothing is held, in flight or charged any more."""
    await router.until_idle()
    await until(lambda: router.router.limits.in_flight == Amount())
    assert held(router) == Amount()


async def occupied(router: RunningRouter, stub: StubWorker, count: int) -> "list[asyncio.Task[object]]":
    """`count` requests that are at the stub and stay there."""
    already = stub.held
    stub.faults.hold_headers = True
    asking: list[asyncio.Task[object]] = [
        asyncio.create_task(router.ask(f"occupying {number}")) for number in range(count)
    ]
    # Not those that run: an answered request counts as running until its connection is done.
    await until(lambda: stub.held >= already + count)
    stub.faults.hold_headers = False
    return asking


async def unready(router: RunningRouter, stub: StubWorker) -> None:
    """Until `total_blocks` is set again, the router's only worker reports that it cannot compute."""
    stub.total_blocks = 0
    await until(lambda: not any(worker.ready for worker in router.router.workers.fleet.workers()))


async def cancelled(tasks: "list[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
