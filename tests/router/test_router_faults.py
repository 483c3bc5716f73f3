"""Failing workers over real sockets: which are ejected, how often a request is tried, what a client gets."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.dispatcher import TICK_SECONDS
from warmfleet_router.proxy.retry_budget import RetryBudgetSettings
from warmfleet_router.routing.cost import PRIOR_SEAT_SECONDS
from warmfleet_router.routing.slow_workers import SlowWorkerSettings
from warmfleet_router.workers.breakers import BreakerSettings
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stubs

EJECTION = BreakerSettings(ejection_seconds=30.0, jitter_ratio=0.0)


class SkippingClock:
    """The machine's clock; a test skips the ejection that lasts longer than anything it does meanwhile."""

    def __init__(self) -> None:
        self.skipped_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_seconds


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def stubs() -> Iterator[list[StubWorker]]:
    with running_stubs(3) as running:
        yield running


@pytest.fixture
async def router(
    stubs: list[StubWorker], tmp_path: Path, clock: SkippingClock
) -> AsyncGenerator[RunningRouter, None]:
    async with running_router(stubs, tmp_path, policy="RoundRobin", breaker=EJECTION, now=clock) as running:
        yield running


async def statuses(router: RunningRouter, count: int, **fields: object) -> Counter[int]:
    return Counter([(await router.ask("hello", **fields))[0] for _ in range(count)])


async def breaker(router: RunningRouter, uid: str) -> dict[str, object]:
    _, fleet = await router.get("/internal/fleet")
    return next(endpoint["breaker"] for endpoint in fleet["endpoints"] if endpoint["uid"] == uid)


def reported_sequences(router: RunningRouter, uid: str) -> int:
    """Those that run by a worker's last report."""
    views = router.router.workers.fleet.workers()
    return next(view.load.running_sequences for view in views if view.endpoint.uid == uid)


async def test_a_worker_that_keeps_failing_is_left_out_and_comes_back_by_a_probe(
    router: RunningRouter, stubs: list[StubWorker], clock: SkippingClock
) -> None:
    # Given a worker that resets every connection
    stubs[0].faults.close_before_headers = True

    # When requests go on
    answered = await statuses(router, 30)

    # Then it cost no answer, it got five requests, and the record has why it was left out
    assert answered == {200: 30}
    assert len(stubs[0].requests) == 5
    assert (await breaker(router, "w0"))["state"] == "open"
    decision = router.router.routing.decisions.newest(1)[0]
    assert "5 failures in a row" in decision.attempts[0].choice.not_considered["w0"]
    async with router.http.get(router.url + "/metrics") as response:
        metrics = await response.text()
    assert 'warmfleet_router_ejections_total{cause="failures"} 1.0' in metrics
    assert "warmfleet_router_ejected_endpoints 1.0" in metrics

    # When its time is over and it is well
    stubs[0].faults.close_before_headers = False
    clock.skipped_seconds += EJECTION.ejection_seconds
    assert router.router.workers.breakers.status("w0", "w0").state == "half-open"
    assert await statuses(router, 9) == {200: 9}

    # Then it takes its share again
    assert (await breaker(router, "w0"))["state"] == "closed"
    assert len(stubs[0].requests) >= 5 + 2


async def test_a_half_open_worker_gets_one_of_the_requests_that_wait(
    tmp_path: Path, clock: SkippingClock
) -> None:
    # Given two full workers, requests that wait, and a third worker that is ejected
    with running_stubs(3, max_running_sequences=16) as stubs:
        async with running_router(
            stubs, tmp_path, policy="RoundRobin", breaker=EJECTION, now=clock
        ) as router:
            admission = router.router.admission
            stubs[0].faults.close_before_headers = True
            assert await statuses(router, 30) == {200: 30}
            for stub in stubs:
                stub.faults.hold_headers = True
            occupying = [asyncio.create_task(router.ask(f"occupying {n}")) for n in range(10)]
            # A report that counts some of them comes between.
            await router.until(lambda: [reported_sequences(router, uid) for uid in ("w1", "w2")] == [5, 5])
            occupying += [asyncio.create_task(router.ask(f"occupying {n}")) for n in range(10, 32)]
            await router.until(lambda: stubs[1].running == stubs[2].running == 16)
            waiting = [asyncio.create_task(router.ask(f"waiting {n}")) for n in range(12)]
            await router.until(lambda: admission.held.requests == 12)

            # When its time is over
            stubs[0].faults.close_before_headers = False
            clock.skipped_seconds += EJECTION.ejection_seconds
            await router.until(lambda: stubs[0].running)
            await asyncio.sleep(2 * TICK_SECONDS)

            # Then one request probes it; the others go on waiting, also when the probe's client leaves
            assert len(stubs[0].requests) == 5 + 1
            assert admission.held.requests == 11
            probing = next(
                number for number in range(12) if f"waiting {number}".encode() in stubs[0].bodies[-1]
            )
            waiting.pop(probing).cancel()
            await router.until(lambda: len(stubs[0].requests) == 5 + 2)
            assert admission.held.requests == 10
            for task in (*occupying, *waiting):
                task.cancel()
            await asyncio.gather(*occupying, *waiting, return_exceptions=True)


