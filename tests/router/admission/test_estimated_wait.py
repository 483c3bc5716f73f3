"""A full fleet over real sockets: the wait that is estimated, and the `Retry-After` that follows from it."""

import asyncio
import json
from pathlib import Path

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_testing.router.admission_fleet import Clock
from warmfleet_testing.router.full_fleet import cancelled, held, is_empty, until
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


class SteadyQueue:
    """One seat, and requests that wait for it; the router's clock moves only when one of them is served."""

    def __init__(self, router: RunningRouter, stub: StubWorker) -> None:
        self.router = router
        self.stub = stub
        self.asking: dict[str, asyncio.Task[tuple[int, dict[str, str], bytes]]] = {}
        stub.faults.hold_headers = True

    async def add(self, count: int) -> None:
        for _ in range(count):
            name = f"r{len(self.asking)}"
            self.asking[name] = asyncio.create_task(self.router.ask("hi", headers={"x-request-id": name}))
        await until(lambda: held(self.router).requests + len(self.stub.requests) == len(self.asking))

    async def serve(self, count: int, clock: "Clock", *, per_second: float) -> None:
        for _ in range(count):
            clock.seconds += 1 / per_second
            served = len(self.stub.requests)
            await cancelled([self.asking[self.stub.requests[-1]["x-request-id"]]])
            await until(lambda served=served: len(self.stub.requests) > served)

    async def end(self) -> None:
        self.stub.faults.hold_headers = False
        await cancelled(list(self.asking.values()))
        await is_empty(self.router)


async def test_retry_after_is_the_cost_before_the_request_over_the_service_rate(tmp_path: Path) -> None:
    # given: a full queue of 100 that is served at 8 requests per second, and then at 4
    settings = AdmissionSettings(max_held=Amount(100, 10**8, 10**7), max_wait_seconds=1000)
    clock = Clock()
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings, now=clock) as router:
            queue = SteadyQueue(router, stub)
            await queue.add(101)
            at_first = await router.ask("hi")
            await queue.serve(16, clock, per_second=8)
            await queue.add(16)
            later = await router.ask("hi")
            await queue.serve(16, clock, per_second=4)
            await queue.add(16)
            at_last = await router.ask("hi")
            await queue.end()

    assert [status for status, _, _ in (at_first, later, at_last)] == [429] * 3
    assert int(at_first[1]["retry-after"]) == 1  # nothing is known yet
    assert int(later[1]["retry-after"]) == 13  # 100 requests by 8 per second
    assert int(at_last[1]["retry-after"]) == 19  # 32 have left in 6 seconds


async def test_a_request_that_would_wait_too_long_is_rejected_at_once(tmp_path: Path) -> None:
    settings = AdmissionSettings(max_wait_seconds=1.0)
    clock = Clock()
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings, now=clock) as router:
            queue = SteadyQueue(router, stub)
            await queue.add(61)
            await queue.serve(32, clock, per_second=16)
            late = await router.ask("hi")
            await queue.serve(12, clock, per_second=16)
            await queue.add(1)  # 16 stand before it: one second
            await queue.end()
            again, _, _ = await router.ask("hi")

    assert (late[0], json.loads(late[2])["error"]["code"]) == (429, "overloaded")
    assert int(late[1]["retry-after"]) == 2  # 28 requests by 16 per second
    assert again == 200
