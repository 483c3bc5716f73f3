"""A full fleet over real sockets: which requests wait, in which order, how many, and what is answered."""

# ruff: noqa: ASYNC110 - what is waited for happens in other threads

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs

ROOMY = Amount(requests=1000, buffered_bytes=10**8, tokens=10**7)
SLOW = {"events": 4, "event_seconds": 0.05}
"""A stub whose streams take 200 ms."""
BRISK = {"events": 4, "event_seconds": 0.02}


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
    stub.faults.hold_headers = True
    asking: list[asyncio.Task[object]] = [
        asyncio.create_task(router.ask(f"occupying {number}")) for number in range(count)
    ]
    await until(lambda: stub.running >= count)
    stub.faults.hold_headers = False
    return asking


async def cancelled(tasks: "list[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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


async def test_requests_of_a_tenant_go_by_priority_then_arrival(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path) as router:
            first = await occupied(router, stub, 1)
            waiting = []
            for number, priority in enumerate((5, 5, 0, 9, 3)):
                asking = router.ask("hi", priority=priority, headers={"x-request-id": f"r{number}"})
                waiting.append(asyncio.create_task(asking))
                await until(lambda number=number: held(router).requests == number + 1)
            await cancelled(first)
            await asyncio.gather(*waiting)

    order = [headers["x-request-id"] for headers in stub.requests if headers["x-request-id"].startswith("r")]
    assert order[-5:] == ["r2", "r4", "r0", "r1", "r3"]
    assert [headers["x-warmfleet-priority"] for headers in stub.requests][-5:] == ["0", "3", "5", "5", "9"]


async def test_a_key_caps_the_urgency_that_its_requests_may_ask_for(tmp_path: Path) -> None:
    keys = PlantedKeys()
    modest = keys.add("modest", best_priority=4)
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, keys=keys.file) as router:
            for priority in (-10, 4, 7):
                await router.ask("hi", priority=priority, headers=bearer(modest))

    assert [headers["x-warmfleet-priority"] for headers in stub.requests] == ["4", "4", "7"]


async def test_a_light_tenant_does_not_stand_behind_a_flood(tmp_path: Path) -> None:
    keys = PlantedKeys()
    flooder, light = keys.add("flooder"), keys.add("light")
    settings = AdmissionSettings(max_wait_seconds=60)  # no request is refused, however slow this machine is
    with running_stub(StubWorker(uid="w0", max_running_sequences=8, **SLOW)) as stub:
        async with running_router([stub], tmp_path, keys=keys.file, admission=settings) as router:
            assert (await router.ask("hi", headers=bearer(light)))[0] == 200  # it was there lately
            flood = [
                asyncio.create_task(
                    router.ask("hi", stream=True, headers={**bearer(flooder), "x-request-id": f"flood-{n}"})
                )
                for n in range(80)
            ]
            await until(lambda: held(router).requests >= 70 and stub.running >= 7)
            await asyncio.sleep(0.1)
            most_at_the_stub = stub.running

            for number in range(5):
                name = {"x-request-id": f"light-{number}"}
                assert (await router.ask("hi", headers={**bearer(light), **name}))[0] == 200
            records = [router.router.routing.decisions.find(f"light-{number}") for number in range(5)]
            places = [record.queue_place for record in records if record is not None]
            ranks = [place.behind if place is not None else 0 for place in places]
            still_held = held(router).requests
            answers = await asyncio.gather(*flood)

    # then: one seat was kept free for it, so that hardly any request went before it
    assert most_at_the_stub == 7
    assert len(ranks) == 5
    assert max(ranks) <= 2
    assert still_held >= 10
    assert {status for status, _, _ in answers} == {200}


@pytest.mark.parametrize(
    ("bound", "fits"),
    [
        (Amount(3, 10**8, 10**7), 3),
        (Amount(1000, 5000, 10**7), 4),
        (Amount(1000, 10**8, 2500), 2),
    ],
    ids=["requests", "bytes", "tokens"],
)
async def test_the_queue_is_bounded_and_requests_beyond_it_get_retry_after(
    bound: Amount, fits: int, tmp_path: Path
) -> None:
    # given: a full worker, and prompts of 1,000 tokens in about 1,050 bytes
    settings = AdmissionSettings(max_held=bound)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            asking = [asyncio.create_task(router.ask("x" * 1000)) for _ in range(fits + 5)]
            refused = [await done for _, done in zip(range(5), asyncio.as_completed(asking), strict=False)]
            at_most = held(router)
            await cancelled(first)
            answers = await asyncio.gather(*asking)
            await is_empty(router)

    assert at_most.within(bound)
    assert at_most.requests == fits
    for status, headers, body in refused:
        error = json.loads(body)["error"]
        assert (status, error["type"], error["code"]) == (429, "rate_limit_error", "overloaded")
        assert 1 <= int(headers["retry-after"]) <= 60
    assert sorted(status for status, _, _ in answers) == [200] * fits + [429] * 5


