"""Clients leave at any stage of their request; what it held is free by the end of the step in flight.

Steps are counted with the engine stopped (SIGSTOP) in the middle of its work: it gets the message when
it goes on, so what it computes after that is the step in flight and no more.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from warmfleet_testing.engine.worker_process import TINY_NAME, tiny_served_model
from warmfleet_testing.hostile.leaving_clients import Goodbye, LeavingClient
from warmfleet_testing.router.watched_fleet import TOKEN, WatchedFleet, wait_until, watched_fleet

PATH = "/v1/completions"
LONG_PROMPT_TOKENS = 8000
"""Its prefill lasts many times as long as a look at the steps, after which the engine is stopped."""
STEP_TOKENS = 64
DISCONNECTS = 2000
AT_ONCE = 24
STEPS_COUNT = "vllm:iteration_tokens_total_count"
STEPS_TOKENS = "vllm:iteration_tokens_total_sum"
ABORTED = "warmfleet_worker_aborted_requests_total"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_served_model(tmp_path_factory.mktemp("model"), max_position_embeddings=8192)


@pytest.fixture(scope="module")
def whole(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    """Eight seats, steps of 64 tokens, room for 15,600 tokens."""
    flags = ("--max-model-length-tokens", "8192", "--max-batched-tokens", str(STEP_TOKENS))
    more = ("--kv-cache-bytes", "8000000", "--max-running-sequences", "8")
    with watched_fleet(tmp_path_factory.mktemp("home"), model_path, *flags, *more) as running:
        yield running


@pytest.fixture(scope="module")
def narrow(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    """One seat."""
    flags = ("--max-model-length-tokens", "8192", "--max-running-sequences", "1")
    more = ("--kv-cache-bytes", "8000000")
    with watched_fleet(tmp_path_factory.mktemp("home"), model_path, *flags, *more) as running:
        yield running


@pytest.fixture
def fleet(whole: WatchedFleet) -> WatchedFleet:
    whole.wait_until_quiet()
    return whole


def completion(prompt: list[int], **fields: object) -> dict[str, Any]:
    return {"model": TINY_NAME, "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}


def new_prompt(tokens: int) -> list[int]:
    return random.choices(range(32, 250), k=tokens)


@asynccontextmanager
async def asking(url: str, body: dict[str, Any], *, token: str = "") -> AsyncIterator[LeavingClient]:
    """A client that has sent its request and reads nothing yet."""
    client = LeavingClient(url, token=token)
    await client.connect()
    await client.ask(PATH, body)
    yield client
    client.leave()


@contextmanager
def stopped_engine(fleet: WatchedFleet) -> Iterator[None]:
    """The engine is stopped, and the server has read everything that it had sent."""
    pid = fleet.worker.engine_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _state(pid) == "T", lambda: _state(pid))
        # An answer of the server's own event loop: what was in its socket before has been read.
        steps = -1.0
        while steps != (steps := fleet.worker_metric(STEPS_COUNT)):
            pass
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("goodbye", Goodbye)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_blocks_are_free_by_the_end_of_the_step_in_flight(
    fleet: WatchedFleet, where: str, stream: bool, goodbye: Goodbye
) -> None:
    # Given a request under way, some steps of its prefill or of its decode done
    tokens = LONG_PROMPT_TOKENS if where == "prefill" else 20
    body = completion(new_prompt(tokens), stream=stream, max_tokens=2000)
    steps_before, aborted_before = fleet.worker_metric(STEPS_COUNT), fleet.worker_metric(ABORTED)
    async with asking(fleet.url, body) as client:
        wait_until(lambda: fleet.worker_metric(STEPS_COUNT) >= steps_before + 6, fleet.held_for_clients)

        # When its client leaves while a step is in flight
        with stopped_engine(fleet):
            cache = fleet.worker.cache()
            steps, computed = fleet.worker_metric(STEPS_COUNT), fleet.worker_metric(STEPS_TOKENS)
            client.leave(goodbye)
            wait_until(lambda: fleet.worker_metric(ABORTED) == aborted_before + 1, fleet.held_for_clients)

        # Then that step was the last one
        fleet.wait_until_quiet()
    assert cache["pinned_blocks"] >= 2
    assert fleet.worker_metric(STEPS_COUNT) - steps <= 1
    assert fleet.worker_metric(STEPS_TOKENS) - computed <= STEP_TOKENS
    if where == "prefill":
        assert steps < steps_before + LONG_PROMPT_TOKENS // STEP_TOKENS
    assert fleet.worker.cache()["pinned_blocks"] == 0


@pytest.mark.parametrize("goodbye", Goodbye)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_request_that_leaves_the_routers_queue_never_reaches_the_worker(
    narrow: WatchedFleet, stream: bool, goodbye: Goodbye
) -> None:
    narrow.wait_until_quiet()
    async with asking(narrow.url, completion(new_prompt(20), stream=True, max_tokens=6000)) as holder:
        await holder.read(at_most=1)
        prompt_tokens = narrow.worker_metric("vllm:prompt_tokens_total")

        async with asking(narrow.url, completion(new_prompt(400), stream=stream)) as client:
            wait_until(lambda: narrow.held_for_clients()["held requests"] == 1, narrow.held_for_clients)
            client.leave(goodbye)
            wait_until(lambda: narrow.held_for_clients()["held requests"] == 0, narrow.held_for_clients)

        def only_the_holder_is_left() -> bool:
            held = narrow.held_for_clients()
            return (held["running sequences"], held["requests in flight"]) == (1, 1)

        # The router learns of the holder's sequence up to 20 ms later than the client gets its first token.
        wait_until(only_the_holder_is_left, narrow.held_for_clients)
        assert narrow.worker_metric("vllm:prompt_tokens_total") == prompt_tokens
    narrow.wait_until_quiet()


@pytest.mark.parametrize("goodbye", Goodbye)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_request_that_leaves_the_workers_queue_is_never_admitted(
    narrow: WatchedFleet, stream: bool, goodbye: Goodbye
) -> None:
    narrow.wait_until_quiet()
    async with asking(narrow.url, completion(new_prompt(20), stream=True, max_tokens=6000)) as holder:
        await holder.read(at_most=1)
        prompt_tokens = narrow.worker_metric("vllm:prompt_tokens_total")

        body = completion(new_prompt(400), stream=stream)
        async with asking(narrow.worker.url, body, token=TOKEN) as client:
            wait_until(lambda: narrow.held_for_clients()["waiting sequences"] == 1, narrow.held_for_clients)
            client.leave(goodbye)
            wait_until(lambda: narrow.held_for_clients()["waiting sequences"] == 0, narrow.held_for_clients)

        assert narrow.held_for_clients()["running sequences"] == 1
        assert narrow.worker_metric("vllm:prompt_tokens_total") == prompt_tokens
    narrow.wait_until_quiet()


async def test_2000_random_disconnects_leak_nothing(fleet: WatchedFleet) -> None:
    # Given a fleet that has served a request
    draw = random.Random(4)
    shared = [draw.randrange(32, 250) for _ in range(600)]
    await _visit(fleet.url, draw, shared)
    fleet.wait_until_quiet()
    fleet.clear_cache()
    start, files = fleet.worker.cache(), fleet.open_files()
    pids = fleet.pids
    seen: Counter[str] = Counter()

    # When clients come and leave at any moment, a few dozen at once
    async def come_and_go(visits: list[int]) -> None:
        while visits:
            visits.pop()
            seen[await _visit(fleet.url, draw, shared)] += 1

    visits = list(range(DISCONNECTS))
    await asyncio.gather(*(come_and_go(visits) for _ in range(AT_ONCE)))

    # Then nothing is left of them
    fleet.wait_until_quiet()
    assert fleet.pids == pids
    assert sum(seen.values()) == DISCONNECTS
    assert min(seen.values()) > DISCONNECTS // 50, seen
    for process, count in fleet.open_files().items():
        assert count <= files[process] + AT_ONCE, process  # idle connections between router and worker
    wait_until(lambda: fleet.router_metric("warmfleet_router_pending_blocks") == 0, fleet.fleet)
    assert fleet.router_metric("warmfleet_router_hash_mismatches_total") == 0
    fleet.clear_cache()
    end = fleet.worker.cache()
    assert {**end, "seq": start["seq"]} == start

    # And every block can be used: this prompt needs nearly all of them
    tokens = min((start["total_blocks"] - 2) * start["block_size_tokens"], 8000)
    async with asking(fleet.url, completion(new_prompt(tokens), max_tokens=4)) as client:
        answer = await client.read()
    assert (answer.status, answer.complete) == (200, True)


async def _visit(url: str, draw: random.Random, shared: list[int]) -> str:
    """One request whose client leaves; returns how far it came."""
    goodbye = draw.choice(list(Goodbye))
    prompt = shared[: draw.randrange(600)] + draw.choices(range(32, 250), k=1 + int(draw.expovariate(1 / 80)))
    stream = draw.random() < 0.5
    body = completion(prompt, stream=stream, max_tokens=draw.randrange(1, 400), n=draw.choice([1, 1, 1, 2]))
    client = LeavingClient(url)
    try:
        await client.connect()
        if draw.random() < 0.15:
            await client.ask(PATH, body, sent_ratio=draw.random())
            return "sending"
        await client.ask(PATH, body)
        if draw.random() < 0.3:
            return "sent"
        if stream and draw.random() < 0.5:
            answer = await client.read(at_most=draw.randrange(1, 40_000))
            return "complete" if answer.complete else "reading"
        await asyncio.sleep(draw.expovariate(1 / 0.05))
        return "waiting"
    finally:
        client.leave(goodbye)
