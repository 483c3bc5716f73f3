"""A full fleet over real sockets: which requests wait, and when that ends."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_testing.router.full_fleet import (
    BRISK,
    SLOW,
    cancelled,
    held,
    is_empty,
    occupied,
    unready,
    until,
)
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs


async def test_a_request_without_capacity_waits_and_is_then_served(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=2, **SLOW)) as stub:
        async with running_router([stub], tmp_path) as router:
            answers = await asyncio.gather(
                *(router.ask("hello", stream=True, headers={"x-request-id": f"r{n}"}) for n in range(6))
            )
            records = [(await router.get(f"/debug/decisions/r{n}"))[1] for n in range(6)]
            await is_empty(router)

    assert [status for status, _, _ in answers] == [200] * 6
    assert stub.peak_running == 2
    waited = [record for record in records if record["held_behind"] is not None]
    assert len(waited) == 4
    assert sorted(record["held_behind"] for record in waited) == [0, 1, 2, 3]
    assert all(record["held_ms"] > 0 and record["held_because"] for record in waited)
    assert all(record["held_ms"] is None for record in records if record["held_behind"] is None)


async def test_a_client_that_leaves_the_queue_frees_its_place(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path) as router:
            first = await occupied(router, stub, 1)
            waiting = [asyncio.create_task(router.ask("hi", stream=n % 2 == 0)) for n in range(10)]
            await until(lambda: held(router).requests == 10)
            await cancelled(waiting)
            await until(lambda: held(router) == Amount())
            sent = len(stub.requests)
            await cancelled(first)
            await is_empty(router)
            _, decisions = await router.get("/internal/decisions?limit=10")

    assert len(stub.requests) == sent == 1
    assert {decision["outcome"] for decision in decisions["decisions"]} == {"client left"}


async def test_held_requests_end_when_no_worker_comes_back(tmp_path: Path) -> None:
    settings = AdmissionSettings(no_worker_seconds=0.3)
    with ExitStack() as stack:
        stub = stack.enter_context(running_stub(StubWorker(uid="w0", max_running_sequences=1)))
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            waiting = [asyncio.create_task(router.ask("hi")) for _ in range(3)]
            await until(lambda: held(router).requests == 3)
            stack.close()
            answers = await asyncio.gather(*waiting)
            await cancelled(first)
            await is_empty(router)

    assert {status for status, _, _ in answers} == {503}


async def test_a_request_that_comes_while_the_only_worker_is_briefly_not_ready_waits_for_it(
    tmp_path: Path,
) -> None:
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path) as router:
            await unready(router, stub)
            waiting = [asyncio.create_task(router.ask("hi", stream=n % 2 == 0)) for n in range(4)]
            await until(lambda: held(router).requests == 4)
            stub.total_blocks = 4096
            answers = await asyncio.gather(*waiting)
            await is_empty(router)
            _, decisions = await router.get("/internal/decisions?limit=1")

    assert [status for status, _, _ in answers] == [200] * 4
    assert decisions["decisions"][0]["held_because"] == "no worker is ready"


async def test_every_request_that_comes_while_no_worker_is_ready_waits_as_long(tmp_path: Path) -> None:
    settings = AdmissionSettings(no_worker_seconds=0.3)
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            await unready(router, stub)
            answers, seconds = [], []
            for _ in range(2):
                started = asyncio.get_running_loop().time()
                answers.append(await router.ask("hi"))
                seconds.append(asyncio.get_running_loop().time() - started)
            await is_empty(router)

    assert [(status, headers["retry-after"]) for status, headers, _ in answers] == [(503, "1")] * 2
    assert min(seconds) >= 0.3


async def test_two_routers_overshoot_by_no_more_than_their_own_seats(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=6, **BRISK)) as stub:
        async with (
            running_router([stub], tmp_path / "a") as one,
            running_router([stub], tmp_path / "b") as other,
        ):
            answers = await asyncio.gather(
                *(router.ask("hi", stream=True) for _ in range(30) for router in (one, other))
            )
            await is_empty(one)
            await is_empty(other)

    assert {status for status, _, _ in answers} == {200}
    assert stub.peak_running <= 2 * 6


async def test_overload_keeps_the_workers_busy_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # given: 8 seats and answers of half a second, so 16 answers per second at most; four times that arrives
    settings = AdmissionSettings(max_wait_seconds=1.0, max_held=Amount(50, 10**8, 10**7))
    with running_stubs(2, max_running_sequences=4, events=1, event_seconds=0.5) as stubs:
        async with running_router(stubs, tmp_path, admission=settings) as router:
            asking = []
            busy: list[int] = []
            most_held = 0
            for _ in range(60):
                asking += [asyncio.create_task(router.ask("hi", stream=True)) for _ in range(3)]
                await asyncio.sleep(0.05)
                busy.append(sum(stub.running for stub in stubs))
                most_held = max(most_held, held(router).requests)
            answers = await asyncio.gather(*asking)
            await is_empty(router)
            open_charges = sum(router.router.routing.leases.dispatches.open_count(stub.uid) for stub in stubs)

    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(429) > len(statuses) / 3
    assert most_held <= 50
    assert open_charges == 0
    # the seats were in use: samples of the stubs' own count, once the queue had filled
    settled = busy[15:]
    assert sum(settled) / len(settled) >= 0.9 * 8


async def test_a_draining_router_serves_what_it_holds_and_what_still_comes(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=1, **SLOW)) as stub:
        async with running_router([stub], tmp_path) as router:
            waiting = [asyncio.create_task(router.ask("hi", stream=True)) for _ in range(3)]
            await until(lambda: held(router).requests == 2)
            router.router.api.health.drain()
            late = asyncio.create_task(router.ask("hi"))
            ready, _ = await router.get("/readyz")
            answers = await asyncio.gather(*waiting, late)

    assert ready == 503
    assert [answer[0] for answer in answers] == [200] * 4


def reported(router: RunningRouter, stub: StubWorker) -> tuple[int, int]:
    """Sequences that run at a worker and tokens that wait there, as reported to the router."""
    view = router.router.workers.fleet.worker(stub.uid)
    return (view.load.running_sequences, view.load.queued_uncached_tokens) if view else (0, 0)


async def test_a_request_waits_for_its_warm_worker_only_while_that_pays(tmp_path: Path) -> None:
    # given: a prefix that takes 400 ms and lies on a worker that is full, where seats are kept for a moment
    prefix = [5] * 4000
    settings = AdmissionSettings(patience_seconds=60)  # however slow this machine is
    with running_stubs(2, max_running_sequences=1, prefill_tokens_per_second=10_000) as stubs:
        async with running_router(stubs, tmp_path, admission=settings) as router:
            await router.ask([*prefix, 1])
            warm = next(stub for stub in stubs if stub.requests)
            cold = next(stub for stub in stubs if not stub.requests)
            for _ in range(30):
                router.router.routing.leases.seat_times.add(warm.uid, 0.05)
            await router.until_settled(stubs)
            warm.faults.hold_after_events = 1
            running = asyncio.create_task(router.ask([*prefix, 2], stream=True))
            await until(lambda: reported(router, warm) == (1, 0))
            # when: it waits, and then the worker has a seat
            asking = asyncio.create_task(router.ask([*prefix, 3], headers={"x-request-id": "mine"}))
            await until(lambda: held(router).requests == 1)
            warm.faults.hold_after_events = None
            await cancelled([running])
            status, _, _ = await asking
            _, decision = await router.get("/debug/decisions/mine")

    assert status == 200
    assert not cold.requests
    assert decision["held_ms"] > 0
    assert "holds more of the prompt" in decision["held_because"]
    assert decision["actual_cached_tokens"] >= 3900


async def test_metrics_and_the_fleet_report_what_waits(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path) as router:
            first = await occupied(router, stub, 1)
            waiting = [asyncio.create_task(router.ask("x" * 100)) for _ in range(3)]
            await until(lambda: held(router).requests == 3)
            _, fleet = await router.get("/internal/fleet")
            async with router.http.get(router.url + "/metrics") as response:
                during = await response.text()
            await cancelled(first)
            await asyncio.gather(*waiting)
            async with router.http.get(router.url + "/metrics") as response:
                afterwards = await response.text()

    assert fleet["held"]["stub"]["requests"] == 3
    assert fleet["held"]["stub"]["tokens"] >= 300
    assert 'warmfleet_router_held_requests{model_name="stub"} 3.0' in during
    assert 'warmfleet_router_held_requests{model_name="stub"} 0.0' in afterwards
    assert 'warmfleet_router_held_seconds_count{model_name="stub"} 3.0' in afterwards