async def test_one_tenant_cannot_fill_the_whole_queue(tmp_path: Path) -> None:
    keys = PlantedKeys()
    flooder, light = keys.add("flooder"), keys.add("light")
    settings = AdmissionSettings(max_held=Amount(20, 10**8, 10**7))
    with running_stub(StubWorker(uid="w0", max_running_sequences=1, **BRISK)) as stub:
        async with running_router([stub], tmp_path, keys=keys.file, admission=settings) as router:
            flood = [
                asyncio.create_task(router.ask("hi", stream=True, headers=bearer(flooder))) for _ in range(30)
            ]
            await until(lambda: held(router).requests == 10)
            status, _, _ = await router.ask("hi", headers=bearer(light))
            answers = await asyncio.gather(*flood)

    refused = [json.loads(body)["error"]["code"] for code, _, body in answers if code == 429]
    assert status == 200
    assert len(refused) >= 15
    assert set(refused) == {"tenant_quota_exceeded"}


async def test_a_tenants_requests_and_tokens_in_flight_are_bounded(tmp_path: Path) -> None:
    keys = PlantedKeys()
    few = keys.add("few", max_in_flight_requests=2)
    small = keys.add("small", max_in_flight_tokens=300)
    free = keys.add("free")
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, keys=keys.file) as router:
            stub.faults.hold_headers = True
            open_requests = [asyncio.create_task(router.ask("hi", headers=bearer(few))) for _ in range(2)]
            open_requests.append(
                asyncio.create_task(router.ask("x" * 200, max_tokens=50, headers=bearer(small)))
            )
            await until(lambda: stub.running == 3)
            stub.faults.hold_headers = False
            too_many = await router.ask("hi", headers=bearer(few))
            too_long = await router.ask("x" * 40, max_tokens=50, headers=bearer(small))
            short = await router.ask("x", max_tokens=9, headers=bearer(small))
            others = await router.ask("hi", headers=bearer(free))
            await cancelled(open_requests)
            await is_empty(router)
            afterwards = await router.ask("hi", headers=bearer(few))

    for status, headers, body in (too_many, too_long):
        assert (status, json.loads(body)["error"]["code"]) == (429, "tenant_quota_exceeded")
        assert int(headers["retry-after"]) >= 1
    assert "2" in json.loads(too_many[2])["error"]["message"]
    assert [short[0], others[0], afterwards[0]] == [200, 200, 200]


async def test_a_tenant_over_its_quota_is_refused_before_its_body_is_sent(tmp_path: Path) -> None:
    keys = PlantedKeys()
    few = keys.add("few", max_in_flight_requests=1)
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, keys=keys.file) as router:
            stub.faults.hold_headers = True
            first = asyncio.create_task(router.ask("hi", headers=bearer(few)))
            await until(lambda: stub.running == 1)
            host, port = router.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {few.text}\r\n"
                "content-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
            )
            writer.write(head.encode())
            async with asyncio.timeout(5):
                status_line = await reader.readline()
            writer.close()
            await cancelled([first])

    assert b" 429 " in status_line


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


async def test_a_stream_that_waits_gets_pings_and_then_its_answer(tmp_path: Path) -> None:
    settings = AdmissionSettings(ping_seconds=0.05)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            streaming = asyncio.create_task(router.ask("hi", stream=True))
            plain = asyncio.create_task(router.ask("hi"))
            await asyncio.sleep(0.3)
            await cancelled(first)
            status, headers, body = await streaming
            plain_status, plain_headers, _ = await plain

    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"]
    lines = body.split(b"\n\n")
    assert lines.count(b": ping") >= 3
    assert body.endswith(b"data: [DONE]\n\n")
    assert b": ping" not in body[body.index(b"data:") :]
    assert (plain_status, plain_headers["content-type"]) == (200, "application/json")


async def test_a_stream_that_was_pinged_is_refused_by_an_error_object(tmp_path: Path) -> None:
    settings = AdmissionSettings(ping_seconds=0.05, max_held_seconds=0.2)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            status, _, body = await router.ask("hi", stream=True)
            plain_status, plain_headers, plain_body = await router.ask("hi")
            await cancelled(first)

    assert status == 200
    last = body.rstrip().split(b"\n\n")[-1]
    assert last.startswith(b"data: ")
    assert json.loads(last[6:])["error"]["code"] == "overloaded"
    assert (plain_status, json.loads(plain_body)["error"]["code"]) == (429, "overloaded")
    assert int(plain_headers["retry-after"]) >= 1


