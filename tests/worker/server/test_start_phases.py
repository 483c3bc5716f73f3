"""Each router gets the phases of a worker's start: what is over when it subscribes, and then what changes."""

import asyncio

import pytest

from warmfleet_contracts.cache.kv_events import LoadReport, MessageReader
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_testing.engine.engine_ready import READY
from warmfleet_worker.engine.messages import StepReport
from warmfleet_worker.server.events import EventHub
from warmfleet_worker.server.prewarm import Warmup
from warmfleet_worker.start_clock import StartClock

LOAD = LoadReport(total_blocks=1000)


async def frames_of(hub, frames, version):
    reader = MessageReader()
    async for data in hub.subscribe("", None, version):
        frames += reader.feed(data)


@pytest.mark.parametrize(("version", "passes"), [(2, True), (1, False)])
async def test_a_router_gets_the_phases_at_first_and_again_when_one_is_over(version, passes):
    start = StartClock()
    hub = EventHub(start=lambda: start.phases)
    warmup = Warmup(hub, 10.0, on_open=start.opened)
    start.engine_ready(imports_at=1.0, load_at=1.0)
    loaded = start.phases
    hub.start(READY)
    frames = []
    task = asyncio.create_task(frames_of(hub, frames, version))
    await asyncio.sleep(0)

    warmup._open("prewarmed")
    await asyncio.sleep(0)
    for _ in range(3):
        hub.drain()  # a frame at once, in which no phase is new
    hub.close()
    await task

    seen = [frame.start for frame in frames if frame.start is not None]
    assert seen == ([loaded, start.phases] if passes else [])
    assert start.phases.prewarm is not None
    assert len(frames) >= 5


async def test_a_worker_that_waits_for_no_router_is_open_when_its_engine_is_ready():
    start = StartClock()
    warmup = Warmup(EventHub(), 0.0, on_open=start.opened)
    assert start.phases == StartPhases()

    start.engine_ready(imports_at=1.0, load_at=1.0)
    warmup.begin()

    assert start.phases.prewarm is not None


async def test_a_hub_without_phases_adds_no_frame():
    hub = EventHub()
    hub.start(READY)
    frames = []
    task = asyncio.create_task(frames_of(hub, frames, 2))
    await asyncio.sleep(0)
    hub.apply(StepReport(load=LOAD))
    hub.close()
    await task

    assert [frame.snapshot_left for frame in frames] == [0]