async def test_when_all_fail_alike_no_worker_is_ejected(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    for stub in stubs:
        stub.faults.refuse_status = 502

    assert await statuses(router, 12) == {503: 12}
    assert router.router.metrics.registry.get_sample_value("warmfleet_router_ejection_panics_total") > 0

    # As soon as one is well, requests are answered: it was never left out for good
    stubs[1].faults.refuse_status = 0
    assert await statuses(router, 6) == {200: 6}


async def test_overload_and_draining_are_no_failures(router: RunningRouter, stubs: list[StubWorker]) -> None:
    stubs[0].faults.refuse_status = 429

    assert await statuses(router, 30) == {200: 30}
    assert (await breaker(router, "w0"))["state"] == "closed"


@pytest.mark.parametrize("status", [401, 403, 421])
async def test_a_worker_that_refuses_the_router_itself_is_left_and_its_words_stay_inside(
    router: RunningRouter, stubs: list[StubWorker], status: int
) -> None:
    stubs[0].faults.refuse_status = status

    assert await statuses(router, 12) == {200: 12}


async def test_broken_streams_eject(router: RunningRouter, stubs: list[StubWorker]) -> None:
    stubs[0].faults.die_after_events = 1

    bodies = [(await router.ask("hello", stream=True))[2] for _ in range(30)]

    lost = sum(b"replica_lost" in body for body in bodies)
    assert lost == 5
    assert sum(body.endswith(b"data: [DONE]\n\n") for body in bodies) == 25


@pytest.mark.parametrize("answer", ["500", "engine_error at once", "engine_error in mid-stream"])
async def test_errors_of_a_worker_eject_it_and_teach_no_price(
    router: RunningRouter, stubs: list[StubWorker], answer: str
) -> None:
    # Given a worker whose every answer is an error of its own, and comes fast
    faults, stream = stubs[0].faults, answer != "500"
    faults.refuse_status = 0 if stream else 500
    faults.error_after_events = {"engine_error at once": 0, "engine_error in mid-stream": 1}.get(answer)

    # When requests go on
    answers = [await router.ask("hello", stream=stream) for _ in range(30)]

    # Then it got five requests, each recorded as failed, and nothing was learned from them
    failed = [status == 500 or b"engine_error" in body for status, _, body in answers]
    assert sum(failed) == len(stubs[0].requests) == 5
    assert (await breaker(router, "w0"))["state"] == "open"
    records = [router.router.routing.decisions.find(headers["x-request-id"]) for _, headers, _ in answers]
    outcomes = [record.outcome for record in records if record is not None]
    assert outcomes == ["failed" if is_failed else "completed" for is_failed in failed]
    seat_times = router.router.routing.leases.seat_times
    assert seat_times.seconds("w0") == PRIOR_SEAT_SECONDS != seat_times.seconds("w1")


async def test_streams_that_their_clients_read_too_slowly_eject_no_worker(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    stubs[0].faults.error_after_events = 1
    stubs[0].faults.error = RequestError("unread", status=408, code="slow_reader")

    bodies = [(await router.ask("hello", stream=True))[2] for _ in range(30)]

    assert sum(b"slow_reader" in body for body in bodies) == 10
    assert (await breaker(router, "w0"))["state"] == "closed"


async def test_retries_of_a_dying_fleet_stay_within_the_budget(
    stubs: list[StubWorker], tmp_path: Path
) -> None:
    for stub in stubs:
        stub.faults.close_before_headers = True
    budget = RetryBudgetSettings(floor_retries=4, ratio=0.2)
    async with running_router(stubs, tmp_path, retry_budget=budget) as router:
        answers = [await router.ask("hello") for _ in range(40)]

    # 40 requests, and a fifth of them plus four as retries, where three tries each would be 120
    assert {status for status, _, _ in answers} == {503}
    assert all(int(headers["retry-after"]) >= 1 for _, headers, _ in answers)
    tries = sum(len(stub.requests) for stub in stubs)
    assert tries == 40 + 4 + 8


async def asked(stubs: list[StubWorker], router: RunningRouter, rounds: int) -> list[int]:
    """How many of `rounds` * 6 requests, six at a time, reached each stub."""
    before = [len(stub.requests) for stub in stubs]
    for number in range(rounds):
        prompts = [f"{number} {position} " + "x" * 200 for position in range(6)]
        answers = await asyncio.gather(*(router.ask(prompt) for prompt in prompts))
        assert [status for status, _, _ in answers] == [200] * 6
    return [len(stub.requests) - count for stub, count in zip(stubs, before, strict=True)]


@pytest.mark.parametrize("policy", ["LowestCost", "LeastLoaded", "RoundRobin", "ConsistentHash"])
async def test_a_worker_ten_times_slower_is_shed_under_every_policy(
    stubs: list[StubWorker], tmp_path: Path, policy: str
) -> None:
    # Given three workers, of which the first prefills ten times slower, and reports so
    for stub in stubs:
        stub.prefill_tokens_per_second = 40_000.0
    stubs[0].prefill_tokens_per_second = 4_000.0
    async with running_router(stubs, tmp_path, policy=policy) as router:
        await asked(stubs, router, 6)

        # When it has been noticed
        slow, *others = await asked(stubs, router, 6)

        # Then it gets far less than its third of 36; one worker in three may be ejected
        assert slow <= 4
        assert sum(others) >= 32
        states = [(await breaker(router, stub.uid))["state"] for stub in stubs]
        assert states.count("open") == (0 if policy == "LowestCost" else 1)


async def test_a_worker_slower_than_it_reports_is_ejected(stubs: list[StubWorker], tmp_path: Path) -> None:
    # Given a worker whose first bytes come 0.4 s late, against what its reports promise
    stubs[0].faults.first_byte_delay_seconds = 0.4
    outliers = SlowWorkerSettings(observations=3)
    async with running_router(stubs, tmp_path, policy="RoundRobin", outliers=outliers) as router:
        answers = [await router.ask("hello", stream=True) for _ in range(12)]

        assert [status for status, _, _ in answers] == [200] * 12
        assert "slower than its peers" in str((await breaker(router, "w0"))["reason"])
        assert 3 <= len(stubs[0].requests) <= 4
