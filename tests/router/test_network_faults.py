"""A bad network between router and worker: what a client gets, counted."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmfleet_router.workers.breakers import BreakerSettings
from warmfleet_router.workers.liveness import LivenessSettings
from warmfleet_testing.processes.fault_proxy import FaultProxy, running_fault_proxy
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stubs

WORDS = [str(number) for number in range(3)]


@dataclass
class Network:
    """A router in front of two stubs, the first of them behind a fault proxy."""

    router: RunningRouter
    proxy: FaultProxy
    stubs: list[StubWorker]


@asynccontextmanager
async def faulty_network(stubs: list[StubWorker], home: Path) -> AsyncGenerator[Network, None]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(running_fault_proxy(stubs[0].url))
        direct, stubs[0].url = stubs[0].url, proxy.url
        router = await stack.enter_async_context(
            running_router(
                stubs,
                home,
                policy="RoundRobin",
                silence=LivenessSettings(hung_seconds=1.5, answer_seconds=20.0),
                # Longer than the sweeps for silence are apart, on a busy machine too.
                breaker=BreakerSettings(ejection_seconds=1.0),
            )
        )
        stubs[0].url = direct
        yield Network(router, proxy, stubs)


@pytest.fixture
def stubs() -> Iterator[list[StubWorker]]:
    with running_stubs(2) as running:
        yield running


@pytest.fixture
async def network(stubs: list[StubWorker], tmp_path: Path) -> AsyncGenerator[Network, None]:
    async with faulty_network(stubs, tmp_path) as network:
        yield network


def outcome(status: int, body: bytes) -> str:
    """What became of one stream: whole, broken with an error object, or refused; anything else fails."""
    if status != 200:
        assert json.loads(body)["error"]["message"]
        return str(status)
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    if events[-1] == "[DONE]":
        assert [json.loads(event)["text"] for event in events[:-1]] == WORDS
        return "whole"
    assert json.loads(events[-1])["error"]["code"] == "replica_lost"
    assert [json.loads(event)["text"] for event in events[:-1]] == WORDS[: len(events) - 1]
    return "broken"


async def outcomes(router: RunningRouter, count: int, *, at_once: bool = False) -> Counter[str]:
    asking = [router.ask("hello", stream=True) for _ in range(count)]
    answers = await asyncio.gather(*asking) if at_once else [await one for one in asking]
    return Counter(outcome(status, body) for status, _, body in answers)


@pytest.mark.parametrize(
    "faults",
    [
        {"slice_bytes": 1},
        {"latency_seconds": 0.2, "jitter_seconds": 0.1},
        {"bytes_per_second": 4000.0},
    ],
    ids=["one-byte frames", "200 ms +- 100 ms", "throttled"],
)
async def test_a_slow_or_chopped_network_loses_nothing(network: Network, faults: dict[str, float]) -> None:
    for name, value in faults.items():
        setattr(network.proxy.faults, name, value)

    assert await outcomes(network.router, 12, at_once=True) == {"whole": 12}


async def test_a_reset_before_the_first_byte_is_retried(network: Network) -> None:
    network.proxy.faults.refuse = True
    network.stubs[0].faults.close_before_headers = True

    assert await outcomes(network.router, 10) == {"whole": 10}
    assert sum(decision.retries for decision in network.router.router.routing.decisions.newest(10)) == 5


@pytest.mark.parametrize("cut", ["reset", "half-closed"])
async def test_a_connection_cut_in_mid_stream_gives_an_error_object_and_no_half_event(
    network: Network, cut: str
) -> None:
    for stub in network.stubs:
        stub.event_seconds = 0.05
    network.proxy.faults.cut_after = b'"text": "0"'
    network.proxy.faults.cut_with_reset = cut == "reset"

    counted = await outcomes(network.router, 6)

    assert counted == {"whole": 3, "broken": 3}


async def test_a_blackholed_worker_costs_a_second_and_no_answer(network: Network) -> None:
    # Given a network that drops everything and closes nothing
    network.proxy.faults.blackhole = True

    # When requests go on
    started = time.monotonic()
    counted = await outcomes(network.router, 4, at_once=True)

    # Then all are answered: the silent worker is left after hung_seconds, and ejected
    assert counted == {"whole": 4}
    assert time.monotonic() - started < 10
    ejections = network.router.router.metrics.registry.get_sample_value(
        "warmfleet_router_ejections_total", {"cause": "silent"}
    )
    assert ejections == 1

    # When the network is back, so is the worker
    network.proxy.faults.blackhole = False
    fleet = network.router.router.workers.fleet
    await network.router.until(
        lambda: (
            all(view.ready for view in fleet.workers())
            and network.router.router.workers.breakers.status("w0", "w0").state == "half-open"
        ),
        seconds=20,
    )
    assert await outcomes(network.router, 6) == {"whole": 6}
    assert network.router.router.workers.breakers.status("w0", "w0").state == "closed"


async def test_a_worker_that_stops_in_mid_stream_leaves_an_error_object_in_time(network: Network) -> None:
    # Given a stream from each worker, of which the first stops on both channels after one event
    faults = network.stubs[0].faults
    faults.hold_after_events, faults.silent_events = 1, True

    started = time.monotonic()
    counted = await outcomes(network.router, 2, at_once=True)

    assert counted == {"whole": 1, "broken": 1}
    assert time.monotonic() - started < 10
    assert await asyncio.to_thread(network.stubs[0].cancelled.wait, 5)


async def test_a_worker_that_works_for_long_is_waited_for(network: Network) -> None:
    """Three times `hung_seconds` of prefill: the answer is silent, the event stream is not."""
    for stub in network.stubs:
        stub.prefill_tokens_per_second = 1 / 4.5

    started = time.monotonic()
    assert await outcomes(network.router, 1) == {"whole": 1}
    assert time.monotonic() - started >= 4.5
    assert network.router.router.routing.decisions.newest(1)[0].retries == 0


async def test_bytes_that_were_flipped_reach_no_client_as_an_event_stream_of_the_router(
    network: Network,
) -> None:
    """Corrupt frames close the event stream, and the worker counts as unknown until they are whole again."""
    network.proxy.faults.corrupt_every_bytes = 7
    network.proxy.reset_all()
    fleet = network.router.router.workers.fleet
    await network.router.until(lambda: not fleet.worker("w0").ready)

    assert await outcomes(network.router, 4) == {"whole": 4}
    assert network.stubs[0].requests == []

    network.proxy.faults.corrupt_every_bytes = 0
    await network.router.until(lambda: fleet.worker("w0").ready, seconds=20)


async def test_a_proxy_that_ends_while_it_connects_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python warns of one at some later collection, in whichever test runs then."""
    made: list[asyncio.StreamWriter] = []
    connect, is_made = asyncio.open_connection, asyncio.Event()

    async def slowly(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect(host, port)
        made.append(writer)
        is_made.set()
        await asyncio.sleep(0.05)
        return reader, writer

    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with running_fault_proxy(f"http://{host}:{port}") as proxy:
        monkeypatch.setattr(asyncio, "open_connection", slowly)
        _, client = await connect("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        await asyncio.wait_for(is_made.wait(), 10)
    client.close()
    server.close()
    with suppress(OSError):
        await client.wait_closed()
    await server.wait_closed()

    assert [writer.is_closing() for writer in made] == [True]
