"""The proxy over real sockets: what passes, what is retried, what a client sees when a worker dies."""

# ruff: noqa: ASYNC110 - what is waited for happens in another thread

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from warmfleet_router.discovery.base import Endpoint
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs

LONG = "x" * 200


@pytest.fixture
def stubs() -> Iterator[list[StubWorker]]:
    with running_stubs(2) as running:
        yield running


@pytest.fixture
async def router(stubs: list[StubWorker], tmp_path: Path) -> AsyncGenerator[RunningRouter, None]:
    async with running_router(stubs, tmp_path, policy="RoundRobin") as running:
        yield running


def chosen(stubs: list[StubWorker]) -> StubWorker:
    return next(stub for stub in stubs if stub.requests)


async def test_a_plain_answer_passes_through(router: RunningRouter, stubs: list[StubWorker]) -> None:
    status, headers, body = await router.ask("hello")

    assert status == 200
    assert json.loads(body)["text"] == "0 1 2"
    assert headers["content-type"] == "application/json"


async def test_a_stream_passes_through_event_by_event(router: RunningRouter, stubs: list[StubWorker]) -> None:
    status, headers, body = await router.ask("hello", stream=True)

    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert body.count(b"data: ") == 4
    assert body.endswith(b"data: [DONE]\n\n")


