"""Prefixes that a router has a worker compute ahead of requests, and the worker's readiness meanwhile."""

import asyncio
import contextlib
import time
from array import array
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.prewarm import (
    MAX_PREFIXES,
    PREWARM_PATH,
    Prefix,
    PrewarmRequest,
    decode_prewarm,
    encode_prewarm,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_simulator.clock import run_in_virtual_time
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker
from warmfleet_testing.engine.worker_requests import fresh_text
from warmfleet_worker.server.events import EventHub
from warmfleet_worker.server.prewarm import ROUTER_SECONDS, Warmup

SALT = b"salt of a tenant"


@pytest.fixture
def client(client: httpx.Client) -> httpx.Client:
    """Of a worker with free blocks: nothing is evicted for a prefix."""
    client.delete("/internal/cache").raise_for_status()
    return client


def prefix(token_ids, salt=SALT):
    return Prefix.of(salt, array("I", token_ids))


def prewarm(client: httpx.Client, *prefixes: Prefix) -> httpx.Response:
    return client.post(PREWARM_PATH, content=encode_prewarm(PrewarmRequest(prefixes=list(prefixes))))


def complete(client: httpx.Client, token_ids, salt=SALT) -> httpx.Response:
    body = {"model": TINY_NAME, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0}
    response = client.post("/v1/completions", json=body, headers={"x-warmfleet-salt": salt.hex()})
    return response.raise_for_status()


def tokens_of(client: httpx.Client, text: str) -> list[int]:
    token_ids: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return token_ids


# Computing.


def test_a_prewarmed_prefix_is_cached_for_the_requests_that_begin_with_it(client):
    token_ids = tokens_of(client, fresh_text(400))
    blocks = len(token_ids) // 16

    answer = prewarm(client, prefix(token_ids)).json()
    response = complete(client, [*token_ids, 65, 66])

    assert answer == {
        "computed_tokens": len(token_ids),
        "cached_tokens": 0,
        "refused_prefixes": 0,
        "late_prefixes": 0,
    }
    assert response.headers["x-warmfleet-cached-tokens"] == str(16 * blocks)


def test_the_answer_after_a_prewarmed_prefix_is_that_of_a_cold_one(client):
    token_ids = tokens_of(client, fresh_text(200))
    prewarm(client, prefix(token_ids, b"warm"))

    warm, cold = (complete(client, token_ids, salt).json()["choices"] for salt in (b"warm", b"cold"))

    assert warm == cold


def test_prefixes_that_share_a_beginning_compute_it_once(client):
    shared = tokens_of(client, fresh_text(320))[:160]

    answer = prewarm(client, prefix([*shared, *range(70, 86)]), prefix([*shared, *range(80, 96)])).json()

    assert answer == {
        "computed_tokens": 176 + 16,
        "cached_tokens": 160,
        "refused_prefixes": 0,
        "late_prefixes": 0,
    }


def test_a_prefix_is_cached_for_its_salt_alone(client):
    token_ids = tokens_of(client, fresh_text(200))

    prewarm(client, prefix(token_ids, b"mine"))

    assert complete(client, token_ids, b"yours").headers["x-warmfleet-cached-tokens"] == "0"


@pytest.mark.parametrize("token_ids", [[4_000_000_000], [65] * 100_000], ids=["unknown", "too-long"])
def test_a_prefix_that_the_engine_refuses_leaves_the_others(client, token_ids):
    good = tokens_of(client, fresh_text(100))

    answer = prewarm(client, prefix(token_ids), prefix(good)).json()

    assert answer == {
        "computed_tokens": len(good),
        "cached_tokens": 0,
        "refused_prefixes": 1,
        "late_prefixes": 0,
    }


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        msgspec.msgpack.encode({"prefixes": [[b"", b"abc"]]}),
        msgspec.msgpack.encode({"prefixes": [[b"", b""]]}),
        msgspec.msgpack.encode({"prefixes": [[b"x" * 65, b"abcd"]]}),
        msgspec.msgpack.encode({"prefixes": [[b"", b"abcd"]] * (MAX_PREFIXES + 1)}),
        msgspec.msgpack.encode({"prefixes": "many"}),
    ],
)
def test_a_malformed_request_is_refused_with_what_is_wrong(client, body):
    response = client.post(PREWARM_PATH, content=body)

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("malformed prewarm request: ")


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), max_size=5),
    st.binary(max_size=64),
)
def test_what_is_encoded_is_decoded(prompts, salt):
    request = PrewarmRequest(prefixes=[prefix(token_ids, salt) for token_ids in prompts])

    decoded = decode_prewarm(encode_prewarm(request))

    assert [list(one.token_ids) for one in decoded.prefixes] == prompts
    assert all(one.salt == salt for one in decoded.prefixes)


@given(st.binary(max_size=200))
def test_no_body_raises_anything_but_a_contract_error(body):
    with contextlib.suppress(ContractError):
        decode_prewarm(body)


