"""`/tokenize` and `/detokenize` are requests like others: counted, shared, spread, retried within bounds."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_router.proxy.retry_budget import RetryBudgetSettings
from warmfleet_router.workers.breakers import BreakerSettings, Cause
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.sleeping_models import SleepingModels
from warmfleet_testing.router.slow_reader import SlowReaders
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@asynccontextmanager
async def fleet(
    home: Path, count: int, **settings: Any
) -> AsyncGenerator[tuple[RunningRouter, list[StubWorker]], None]:
    with ExitStack() as stack:
        stubs = [stack.enter_context(running_stub(StubWorker(uid=f"w{number}"))) for number in range(count)]
        async with running_router(stubs, home, **settings) as router:
            yield router, stubs


async def tokenize(
    router: RunningRouter, headers: dict[str, str] | None = None, text: str = "hello"
) -> tuple[int, dict[str, Any]]:
    sent = {"content-type": "application/json", **(headers or {})}
    body = json.dumps({"model": "stub", "prompt": text}).encode()
    async with router.http.post(router.url + "/tokenize", data=body, headers=sent) as response:
        return response.status, await response.json()


async def test_a_tenants_limits_hold_for_texts_too(tmp_path: Path) -> None:
    keys = PlantedKeys()
    narrow = keys.add("narrow", max_in_flight_requests=1).text
    small = keys.add("small", max_in_flight_tokens=100).text
    async with fleet(tmp_path, 1, keys=keys.file) as (router, [stub]):
        stub.faults.hold_headers = True
        first = asyncio.create_task(tokenize(router, bearer(narrow)))
        await router.until(lambda: stub.requests)
        stub.faults.hold_headers = False
        second = await tokenize(router, bearer(narrow))
        alone, _ = await tokenize(router, bearer(small), "a" * 400)
        stub.faults.hold_headers = True
        large = asyncio.create_task(tokenize(router, bearer(small), "a" * 400))
        await router.until(lambda: len(stub.requests) == 3)
        stub.faults.hold_headers = False
        beside = await tokenize(router, bearer(small))
        first.cancel()
        large.cancel()
        await router.until(lambda: router.router.limits.in_flight == Amount())

    assert alone == 200, "its tokens are only guessed"
    for status, answer in (second, beside):
        assert (status, answer["error"]["code"]) == (429, "tenant_quota_exceeded")


async def test_a_text_whose_worker_is_gone_goes_to_no_other_owner_of_the_name(tmp_path: Path) -> None:
    models = SleepingModels({"stub": 60})
    models.owners = {"stub": "a/first"}
    with ExitStack() as first, running_stub(StubWorker(uid="w1")) as after:
        before = first.enter_context(running_stub(StubWorker(uid="w0")))
        models.discover(before)
        async with running_router([], tmp_path, discovery=models, wait_ready=False) as router:
            known = router.router.workers.fleet
            await router.until(lambda: any(worker.ready for worker in known.workers("stub")))
            before.faults.hold_headers = True
            asking = asyncio.create_task(tokenize(router))
            await router.until(lambda: before.requests)
            models.owners = {"stub": "b/second"}
            models.discover(before, after)
            await router.until(lambda: sum(worker.ready for worker in known.workers("stub")) == 2)
            first.close()
            status, answer = await asking

    assert (status, answer["error"]["code"]) == (503, "no_replica")
    assert not after.requests


async def test_texts_go_to_equal_workers_in_rotation_and_around_a_busy_one(tmp_path: Path) -> None:
    async with fleet(tmp_path, 4) as (router, stubs):
        for _ in range(8):
            await tokenize(router)
        in_rotation = [len(stub.requests) for stub in stubs]

        for stub in stubs:
            stub.faults.hold_headers = True
        held = asyncio.create_task(tokenize(router))
        await router.until(lambda: sum(len(stub.requests) for stub in stubs) == 9)
        [busy] = [stub for stub in stubs if len(stub.requests) == 3]
        for stub in stubs:
            stub.faults.hold_headers = False
        for _ in range(8):
            await tokenize(router)
        held.cancel()

    assert in_rotation == [2, 2, 2, 2]
    assert len(busy.requests) == 3
    assert sum(len(stub.requests) for stub in stubs) == 17


async def test_an_ejected_worker_is_not_asked(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as (router, stubs):
        router.router.workers.breakers.eject("w0", "w0", Cause.FAILURES, "no reason")
        for _ in range(6):
            await tokenize(router)

    assert len(stubs[0].requests) == 0
    assert sum(len(stub.requests) for stub in stubs) == 6


async def test_failures_count_against_the_worker_and_answers_close_no_breaker(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as (router, [stub, _]):
        breakers = router.router.workers.breakers
        stub.faults.refuse_status = 502
        answers = [await tokenize(router) for _ in range(12)]
        state = breakers.status("w0", "w0").state

    assert {status for status, _ in answers} == {200}
    assert (state, len(stub.requests)) == ("open", 5)


async def test_tries_are_bounded_by_the_budget_of_all_retries(tmp_path: Path) -> None:
    budget = RetryBudgetSettings(ratio=0.0, floor_retries=3)
    async with fleet(tmp_path, 3, retry_budget=budget) as (router, stubs):
        for stub in stubs:
            stub.faults.refuse_status = 503
        answers = [await tokenize(router) for _ in range(4)]

    assert [status for status, _ in answers] == [503] * 4
    assert sum(len(stub.requests) for stub in stubs) == 4 + 3


async def test_large_texts_of_one_tenant_leave_workers_to_those_of_others(tmp_path: Path) -> None:
    keys = PlantedKeys()
    hostile, light = keys.add("hostile").text, keys.add("light").text
    async with fleet(tmp_path, 1, keys=keys.file) as (router, [stub]):
        stub.faults.hold_headers = True
        large = [asyncio.create_task(tokenize(router, bearer(hostile), "a" * 20_000)) for _ in range(8)]
        await router.until(lambda: router.router.limits.in_flight.buffered_bytes > 160_000)
        await router.until(lambda: len(stub.requests) == 2)
        stub.faults.hold_headers = False

        status, _ = await tokenize(router, bearer(light), "a" * 20_000)

        assert (status, len(stub.requests)) == (200, 3)
        for task in large:
            task.cancel()
        await router.until(lambda: router.router.limits.in_flight == Amount())


async def test_a_client_that_does_not_read_its_answer_keeps_no_other_large_text_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = SlowReaders(monkeypatch)
    async with fleet(tmp_path, 1) as (router, [stub]):
        texts = [asyncio.create_task(tokenize(router, text="a" * 20_000)) for _ in range(6)]
        await router.until(lambda: len(stub.requests) == 6, seconds=10)
        await router.until(lambda: readers.waiting == 6, seconds=10)
        assert router.router.limits.in_flight.buffered_bytes > 6 * 20_000
        readers.read.set()
        answers = await asyncio.gather(*texts)
        await router.until(lambda: router.router.limits.in_flight == Amount())

    assert {status for status, _ in answers} == {200}


async def test_a_text_keeps_no_generation_from_a_worker_that_comes_back(tmp_path: Path) -> None:
    at_once = BreakerSettings(ejection_seconds=0.001)
    async with fleet(tmp_path, 2, breaker=at_once) as (router, [stub, _]):
        breakers = router.router.workers.breakers
        breakers.eject("w0", "w0", Cause.FAILURES, "no reason")
        await router.until(lambda: breakers.status("w0", "w0").state == "half-open")
        stub.faults.hold_headers = True
        texts = [asyncio.create_task(tokenize(router)) for _ in range(2)]
        await router.until(lambda: stub.requests)

        ejections = breakers.ejections({"w0": "w0", "w1": "w1"})

        for text in texts:
            text.cancel()
        await router.until(lambda: router.router.limits.in_flight == Amount())

    assert ejections.reasons == {}
