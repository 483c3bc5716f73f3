"""A router in front of a model that sleeps: what its clients get until it is awake, and from then on."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from warmfleet_contracts.cache.fleet_totals import ModelTotals, decode_totals
from warmfleet_router.admission.queue_bounds import NOTHING, AdmissionSettings, Amount
from warmfleet_router.admission.waking_queue import RELEASED_REQUESTS
from warmfleet_router.discovery.resources import DEFAULT_HOLD_SECONDS
from warmfleet_testing.router.full_fleet import cancelled, until
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.sleeping_models import SleepingModels
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@pytest.fixture
def stub() -> Iterator[StubWorker]:
    with running_stub(StubWorker(uid="w0", max_running_sequences=4)) as running:
        yield running


@asynccontextmanager
async def asleep(
    home: Path, *, hold_seconds: float = DEFAULT_HOLD_SECONDS, **settings: Any
) -> AsyncGenerator[tuple[RunningRouter, SleepingModels], None]:
    """A router whose model `stub` sleeps, and `awake` never has a replica; in the end it keeps nothing."""
    models = SleepingModels({"stub": hold_seconds}, "awake")
    async with running_router(
        [], home, discovery=models, wait_ready=False, admission=AdmissionSettings(**settings)
    ) as router:
        await until(router.router.workers.fleet.models)
        yield router, models
        await until(lambda: router.router.limits.in_flight == NOTHING)
        assert waking(router) == 0


def waking(router: RunningRouter) -> int:
    return router.router.admission.waking.total.requests


async def totals(router: RunningRouter) -> ModelTotals:
    async with router.http.get(router.url + "/internal/fleet/totals") as response:
        return decode_totals(await response.read()).models.get("stub", ModelTotals())


async def metrics(router: RunningRouter) -> dict[str, float]:
    async with router.http.get(router.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def code(body: bytes) -> str:
    return json.loads(body)["error"]["code"]


async def test_names_that_a_request_wakes_are_listed_while_no_worker_is_ready(
    tmp_path: Path, stub: StubWorker
) -> None:
    async def listed(router: RunningRouter) -> list[str]:
        async with router.http.get(router.url + "/internal/fleet") as response:
            return (await response.json())["asleep"]

    async with asleep(tmp_path) as (router, models):
        before = await listed(router)
        models.discover(stub)
        await until(lambda: router.router.workers.fleet.worker("w0") is not None)
        await router.ask("prompt")
        after = await listed(router)

    assert (before, after) == (["stub"], [])


async def test_two_hundred_held_requests_are_answered_a_few_at_a_time(
    tmp_path: Path, stub: StubWorker
) -> None:
    stub.events, stub.event_seconds = 2, 0.002
    async with asleep(tmp_path, max_wait_seconds=0.001) as (router, models):
        asking = [asyncio.create_task(router.ask(f"prompt {n}", stream=n % 2 == 0)) for n in range(200)]
        await until(lambda: waking(router) == 200)
        during, gauges = await totals(router), await metrics(router)
        models.discover(stub)
        most_queued = 0
        while not all(task.done() for task in asking):
            most_queued = max(most_queued, router.router.admission.held.requests)
            await asyncio.sleep(0.005)
        answers = await asyncio.gather(*asking)
        afterwards, counted = await totals(router), await metrics(router)

    assert Counter(status for status, _, _ in answers) == {200: 200}
    assert (during.held_requests, during.queued_requests) == (200, 0)
    assert during.held_tokens >= 200 * 10
    assert afterwards.held_requests == 0
    assert stub.peak_running <= 4
    assert most_queued <= RELEASED_REQUESTS
    assert gauges['warmfleet_router_waking_requests{model_name="stub"}'] == 200
    assert gauges["warmfleet_router_requests_in_flight"] == 200
    assert counted['warmfleet_router_waking_requests{model_name="stub"}'] == 0
    assert counted['warmfleet_router_waking_seconds_count{model_name="stub"}'] == 200
    assert counted['warmfleet_router_requests_total{model_name="stub",outcome="completed"}'] == 200
    assert counted["warmfleet_router_requests_in_flight"] == 0


async def test_time_to_first_token_counts_from_the_end_of_the_sleep(tmp_path: Path, stub: StubWorker) -> None:
    async with asleep(tmp_path) as (router, models):
        asking = asyncio.create_task(router.ask("hi", stream=True))
        await asyncio.sleep(0.6)
        models.discover(stub)
        assert (await asking)[0] == 200
        counted = (await totals(router)).first_token.percentile_ms(1.0)

    assert counted is not None
    assert counted < 400


async def test_a_stream_that_is_held_gets_pings_and_a_plain_answer_nothing(
    tmp_path: Path, stub: StubWorker
) -> None:
    async with asleep(tmp_path, ping_seconds=0.05) as (router, models):
        streaming = asyncio.create_task(router.ask("hi", stream=True))
        plain = asyncio.create_task(router.ask("hi"))
        await asyncio.sleep(0.3)
        models.discover(stub)
        status, headers, body = await streaming
        plain_status, plain_headers, plain_body = await plain

    assert (status, plain_status) == (200, 200)
    assert headers["content-type"].startswith("text/event-stream")
    assert body.startswith(b": ping\n\n: ping\n\n")
    assert body.endswith(b"data: [DONE]\n\n")
    assert plain_headers["content-type"] == "application/json"
    assert json.loads(plain_body)["worker"] == "w0"


async def test_a_fleet_that_does_not_wake_in_time_is_named_in_a_503(tmp_path: Path) -> None:
    async with asleep(tmp_path, hold_seconds=0.3, ping_seconds=0.05) as (router, _):
        plain, streamed = await asyncio.gather(router.ask("hi"), router.ask("hi", stream=True))
        counted = await metrics(router)

    assert (plain[0], code(plain[2])) == (503, "no_replica")
    assert b"no replica has been started yet" in plain[2]
    assert int(plain[1]["retry-after"]) >= 1
    assert streamed[0] == 200
    event = streamed[2].rstrip().split(b"\n\n")[-1]
    assert code(event.removeprefix(b"data: ")) == "no_replica"
    assert (
        counted['warmfleet_router_overloaded_requests_total{reason="waking_too_long",tenant="anonymous"}']
        == 2
    )
    assert counted['warmfleet_router_requests_total{model_name="stub",outcome="failed"}'] == 2


async def test_what_may_not_be_held_is_refused_at_once_and_counted(tmp_path: Path) -> None:
    async with asleep(tmp_path, max_waking=Amount(2, 2**20, 2**20)) as (router, _):
        held = [asyncio.create_task(router.ask("hi")) for _ in range(2)]
        await until(lambda: waking(router) == 2)
        status, headers, body = await router.ask("hi")
        counted = await metrics(router)
        await cancelled(held)

    assert (status, code(body)) == (429, "overloaded")
    assert int(headers["retry-after"]) >= 1
    assert counted['warmfleet_router_overloaded_requests_total{reason="waking_full",tenant="anonymous"}'] == 1


async def test_clients_that_leave_free_their_place_at_once(tmp_path: Path) -> None:
    async with asleep(tmp_path) as (router, _):
        asking = [asyncio.create_task(router.ask("hi", stream=n % 2 == 0)) for n in range(6)]
        await until(lambda: waking(router) == 6)
        await cancelled(asking)
        await until(lambda: waking(router) == 0)
        await until(lambda: router.router.limits.in_flight == NOTHING)
        counted = await metrics(router)
        reported = await totals(router)

    assert counted['warmfleet_router_requests_total{model_name="stub",outcome="client left"}'] == 6
    assert reported.held_requests == 1  # the operator still learns that it was asked for


async def test_a_held_stream_that_was_pinged_gets_an_error_object_when_the_router_ends(
    tmp_path: Path,
) -> None:
    async with asleep(tmp_path, ping_seconds=0.05) as (router, _):
        asking = asyncio.create_task(router.ask("hi", stream=True))
        await asyncio.sleep(0.2)
        router.router.admission.waking.drain()
        status, _, body = await asking

    event = body.rstrip().split(b"\n\n")[-1]
    assert (status, code(event.removeprefix(b"data: "))) == (200, "no_replica")
    assert b"about to end" in event


async def test_tenants_share_what_is_held(tmp_path: Path, keys: PlantedKeys, stub: StubWorker) -> None:
    one, other = keys.add("one"), keys.add("other")
    models = SleepingModels({"stub": 60})
    settings = AdmissionSettings(max_waking=Amount(8, 2**20, 2**20))
    async with running_router(
        [], tmp_path, discovery=models, wait_ready=False, admission=settings, keys=keys.file
    ) as router:
        await until(router.router.workers.fleet.models)
        asking = [asyncio.create_task(router.ask("hi", headers=bearer(one))) for _ in range(8)]
        refused, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: sum(task.done() for task in asking) == 4)
        theirs = asyncio.create_task(router.ask("hi", headers=bearer(other)))
        await until(lambda: waking(router) == 5)
        models.discover(stub)
        answers = await asyncio.gather(*asking, theirs)

    assert {code(task.result()[2]) for task in refused} == {"tenant_quota_exceeded"}
    assert Counter(status for status, _, _ in answers) == {200: 5, 429: 4}
    assert answers[-1][0] == 200


async def test_only_generations_for_models_that_sleep_wake(tmp_path: Path) -> None:
    async with asleep(tmp_path) as (router, _):
        status, listed = await router.get("/v1/models")
        one = await router.get("/v1/models/stub")
        ready = await router.get("/readyz")
        await metrics(router)
        unknown = await router.ask("hi", model="unknown")
        awake = await router.ask("hi", model="awake")
        async with router.http.post(
            router.url + "/tokenize", json={"model": "stub", "prompt": "x"}
        ) as response:
            tokenized, text = response.status, await response.text()
        reported = await totals(router)

    data: Any = listed["data"]
    assert (status, [model["id"] for model in data]) == (200, ["awake", "stub"])
    assert (one[0], ready[0], tokenized) == (200, 200, 503)
    assert "model 'stub' is asleep: only completions wake it" in text
    assert (unknown[0], code(unknown[2])) == (404, "model_not_found")
    assert (awake[0], code(awake[2])) == (503, "no_replica")  # its fleet may not sleep
    assert reported == ModelTotals()


async def test_held_requests_of_a_model_that_is_deleted_get_a_404(tmp_path: Path) -> None:
    async with asleep(tmp_path) as (router, models):
        asking = asyncio.create_task(router.ask("hi"))
        await until(lambda: waking(router) == 1)
        models.delete()
        status, _, body = await asking

    assert (status, code(body)) == (404, "model_not_found")


async def test_a_held_prompt_does_not_go_to_another_deployment_that_gets_the_name(
    tmp_path: Path, stub: StubWorker
) -> None:
    async with asleep(tmp_path) as (router, models):
        models.owners = {"stub": "a/chat"}
        models.discover()
        await until(lambda: router.router.workers.fleet.owner("stub"))
        asking = asyncio.create_task(router.ask("hi"))
        await until(lambda: waking(router) == 1)
        models.owners = {"stub": "b/chat"}
        models.discover(stub)
        status, headers, body = await asking
        assert (status, code(body), headers["retry-after"]) == (503, "no_replica", "1")
        assert not stub.bodies

        assert (await router.ask("hi"))[0] == 200


async def test_a_bad_request_is_refused_before_it_waits_and_one_that_does_not_fit_afterwards(
    tmp_path: Path, stub: StubWorker
) -> None:
    stub.max_model_length_tokens = 8
    async with asleep(tmp_path, ping_seconds=0.05) as (router, models):
        bad = await router.ask("hi", temperature=-1)
        asking = asyncio.create_task(router.ask("word " * 100, stream=True))
        await asyncio.sleep(0.1)
        models.discover(stub)
        status, _, body = await asking

    assert bad[0] == 400
    event = body.rstrip().split(b"\n\n")[-1]
    assert (status, code(event.removeprefix(b"data: "))) == (200, "context_length_exceeded")


async def test_a_worker_that_is_loading_leaves_requests_held(tmp_path: Path, stub: StubWorker) -> None:
    stub.total_blocks = 0
    async with asleep(tmp_path, no_worker_seconds=0.05) as (router, models):
        models.discover(stub)
        await until(lambda: any(view.hello for view in router.router.workers.fleet.workers()))
        asking = asyncio.create_task(router.ask("hi"))
        await asyncio.sleep(0.4)
        assert waking(router) == 1
        stub.total_blocks = 4096
        status, _, _ = await asking

    assert status == 200


async def test_a_worker_is_not_prewarmed_while_requests_are_held_for_it(
    tmp_path: Path, stub: StubWorker
) -> None:
    stub.waits_for_prefixes = True
    async with asleep(tmp_path) as (router, models):
        asking = asyncio.create_task(router.ask("hi"))
        await until(lambda: waking(router) == 1)
        models.discover(stub)
        status, _, _ = await asking

    assert status == 200
    assert [(len(prewarm.prefixes), prewarm.requests_wait) for prewarm in stub.prewarms] == [(0, True)]


async def test_a_request_that_meets_a_fleet_falling_asleep_waits_until_it_has_woken(
    tmp_path: Path, stub: StubWorker
) -> None:
    async with asleep(tmp_path, no_worker_seconds=0.05) as (router, models):
        models.discover(stub)
        await router.until_known(1)
        stub.faults.refuse_status = 503  # as a worker that has just begun to drain
        asking = asyncio.create_task(router.ask("hi"))
        await until(lambda: stub.requests)
        await asyncio.sleep(0.1)
        models.discover()
        await until(lambda: not router.router.workers.fleet.workers())
        await asyncio.sleep(0.2)
        reported = await totals(router)
        with running_stub(StubWorker(uid="w1")) as newcomer:
            models.discover(newcomer)
            status, _, body = await asking

    assert (reported.held_requests, reported.queued_requests) == (1, 0)
    assert (status, json.loads(body)["worker"]) == (200, "w1")
