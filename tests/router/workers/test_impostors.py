"""A port that another worker took over: no prompt is read there, whenever the takeover happens."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from warmfleet_testing.processes.fault_proxy import FaultProxy, running_fault_proxy
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@pytest.fixture
def stubs() -> Iterator[list[StubWorker]]:
    """Two workers of one model, and one of another model and fleet."""
    with ExitStack() as stack:
        workers = [StubWorker(uid="w0"), StubWorker(uid="w1"), StubWorker(uid="other", served_name="else")]
        yield [stack.enter_context(running_stub(worker)) for worker in workers]


@pytest.fixture
async def port(stubs: list[StubWorker]) -> AsyncGenerator[FaultProxy, None]:
    """The address at which the router knows w0; the process behind it may change."""
    async with running_fault_proxy(stubs[0].url) as proxy:
        yield proxy


def takeover(port: FaultProxy, impostor: StubWorker) -> None:
    port.port = int(impostor.url.rpartition(":")[2])


async def test_a_takeover_after_the_hello_is_noticed_by_the_request_and_costs_no_answer(
    stubs: list[StubWorker], port: FaultProxy, tmp_path: Path
) -> None:
    w0, w1, impostor = stubs
    w0.url = port.url
    async with running_router([w0, w1], tmp_path, policy="RoundRobin") as router:
        # Given an event stream that still comes from w0, while new connections reach the impostor
        takeover(port, impostor)

        # When requests go there
        answers = [await router.ask("secret prompt") for _ in range(8)]

        # Then w1 answers them all, the impostor was asked and read no body, and is not asked again
        assert [status for status, _, _ in answers] == [200] * 8
        assert impostor.bodies == []
        assert len(impostor.requests) <= 1
        if impostor.requests:
            view = router.router.workers.breakers.status("w0", "w0")
            assert view.reason == "another worker answers at its address"


async def test_a_takeover_before_the_hello_gets_no_connection_with_a_prompt_at_all(
    stubs: list[StubWorker], port: FaultProxy, tmp_path: Path
) -> None:
    w0, w1, impostor = stubs
    w0.url = port.url
    async with running_router([w0, w1], tmp_path, policy="RoundRobin") as router:
        takeover(port, impostor)
        port.reset_all()
        await router.until(lambda: router.router.workers.fleet.worker("w0").counts.hellos_refused > 0)

        answers = [await router.ask("secret prompt") for _ in range(8)]

        assert [status for status, _, _ in answers] == [200] * 8
        assert impostor.requests == []
        view = router.router.workers.fleet.worker("w0")
        assert not view.ready
        assert view.hello is None
