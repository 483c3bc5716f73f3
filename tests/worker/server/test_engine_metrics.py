"""An engine's own metrics on the worker's /metrics: as they are, and beside ours."""

import asyncio
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_testing.engine.engine_ready import READY
from warmfleet_worker.engine.messages import (
    Drain,
    EngineMetrics,
    ReadMetrics,
    StepReport,
    decode_server_message,
    encode_message,
    message_reader,
)
from warmfleet_worker.engine_start import EngineProcess
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.server import engine_client
from warmfleet_worker.server.engine_client import ProcessEngineClient
from warmfleet_worker.server.probes import Probes

VLLMS = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 7.0\n'


def ready(*, own_metrics):
    return msgspec.structs.replace(READY, own_metrics=own_metrics)


class Engine:
    """The other end of the socket."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, message):
        self.writer.write(encode_message(message))

    async def receive(self, messages=1):
        found, frames = [], message_reader()
        while len(found) < messages:
            found += map(decode_server_message, frames.feed(await self.reader.read(65536)))
        return found


@asynccontextmanager
async def connected(*, own_metrics=True):
    ours, theirs = socket.socketpair()
    known = asyncio.Event()
    observer = SimpleNamespace(
        position="e:0", on_ready=lambda _ready: known.set(), on_report=lambda _report: None
    )
    process = SimpleNamespace(pid=1, wait=lambda _seconds=None, **_: 0, poll=lambda: 0, kill=lambda: None)
    client = ProcessEngineClient(EngineProcess(process, ours), observer)
    running = asyncio.create_task(client.run())
    engine = Engine(*await asyncio.open_connection(sock=theirs))
    engine.send(ready(own_metrics=own_metrics))
    async with asyncio.timeout(30):
        await known.wait()
        try:
            yield client, engine
        finally:
            engine.writer.close()
            await running


async def test_all_that_ask_at_once_get_the_one_answer_of_the_engine():
    async with connected() as (client, engine):
        asked = [asyncio.create_task(client.read_metrics()) for _ in range(5)]
        assert await engine.receive() == [ReadMetrics()]
        engine.send(EngineMetrics(text=VLLMS))
        assert await asyncio.gather(*asked) == [VLLMS] * 5

        again = asyncio.create_task(client.read_metrics())
        assert await engine.receive() == [ReadMetrics()]
        engine.send(EngineMetrics(text=b""))
        assert await again == b""


async def test_an_engine_that_does_not_answer_is_asked_once_and_a_scrape_ends_without(monkeypatch):
    monkeypatch.setattr(engine_client, "METRICS_SECONDS", 0.01)
    async with connected() as (client, engine):
        assert [await client.read_metrics() for _ in range(3)] == [b""] * 3
        client.drain()
        assert await engine.receive(2) == [ReadMetrics(), Drain()]


async def test_the_end_of_the_engine_ends_a_scrape():
    async with connected() as (client, engine):
        asked = asyncio.create_task(client.read_metrics())
        await engine.receive()
        engine.writer.close()
        assert await asked == b""
    assert await client.read_metrics() == b""


async def test_a_report_without_progress_does_not_count_for_the_watchdog():
    async with connected() as (client, engine):

        async def reported(report):
            engine.send(report)
            asked = asyncio.create_task(client.read_metrics())
            await engine.receive()
            engine.send(EngineMetrics(text=VLLMS))
            assert await asked == VLLMS
            return client.last_report_seconds

        first = await reported(StepReport(load=LoadReport()))
        assert first > 0
        assert await reported(StepReport(load=LoadReport(), no_progress=True)) == first
        assert await reported(StepReport(load=LoadReport())) > first


async def test_our_own_engine_is_not_asked():
    async with connected(own_metrics=False) as (client, _engine):
        assert await client.read_metrics() == b""


def worker(*, own_metrics, engine_text=VLLMS):
    metrics = WorkerMetrics("tiny")
    found = ready(own_metrics=own_metrics)
    metrics.on_ready(found)

    async def read_metrics():
        return engine_text

    return SimpleNamespace(
        metrics=metrics,
        start=SimpleNamespace(phases=SimpleNamespace(by_name=dict)),
        events=SimpleNamespace(subscribers=0),
        engine=SimpleNamespace(ready=found, read_metrics=read_metrics),
    )


async def scraped(state):
    response = await Probes(state).metrics(None)
    return bytes(response.body)


async def test_vllms_metrics_stand_unchanged_beside_ours_and_no_name_twice():
    body = await scraped(worker(own_metrics=True))
    assert body.endswith(VLLMS)
    names = [family.name for family in text_string_to_metric_families(body.decode())]
    assert len(set(names)) == len(names)
    assert [name for name in names if name.startswith("vllm:")] == ["vllm:num_requests_running"]
    assert "warmfleet_worker_kv_blocks" in names


@pytest.mark.parametrize("own_metrics", [True, False])
async def test_ours_are_the_same_with_either_engine_but_for_vllms_names(own_metrics):
    body = await scraped(worker(own_metrics=own_metrics, engine_text=b""))
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    of_any_worker = text_string_to_metric_families(WorkerMetrics("a").render().decode())
    of_a_ready_engine = {"vllm:cache_config_info", "warmfleet_worker_engine_info"}
    every = {family.name for family in of_any_worker} | of_a_ready_engine
    own = {name for name in every if not name.startswith("vllm:")}
    assert names == (own if own_metrics else every)
