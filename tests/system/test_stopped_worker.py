"""A worker stopped by SIGSTOP: nothing is closed, nothing is sent; and it may go on later."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmfleet_router.workers.breakers import BreakerSettings
from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.router.router_fixture import RunningRouter, running_router

DEADLINE_SECONDS = 10.0
"""What docs/reference/faults.md promises; about three of them are used."""


@dataclass
class Worker:
    """A worker process under the name by which the router knows it."""

    uid: str
    process: WorkerProcess

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def token(self) -> str:
        return self.process.token

    def signal(self, number: int) -> None:
        os.kill(self.process.process.pid, number)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    model = tiny_served_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    with ExitStack() as stack:
        yield [
            Worker(uid, stack.enter_context(running_worker(model, "--uid", uid, token=f"token-of-{uid}")))
            for uid in ("w0", "w1")
        ]


@pytest.fixture
async def router(workers: list[Worker], tmp_path: Path) -> AsyncGenerator[RunningRouter, None]:
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.callback(lambda one: suppress(ProcessLookupError) and one.signal(signal.SIGCONT), worker)
        # What was sent before and after the stop is not found silent in one moment: one ejection covers both.
        breaker = BreakerSettings(ejection_seconds=2.0, jitter_ratio=0.0)
        yield await stack.enter_async_context(
            running_router(workers, tmp_path, policy="RoundRobin", breaker=breaker)
        )


async def stream(router: RunningRouter, max_tokens: int, started: asyncio.Queue[str] | None = None) -> str:
    """`whole`, `broken` with a well-formed error object, or the status; anything else fails."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    events = []
    async with router.http.post(f"{router.url}/v1/completions", json=body) as response:
        if response.status != 200:
            return str(response.status)
        async for line in response.content:
            if line.startswith(b"data: "):
                events.append(line.removeprefix(b"data: ").strip())
                if len(events) == 1 and started is not None:
                    started.put_nowait(response.headers["x-warmfleet-decision"])
    if events[-1] == b"[DONE]":
        return "whole"
    assert json.loads(events[-1])["error"]["code"] == "replica_lost"
    assert all("choices" in json.loads(event) for event in events[:-1])
    return "broken"


async def test_a_worker_stopped_in_mid_stream_is_ejected_and_comes_back_by_a_probe(
    router: RunningRouter, workers: list[Worker]
) -> None:
    # Given long streams on both workers
    begun: asyncio.Queue[str] = asyncio.Queue()
    streams = [asyncio.create_task(stream(router, 1600, begun)) for _ in range(4)]
    for _ in streams:
        await begun.get()

    lost_seconds: list[float] = []

    # When one of them is stopped, and more requests come
    workers[0].signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    for one in streams:
        one.add_done_callback(
            lambda done: done.result() == "broken" and lost_seconds.append(time.monotonic() - stopped_at)
        )
    later = [asyncio.create_task(stream(router, 4)) for _ in range(4)]
    outcomes = await asyncio.gather(*streams)
    retried = await asyncio.gather(*later)

    # Then its streams end with an error object in time; a request without a byte yet is answered by the other
    assert sorted(outcomes) == ["broken", "broken", "whole", "whole"]
    assert len(lost_seconds) == 2
    assert max(lost_seconds) < DEADLINE_SECONDS
    assert retried == ["whole"] * 4
    decisions = router.router.routing.decisions.newest(8)
    assert sum(decision.retries for decision in decisions) == 2
    broken = [decision for decision in decisions if decision.outcome == "broken"]
    assert len(broken) == 2
    epoch = router.router.workers.fleet.worker("w0").epoch
    view = router.router.workers.breakers.status("w0", epoch)
    assert (view.ejections, view.reason) == (1, "neither answers nor sends events")

    # When it goes on
    workers[0].signal(signal.SIGCONT)
    fleet = router.router.workers.fleet
    await router.until(
        lambda: (
            fleet.worker("w0").ready
            and router.router.workers.breakers.status("w0", epoch).state == "half-open"
        ),
        20,
    )
    again = [await stream(router, 4) for _ in range(4)]

    # Then it answers again, closed by a probe, in the same life, and what was broken off is not computed on
    assert again == ["whole"] * 4
    assert router.router.workers.breakers.status("w0", epoch).state == "closed"
    assert await asyncio.to_thread(workers[0].process.wait_until_idle)


async def test_a_dispatch_for_another_worker_is_refused_before_its_body_is_read(
    router: RunningRouter, workers: list[Worker]
) -> None:
    async def post(uid: str, body: bytes, declared: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", workers[0].process.port)
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            f"authorization: Bearer {workers[0].token}\r\nx-warmfleet-uid: {uid}\r\n"
            f"content-length: {declared}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return head

    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 1}).encode()

    assert (await post("w0", body, len(body))).startswith(b"HTTP/1.1 200 ")
    # Of this one the body never comes: the refusal does not wait for it
    assert (await post("w1", b"", len(body))).startswith(b"HTTP/1.1 421 ")
