"""Nothing of a request waits for the garbage collector: what it used is freed with its last reference."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
import uvloop

from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

REQUESTS = 40


@pytest.fixture
def disabled_collector() -> Iterator[None]:
    """Only `gc.collect` finds cycles meanwhile."""
    gc.disable()
    yield
    gc.enable()


async def ask_on_own_connection(router: RunningRouter, number: int) -> None:
    body = {"model": "stub", "prompt": f"{number}", "stream": number % 2 == 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{router.url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        await response.read()


async def unreachable_objects(home: Path) -> int:
    """Objects in cycles after some requests, half of them streams, each on a connection of its own."""
    with ExitStack() as stack:
        stubs = [stack.enter_context(running_stub(StubWorker(uid=f"w{number}"))) for number in range(2)]
        async with running_router(stubs, home) as router:
            await ask_on_own_connection(router, 0)
            await router.until_idle()
            gc.collect()
            for number in range(REQUESTS):
                await ask_on_own_connection(router, number)
            await router.until_idle()
            await asyncio.sleep(0.1)  # connections close a turn of the event loop later
            return gc.collect()


@pytest.mark.usefixtures("disabled_collector")
def test_requests_leave_no_reference_cycle(tmp_path: Path) -> None:
    # The loop that the router runs on: asyncio's own transports are cycles, uvloop's are not.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(unreachable_objects(tmp_path)) == 0