async def test_a_pinged_stream_gets_its_workers_refusal(tmp_path: Path) -> None:
    settings = AdmissionSettings(ping_seconds=0.05)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            asking = asyncio.create_task(router.ask("hi", stream=True))
            await until(lambda: held(router).requests == 1)
            await asyncio.sleep(0.15)
            stub.faults.refuse_status = 400
            await cancelled(first)
            status, _, body = await asking

    assert status == 200
    assert body.endswith(b'data: {"error": {}}\n\n')


async def test_a_retry_goes_before_all_that_wait(tmp_path: Path) -> None:
    # given: one worker that fails, one that is full, and others in line
    with running_stubs(2, max_running_sequences=1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            for stub in stubs:
                stub.faults.hold_headers = True
            first = [asyncio.create_task(router.ask(f"occupying {n}")) for n in range(2)]
            await until(lambda: all(stub.running == 1 for stub in stubs))
            for stub in stubs:
                stub.faults.hold_headers = False
            waiting = []
            for number in range(4):
                named = {"x-request-id": f"r{number}"}
                waiting.append(asyncio.create_task(router.ask("hi", headers=named)))
                await until(lambda number=number: held(router).requests == number + 1)
            # when: a seat becomes free on a worker that refuses; then on the other
            leaver = next(n for n, stub in enumerate(stubs) if b"occupying 0" in stub.bodies[0])
            stubs[leaver].faults.refuse_status = 503
            await cancelled([first[0]])
            await until(lambda: len(stubs[leaver].requests) > 1)
            await cancelled([first[1]])
            answers = await asyncio.gather(*waiting)
            await is_empty(router)

    served = [headers["x-request-id"] for headers in stubs[1 - leaver].requests]
    assert [status for status, _, _ in answers] == [200] * 4
    assert served.index("r0") < served.index("r3")


async def test_a_retry_whose_last_worker_is_lost_ends_and_blocks_no_other_request(tmp_path: Path) -> None:
    # given: a request that failed on one worker and waits for the other, which is full
    with ExitStack() as stack, ExitStack() as mortal:
        failing = stack.enter_context(running_stub(StubWorker(uid="w0", max_running_sequences=1)))
        full = mortal.enter_context(running_stub(StubWorker(uid="w1", max_running_sequences=1)))
        async with running_router([failing, full], tmp_path) as router:
            failing.faults.hold_headers = full.faults.hold_headers = True
            occupying = [asyncio.create_task(router.ask(f"occupying {n}")) for n in range(2)]
            await until(lambda: failing.running == full.running == 1)
            failing.faults.hold_headers = False
            failing.faults.refuse_status = 503
            waiting = asyncio.create_task(router.ask("hi"))
            await until(lambda: held(router).requests == 1)
            mine = next(n for n in range(2) if b"occupying %d" % n in failing.bodies[0])
            await cancelled([occupying[mine]])
            await until(lambda: len(failing.requests) > 1 and held(router).requests == 1)
            failing.faults.refuse_status = 0
            # when
            mortal.close()
            status, _, _ = await waiting
            other, _, _ = await router.ask("hi")
            await cancelled(occupying)

    assert (status, other) == (503, 200)


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


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


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


async def test_bodies_in_flight_are_bounded_while_they_are_read(tmp_path: Path) -> None:
    settings = AdmissionSettings(max_in_flight=Amount(100, 100_000, 2**62))
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            stub.faults.hold_headers = True
            large = asyncio.create_task(router.ask("x" * 60_000))
            await until(lambda: stub.running == 1)
            status, _, body = await router.ask("x" * 60_000)
            await cancelled([large])
            await is_empty(router)
            stub.faults.hold_headers = False
            small, _, _ = await router.ask("x" * 60_000)

    assert (status, json.loads(body)["error"]["code"]) == (429, "overloaded")
    assert small == 200


async def test_a_body_of_unknown_length_counts_as_it_is_received(tmp_path: Path) -> None:
    settings = AdmissionSettings(max_in_flight=Amount(100, 100_000, 2**62))
    body = json.dumps({"model": "stub", "prompt": "x" * 150_000}).encode()

    async def chunks() -> object:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            async with router.http.post(
                router.url + "/v1/completions", data=chunks(), headers={"content-type": "application/json"}
            ) as response:
                status = response.status
            await is_empty(router)

    assert status == 429
