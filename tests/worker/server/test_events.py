"""The event stream: after any gap a router arrives at the worker's own set."""

import asyncio
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import Frame, LoadReport, PlainAnswer
from warmfleet_contracts.cache.resident import ResidentSet
from warmfleet_testing.cache.event_follower import Follower
from warmfleet_testing.engine import engine_ready
from warmfleet_worker.engine.messages import SequenceUpdate, StepReport
from warmfleet_worker.server import events as events_module
from warmfleet_worker.server.events import EventHub

LOAD = LoadReport(total_blocks=100)
READY = msgspec.structs.replace(engine_ready.READY, total_blocks=100, max_model_length_tokens=1024)


def block(number: int) -> bytes:
    return number.to_bytes(16, "little")


async def follow(
    hub: EventHub, follower: Follower, epoch: str = "", after: int | None = None, version: int = 2
) -> None:
    async for data in hub.subscribe(epoch, after, version):
        follower.feed(data)


async def until(condition, timeout_seconds: float = 5) -> None:
    async with asyncio.timeout(timeout_seconds):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.005)


@pytest.fixture
async def hub() -> AsyncIterator[EventHub]:
    hub = EventHub()
    hub.start(READY)
    yield hub
    hub.close()


async def test_a_follower_gets_a_snapshot_and_then_every_change(hub):
    hub.apply(StepReport(load=LOAD, stored=[block(1), block(2)]))
    await until(lambda: hub.mirror.seq == 1)
    follower = Follower()
    task = asyncio.create_task(follow(hub, follower))

    await until(lambda: follower.resident is not None)
    hub.apply(StepReport(load=LOAD, stored=[block(3)], removed=[block(1)]))

    await until(lambda: hub.mirror.seq == 2 and follower.resident.seq == 2)
    assert follower.resident.hashes() == hub.mirror.hashes() == {block(2), block(3)}
    hub.close()
    await task


async def test_changes_of_many_steps_are_netted_into_one_frame(hub):
    follower = Follower()
    task = asyncio.create_task(follow(hub, follower))
    await until(lambda: follower.resident is not None)

    for number in range(50):
        hub.apply(StepReport(load=LOAD, stored=[block(number)]))
        hub.apply(StepReport(load=LOAD, removed=[block(number)] if number % 2 else []))
    assert hub.position == "life-1:1"

    await until(lambda: follower.resident.seq == 1)
    changes = [frame for frame in follower.frames if frame.stored]
    assert len(changes) == 1
    assert changes[0].stored == [block(number) for number in range(0, 50, 2)]
    assert changes[0].removed == []
    hub.close()
    await task


async def test_a_subscriber_that_was_away_briefly_gets_only_what_it_missed(hub):
    for number in range(1, 4):
        hub.apply(StepReport(load=LOAD, stored=[block(number)]))
        await until(lambda number=number: hub.mirror.seq == number)
    follower = Follower()
    follower.resident = ResidentSet("life-1", 1, [block(1)])

    task = asyncio.create_task(follow(hub, follower, "life-1", 1))

    await until(lambda: follower.resident.seq == 3)
    assert all(frame.snapshot_left is None for frame in follower.frames)
    assert follower.resident.hashes() == hub.mirror.hashes()
    hub.close()
    await task


@pytest.mark.parametrize(("epoch", "after"), [("life-0", 1), ("life-1", 7), ("", None), ("life-1", None)])
async def test_a_subscriber_at_another_position_gets_a_snapshot(hub, epoch, after):
    hub.apply(StepReport(load=LOAD, stored=[block(1)]))
    await until(lambda: hub.mirror.seq == 1)
    follower = Follower()

    task = asyncio.create_task(follow(hub, follower, epoch, after))

    await until(lambda: follower.resident is not None)
    assert follower.frames[0].snapshot_left == 0
    assert follower.resident.hashes() == {block(1)}
    hub.close()
    await task