async def test_only_the_routers_headers_cross_the_router(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    sent = {
        "authorization": "Bearer client-key",
        "cookie": "session=1",
        "x-warmfleet-salt": "00",
        "x-warmfleet-anything": "1",
        "connection": "keep-alive, x-private",
        "x-private": "1",
        "traceparent": "00-trace",
        "x-request-id": "my-id_1",
    }

    _, answered, _ = await router.ask("hello", headers=sent)

    received = chosen(stubs).requests[0]
    assert "authorization" not in received
    assert "cookie" not in received
    assert "x-private" not in received
    assert "x-warmfleet-anything" not in received
    assert len(received["x-warmfleet-salt"]) == 64
    assert received["traceparent"] == "00-trace"
    assert received["x-request-id"] == "my-id_1"
    assert [name for name in answered if name.startswith("x-warmfleet-")] == ["x-warmfleet-decision"]
    assert answered["x-request-id"] == "my-id_1"
    assert answered.get("server") != "stub-insides"


async def test_the_workers_token_goes_along(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", token="secret")) as stub:
        async with running_router([stub], tmp_path) as router:
            status, _, _ = await router.ask("hello", headers={"authorization": "Bearer mine"})

    assert status == 200
    assert stub.requests[0]["authorization"] == "Bearer secret"


async def test_cache_salt_moves_from_the_body_into_the_salt(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    for salt in ("a", "b"):
        await router.ask("hello", cache_salt=salt)
    await router.ask("hello")

    received = [entry for stub in stubs for entry in zip(stub.requests, stub.bodies, strict=True)]
    assert all("cache_salt" not in json.loads(body) for _, body in received)
    assert len({headers["x-warmfleet-salt"] for headers, _ in received}) == 3


async def test_a_seed_is_drawn_only_for_a_request_without_one(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    await router.ask("hello")
    await router.ask("hello", seed=7)

    seeds = [headers.get("x-warmfleet-seed") for stub in stubs for headers in stub.requests]
    assert sorted(seed is None for seed in seeds) == [False, True]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("fault", ["refused", "503", "429", "before headers", "before first byte"])
async def test_a_fault_before_the_first_byte_costs_only_time(
    router: RunningRouter, stubs: list[StubWorker], fault: str, stream: bool
) -> None:
    # given: the worker that is next has the fault
    broken = stubs[0].faults
    broken.refuse_status = int(fault) if fault.isdecimal() else 0
    broken.close_before_headers = fault == "before headers"
    broken.close_before_first_byte = fault == "before first byte"
    if fault == "refused":
        gone = Endpoint(uid="w0", name="w0", url="http://127.0.0.1:9")
        view = router.router.workers.fleet._streams["w0"]
        view.endpoint = gone

    # when
    status, headers, body = await router.ask("hello", stream=stream)

    # then: the other one answers, and the retry repeats the same noise
    assert status == 200
    assert b'"worker": "w1"' in body
    _, decision = await router.get(f"/debug/decisions/{headers['x-warmfleet-decision']}")
    assert decision["retries"] == 1
    assert decision["outcome"] == "completed"
    if stubs[0].requests:
        assert stubs[0].requests[0]["x-warmfleet-seed"] == stubs[1].requests[0]["x-warmfleet-seed"]
    await router.until_idle()


async def test_a_plain_answer_is_retried_even_from_its_middle(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    stubs[0].faults.die_after_events = 0

    status, _, body = await router.ask("hello")

    assert status == 200
    assert json.loads(body)["worker"] == "w1"


@pytest.mark.parametrize("ending", ["its connection closes", "it is not ready"])
async def test_a_worker_that_dies_after_its_pings_costs_only_time(
    router: RunningRouter, stubs: list[StubWorker], ending: str
) -> None:
    for stub in stubs:
        stub.faults.pings = 2
    stubs[0].faults.close_after_pings = ending == "its connection closes"
    stubs[0].faults.not_ready_after_pings = ending == "it is not ready"

    status, headers, body = await router.ask("hello", stream=True)

    assert status == 200
    assert body.startswith(b'data: {"text": "0", "worker": "w1"}')
    assert body.endswith(b"data: [DONE]\n\n")
    _, decision = await router.get(f"/debug/decisions/{headers['x-warmfleet-decision']}")
    assert (decision["retries"], decision["outcome"]) == (1, "completed")


async def test_a_worker_that_dies_in_mid_stream_leaves_an_error_object_and_no_half_event(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    for stub in stubs:
        stub.faults.die_after_events = 2

    status, headers, body = await router.ask("hello", stream=True)

    assert status == 200
    events = [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n") if event]
    assert [event.get("text") for event in events[:-1]] == ["0", "1"]
    assert events[-1]["error"]["code"] == "replica_lost"
    _, decision = await router.get(f"/debug/decisions/{headers['x-request-id']}")
    assert decision["outcome"] == "broken"
    assert decision["retries"] == 0
    await router.until_idle()


async def test_without_any_answer_the_client_gets_503_and_when_to_retry(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    for stub in stubs:
        stub.faults.refuse_status = 503

    status, headers, body = await router.ask("hello")

    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert json.loads(body)["error"]["code"] == "no_replica"
    assert headers["x-warmfleet-decision"]
    assert sum(len(stub.requests) for stub in stubs) == 2


async def test_no_more_than_three_workers_are_tried(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stubs = [stack.enter_context(running_stub(StubWorker(uid=f"w{n}"))) for n in range(4)]
        for stub in stubs:
            stub.faults.refuse_status = 503
        async with running_router(stubs, tmp_path) as router:
            status, _, _ = await router.ask("hello")

    assert status == 503
    assert sum(len(stub.requests) for stub in stubs) == 3


@pytest.mark.parametrize("when", ["before the headers", "in mid-stream"])
async def test_a_client_that_leaves_cancels_the_worker_within_a_second(
    router: RunningRouter, stubs: list[StubWorker], when: str
) -> None:
    # given: a request that would last for a long time
    for stub in stubs:
        stub.faults.hold_headers = when == "before the headers"
        stub.event_seconds, stub.events = 0.05, 10_000
    body = {"model": "stub", "prompt": "hello", "stream": True}
    asking = asyncio.create_task(_read_all(router, body))
    async with asyncio.timeout(5):
        while not any(stub.arrived.is_set() for stub in stubs):
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.15)

    # when
    left_at = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    # then
    worker = chosen(stubs)
    assert await asyncio.to_thread(worker.cancelled.wait, 1.0)
    assert time.monotonic() - left_at < 1.0
    await router.until_idle()
    assert router.router.routing.decisions.newest(1)[0].outcome == "client left"


async def _read_all(router: RunningRouter, body: dict[str, object]) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(router.url + "/v1/completions", json=body) as answer,
    ):
        async for _ in answer.content.iter_any():
            pass


async def test_a_prompt_that_hashes_differently_is_counted_as_a_bug(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    for stub in stubs:
        stub.faults.wrong_last_block = True

    _, headers, _ = await router.ask(LONG)

    _, decision = await router.get(f"/debug/decisions/{headers['x-warmfleet-decision']}")
    assert decision["last_block_matches"] is False
    async with router.http.get(router.url + "/metrics") as response:
        assert "warmfleet_router_hash_mismatches_total 1.0" in await response.text()


async def test_tokens_of_all_prompts_of_a_request_are_counted(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    numbers = [list(range(start, start + 40)) for start in (0, 100, 200)]

    status, _, _ = await router.ask(numbers)
    streamed, _, _ = await router.ask(numbers, stream=True)
    _, fleet = await router.get("/internal/fleet")

    # then: of a stream the first prompt is known
    assert (status, streamed) == (200, 200)
    assert fleet["tokens"]["stub"]["prompt"] == 3 * 40 + 40