@pytest.mark.usefixtures("client")
def test_a_router_that_leaves_ends_its_prefixes(shared_worker):
    with shared_worker.client() as client, pytest.raises(httpx.ReadTimeout):
        many = [prefix(tokens_of(client, fresh_text(400))) for _ in range(MAX_PREFIXES)]
        body = encode_prewarm(PrewarmRequest(prefixes=many))
        client.post(PREWARM_PATH, content=body, timeout=httpx.Timeout(10, read=0.005))

    with shared_worker.client() as client:
        deadline = time.monotonic() + 30
        while client.get("/internal/cache").json()["pinned_blocks"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.get("/readyz").status_code == 200
        answer = prewarm(client, *many).json()
    assert answer["computed_tokens"] > len(many[0].token_ids)  # not all of them were computed


def test_prefixes_take_no_place_from_the_requests_that_a_worker_takes_at_once(tiny_served_path):
    flags = ("--kv-cache-bytes", "4000000", "--max-live-sequences", "1")
    with (
        running_worker(tiny_served_path, *flags) as worker,
        worker.client() as client,
        ThreadPoolExecutor(1) as router,
    ):
        many = [prefix(tokens_of(client, fresh_text(400))) for _ in range(8)]
        computing = router.submit(prewarm, client, *many)
        while not computing.done():
            complete(client, range(65, 97))

        assert computing.result().json()["computed_tokens"] > 0


def test_a_request_without_a_body_asks_for_no_prefix(client):
    answer = client.post(PREWARM_PATH)

    assert answer.json() == {
        "computed_tokens": 0,
        "cached_tokens": 0,
        "refused_prefixes": 0,
        "late_prefixes": 0,
    }


# Readiness.


def test_a_worker_is_ready_once_its_router_has_prewarmed_it(tiny_served_path):
    flags = ("--kv-cache-bytes", "4000000", "--prewarm-seconds", "60")
    with running_worker(tiny_served_path, *flags, wait=False) as worker:
        worker.wait_for_log("engine ready")
        with worker.client() as client:
            before = client.get("/readyz")
            cache = client.get("/internal/cache").json()
            answer = prewarm(client, prefix(range(65, 97)))
            after = client.get("/readyz")

    assert (before.status_code, after.status_code) == (503, 200)
    assert before.json() == {"status": "prefixes are computed ahead of requests"}
    assert cache["total_blocks"] == 0  # what routers see: nothing is sent there
    assert answer.json()["computed_tokens"] == 32


def test_a_request_that_comes_before_it_is_ready_is_answered(tiny_served_path):
    flags = ("--kv-cache-bytes", "4000000", "--prewarm-seconds", "60")
    with running_worker(tiny_served_path, *flags, wait=False) as worker:
        worker.wait_for_log("engine ready")
        with worker.client() as client:
            assert complete(client, range(65, 97)).json()["usage"]["completion_tokens"] == 1


class Openings(EventHub):
    """When routers got that the worker takes requests."""

    def __init__(self, routers: int) -> None:
        super().__init__()
        self.at: list[float] = []
        self._routers = routers

    @property
    def subscribers(self) -> int:
        return self._routers

    def warm_up(self, *, warming: bool) -> None:
        if not warming:
            self.at.append(asyncio.get_running_loop().time())


def opened_after(seconds: float, *asked: tuple[float, float], routers: int, waiting: int = -1) -> float:
    """When a worker opens, in seconds from the engine's readiness, that routers ask from and to.

    `routers` follow its event stream; requests wait in the one that asks as number `waiting`.
    """

    async def router(warmup: Warmup, start: float, end: float, *, requests_wait: bool) -> None:
        await asyncio.sleep(start)
        with warmup.computing(requests_wait=requests_wait):
            await asyncio.sleep(end - start)

    async def run() -> float:
        begun, openings = asyncio.get_running_loop().time(), Openings(routers)
        warmup = Warmup(openings, seconds)
        warmup.begin()
        async with asyncio.TaskGroup() as group:
            for number, (start, end) in enumerate(asked):
                group.create_task(router(warmup, start, end, requests_wait=number == waiting))
            group.create_task(asyncio.sleep(seconds + 1))
        [opened] = openings.at
        return opened - begun

    return run_in_virtual_time(run())


@pytest.mark.parametrize(
    ("seconds", "asked", "opened"),
    [
        (0, [], 0),
        (10, [], ROUTER_SECONDS),
        (1, [], 1),
        (10, [(0.5, 0.5)], 0.5),
        (10, [(1, 7)], 7),
        (10, [(1, 7), (3, 9)], 9),
        (10, [(1, 1.5), (3, 9)], 1.5),
        (10, [(1, 70)], 10),
        (10, [(5, 7)], ROUTER_SECONDS),
    ],
)
def test_a_worker_waits_for_routers_and_for_what_they_ask_but_only_so_long(seconds, asked, opened):
    assert opened_after(seconds, *asked, routers=1) == pytest.approx(opened)


@pytest.mark.parametrize(
    ("asked", "opened"),
    [
        ([(0.2, 0.2), (0.5, 1.2)], 1.2),  # the first knew no prefix
        ([(0.2, 0.2), (1.5, 3)], 3),
        ([(0.2, 1.0)], ROUTER_SECONDS),
        ([(0.2, 3), (0.3, 0.4)], 3),
    ],
)
def test_a_worker_waits_for_each_router_that_follows_its_events(asked, opened):
    assert opened_after(10, *asked, routers=2) == pytest.approx(opened)


def test_a_worker_takes_requests_as_soon_as_one_router_has_some_that_wait():
    assert opened_after(10, (0.1, 5), (0.4, 0.4), routers=2, waiting=1) == pytest.approx(0.4)