async def test_what_the_replay_buffer_forgot_comes_as_a_snapshot(hub, monkeypatch):
    monkeypatch.setattr(events_module, "MAX_REPLAY_FRAMES", 2)
    for number in range(1, 6):
        hub.apply(StepReport(load=LOAD, stored=[block(number)]))
        await until(lambda number=number: hub.mirror.seq == number)

    near, far = Follower(), Follower()
    near.resident = ResidentSet("life-1", 3, [block(1), block(2), block(3)])
    tasks = [asyncio.create_task(follow(hub, near, "life-1", 3))]
    tasks += [asyncio.create_task(follow(hub, far, "life-1", 2))]

    await until(lambda: far.resident is not None and near.resident.seq == 5)
    assert near.frames[0].snapshot_left is None
    assert far.frames[0].snapshot_left == 0
    hub.close()
    await asyncio.gather(*tasks)


async def test_a_router_that_does_not_read_loses_its_own_stream_only(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_SUBSCRIBER_BYTES", 2_000)
    dropped = []
    hub = EventHub(on_dropped=lambda: dropped.append(1))
    hub.start(READY)
    reading, stuck = Follower(), hub.subscribe("", None)
    task = asyncio.create_task(follow(hub, reading))
    await anext(stuck)
    await until(lambda: reading.resident is not None)

    for number in range(20):
        hub.apply(StepReport(load=LOAD, stored=[block(number * 20 + offset) for offset in range(20)]))
        await until(lambda number=number: hub.mirror.seq == number + 1)

    with pytest.raises(StopAsyncIteration):
        await anext(stuck)
    await until(lambda: reading.resident.seq == 20)
    assert dropped == [1]
    assert hub.subscribers == 1
    hub.close()
    await task


async def test_load_goes_out_soon_after_it_changes_and_again_when_nothing_does(hub, monkeypatch):
    monkeypatch.setattr(events_module, "IDLE_HEARTBEAT_SECONDS", 0.05)
    follower = Follower()
    task = asyncio.create_task(follow(hub, follower))
    await until(lambda: follower.resident is not None)

    hub.apply(StepReport(load=LoadReport(total_blocks=100, admitted_dispatches={"r": 4})))

    await until(lambda: len(follower.frames) >= 4)
    assert follower.frames[1].load.admitted_dispatches == {"r": 4}
    assert {frame.seq for frame in follower.frames} == {0}
    hub.close()
    await task


async def test_draining_is_reported_in_the_next_frame_and_not_revoked(hub):
    follower = Follower()
    task = asyncio.create_task(follow(hub, follower))
    await until(lambda: follower.resident is not None)

    hub.drain()
    hub.apply(StepReport(load=LoadReport(total_blocks=100, running_sequences=1)))

    await until(lambda: len(follower.frames) == 3)
    assert [frame.load.draining for frame in follower.frames] == [False, True, True]
    hub.close()
    await task


@pytest.mark.parametrize("version", [1, 2])
async def test_snapshot_replay_and_live_frames_are_of_the_subscribers_version(hub, version):
    hub.apply(StepReport(load=LOAD, stored=[block(1)]))
    await until(lambda: hub.mirror.seq == 1)
    fresh, behind, newest = Follower(), Follower(), Follower()
    behind.resident = ResidentSet("life-1")
    tasks = [
        asyncio.create_task(follow(hub, fresh, version=version)),
        asyncio.create_task(follow(hub, behind, "life-1", 0, version=version)),
        asyncio.create_task(follow(hub, newest)),
    ]
    await until(lambda: behind.resident.seq == 1 and fresh.resident and newest.resident)

    hub.apply(StepReport(load=LOAD, stored=[block(2)]))

    await until(lambda: {follower.resident.seq for follower in (fresh, behind, newest)} == {2})
    assert {frame.v for frame in (*fresh.frames, *behind.frames)} == {version}
    assert {frame.v for frame in newest.frames} == {2}
    assert fresh.resident.hashes() == behind.resident.hashes() == {block(1), block(2)}
    hub.close()
    await asyncio.gather(*tasks)


async def test_a_first_token_of_a_plain_answer_is_sent_without_waiting_for_the_heartbeat(hub):
    follower = Follower()
    task = asyncio.create_task(follow(hub, follower))
    await until(lambda: follower.resident is not None)

    with hub.plain_answers.open("router-a", 17, [4]):
        hub.apply(StepReport(load=LOAD, updates=[SequenceUpdate(sequence_id=4, cached_tokens=0)]))
        hub.apply(StepReport(load=LOAD, updates=[SequenceUpdate(sequence_id=4, token_ids=[9])]))
        await until(lambda: len(follower.frames) == 2, 0.9 * events_module.BUSY_HEARTBEAT_SECONDS)
        hub.apply(StepReport(load=LOAD, updates=[SequenceUpdate(sequence_id=4, token_ids=[9, 9])]))
        hub.drain()  # any frame after it
        await until(lambda: len(follower.frames) == 3)
    hub.stall(stalled=False)
    await until(lambda: len(follower.frames) == 4)

    reports = [frame.load.plain_answers for frame in follower.frames]
    assert [bool(report) for report in reports] == [False, True, True, False]
    first, second = reports[1]["router-a"][0], reports[2]["router-a"][0]
    assert (first.dispatch, first.generated_tokens, second.generated_tokens) == (17, 1, 3)
    assert second == PlainAnswer(17, first.admitted_after_seconds, first.first_token_after_seconds, 3)
    hub.close()
    await task


async def test_a_subscriber_that_lost_frames_gets_all_first_tokens_again(hub):
    with hub.plain_answers.open("router-a", 17, [4]):
        token = SequenceUpdate(sequence_id=4, cached_tokens=0, token_ids=[9])
        hub.apply(StepReport(load=LOAD, stored=[block(1)], updates=[token]))
        await until(lambda: hub.mirror.seq == 1)
        fresh, behind = Follower(), Follower()
        behind.resident = ResidentSet("life-1", 1, [block(1)])

        tasks = [
            asyncio.create_task(follow(hub, fresh)),
            asyncio.create_task(follow(hub, behind, "life-1", 1)),
        ]
        await until(lambda: fresh.frames and behind.frames)

    for follower in (fresh, behind):
        (answer,) = follower.frames[0].load.plain_answers["router-a"]
        assert answer.dispatch == 17
    hub.close()
    await asyncio.gather(*tasks)


async def test_a_stream_opened_before_the_engine_is_ready_waits_for_it():
    hub = EventHub()
    follower = Follower()
    task = asyncio.create_task(follow(hub, follower))
    await asyncio.sleep(0.01)
    assert follower.frames == []

    hub.start(READY)

    await until(lambda: follower.resident is not None)
    hub.close()
    await task


operations = st.lists(
    st.one_of(
        st.tuples(st.just("toggle"), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("clear"), st.lists(st.integers(0, 9), max_size=3, unique=True)),
        st.tuples(st.just("flush"), st.just([])),
    ),
    max_size=25,
)


@given(operations, st.integers(0, 25))
def test_a_follower_that_joins_at_any_time_ends_with_the_engines_set(steps, joins_at):
    """The oracle is a plain set changed by the same reports."""
    asyncio.run(replay(steps, joins_at))


async def replay(steps: list[tuple[str, list[int]]], joins_at: int) -> None:
    hub, follower = EventHub(), Follower()
    hub.start(READY)
    held: set[bytes] = set()
    task = None
    for number, (kind, numbers) in enumerate(steps):
        if number == joins_at:
            task = asyncio.create_task(follow(hub, follower))
            await asyncio.sleep(0)
        named = {block(value) for value in numbers}
        if kind == "toggle":
            hub.apply(StepReport(load=LOAD, stored=sorted(named - held), removed=sorted(named & held)))
            held ^= named
        elif kind == "clear":
            kept = named & held
            hub.apply(StepReport(load=LOAD, cleared=True, stored=sorted(kept)))
            held = kept
        else:
            hub._flush()
            await asyncio.sleep(0)
    task = task or asyncio.create_task(follow(hub, follower))
    await asyncio.sleep(0)
    hub._flush()
    while follower.resident is None or follower.resident.seq < hub.mirror.seq:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert follower.resident.hashes() == hub.mirror.hashes() == held
    hub.close()
    await task


def test_the_replay_buffer_keeps_the_bytes_of_frames_and_not_their_objects():
    stored = [bytes(16)]
    references = sys.getrefcount(stored)
    buffer = events_module.ReplayBuffer()

    buffer.append(events_module.EncodedFrame(Frame(epoch="epoch", seq=1, stored=stored)))

    assert len(buffer.after(0, 1) or []) == 1
    assert sys.getrefcount(stored) == references
