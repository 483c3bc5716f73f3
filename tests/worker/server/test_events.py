"""The event stream: after any gap a router arrives at the worker's own set."""

import asyncio
import itertools
import secrets
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import (
    Frame,
    Hello,
    LoadReport,
    MessageReader,
    PlainAnswer,
    hello_proof,
)
from warmfleet_contracts.cache.resident import ResidentSet, SnapshotAssembly
from warmfleet_testing.engine import engine_ready
from warmfleet_testing.engine.worker_process import TINY_NAME, WorkerProcess, running_worker
from warmfleet_worker.engine.messages import SequenceUpdate, StepReport
from warmfleet_worker.server import events as events_module
from warmfleet_worker.server.events import EventHub

LOAD = LoadReport(total_blocks=100)
READY = msgspec.structs.replace(engine_ready.READY, total_blocks=100, max_model_length_tokens=1024)


def block(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Follower:
    """What a router does with the frames, in a few lines."""

    def __init__(self) -> None:
        self.resident: ResidentSet | None = None
        self.frames: list[Frame] = []
        self._assembly: SnapshotAssembly | None = None
        self._reader = MessageReader()

    def feed(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            assert isinstance(frame, Frame)
            self.frames.append(frame)
            if frame.snapshot_left is not None:
                self._assembly = self._assembly or SnapshotAssembly(frame)
                complete = self._assembly.add(frame)
                if complete is not None:
                    self.resident, self._assembly = complete, None
            else:
                assert self.resident is not None
                self.resident.apply(frame)


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


def test_a_routers_set_after_real_requests_is_the_workers_own(shared_worker):
    nonce = secrets.token_bytes(16)
    follower, hello = Follower(), []
    done = threading.Event()

    def read() -> None:
        with (
            shared_worker.client() as client,
            client.stream("GET", f"/internal/kv-events?nonce={nonce.hex()}") as response,
        ):
            split = MessageReader()
            for data in response.iter_raw():
                if not hello:
                    length = 4 + int.from_bytes(data[:4], "little")
                    hello.extend(split.feed(data[:length]))
                    data = data[length:]
                follower.feed(data)
                if done.is_set() and follower.resident.seq == last_seq[0]:
                    return

    last_seq = [0]
    reader = threading.Thread(target=read)
    reader.start()
    with shared_worker.client() as client:
        for number in range(12):
            prompt = "shared head " * 10 + secrets.token_hex(20 + number)
            client.post("/v1/completions", json={"model": TINY_NAME, "prompt": prompt, "max_tokens": 20})
        client.delete("/internal/cache")
        client.post("/v1/completions", json={"model": TINY_NAME, "prompt": "after " * 20, "max_tokens": 4})
        asyncio.run(asyncio.sleep(0.1))
        cache = client.get("/internal/cache").json()
        last_seq[0] = cache["seq"]
        done.set()
        client.post("/v1/completions", json={"model": TINY_NAME, "prompt": "hi", "max_tokens": 9})
    reader.join(15)

    assert not reader.is_alive()
    assert isinstance(hello[0], Hello)
    assert (hello[0].uid, hello[0].epoch, hello[0].proof) == ("shared", cache["epoch"], b"")
    assert hello[0].identity.hex() == cache["identity"]
    assert len(follower.resident) == cache["resident_blocks"] > 0
    assert follower.resident.digest.xor.hex() == cache["resident_xor"]
    assert any(frame.cleared for frame in follower.frames)


def first_message(worker: WorkerProcess, path: str, headers: dict[str, str]) -> Hello | Frame:
    """Of a stream that is opened once there is a place: one that was closed is released a moment later."""
    deadline = time.monotonic() + 10
    with worker.client() as client:
        while True:
            with client.stream("GET", path, headers=headers) as response:
                if response.status_code != 429:
                    reader = MessageReader()
                    for data in response.raise_for_status().iter_raw():
                        for message in reader.feed(data):
                            return message
                    raise AssertionError("the stream ended before its first message")
            assert time.monotonic() < deadline, "no place became free"
            time.sleep(0.02)


def test_a_plain_answer_is_reported_while_it_is_generated_and_in_its_headers(shared_worker):
    headers = {"x-warmfleet-router": "router-a", "x-warmfleet-dispatch": "17"}
    body = {"model": TINY_NAME, "prompt": "hello " * 9, "max_tokens": 300, "ignore_eos": True, "n": 2}
    answers: list[httpx.Response] = []

    def ask() -> None:
        with shared_worker.client() as client:
            answers.append(client.post("/v1/completions", json=body, headers=headers))

    asking = threading.Thread(target=ask)
    reports: list[PlainAnswer] = []
    path, versions = "/internal/kv-events", {"x-warmfleet-versions": "2"}
    with shared_worker.client() as client, client.stream("GET", path, headers=versions) as response:
        reader = MessageReader()
        for data in response.iter_raw():
            loads = [frame.load for frame in reader.feed(data) if isinstance(frame, Frame)]
            if loads and not asking.ident:
                asking.start()
            reports += [answer for load in loads for answer in load.plain_answers.get("router-a", ())]
            if reports and not loads[-1].plain_answers:
                break
    asking.join(30)

    tokens = [report.generated_tokens for report in reports]
    (times,) = {(report.admitted_after_seconds, report.first_token_after_seconds) for report in reports}
    found = [answers[0].headers[f"x-warmfleet-{name}-after-seconds"] for name in ("admitted", "first-token")]
    assert {report.dispatch for report in reports} == {17}
    assert tokens == sorted(tokens)
    assert 0 < tokens[0] < tokens[-1] <= 600
    assert [f"{seconds:.6f}" for seconds in times] == found
    assert 0 < times[0] <= times[1]


def test_a_worker_reports_that_it_drains_before_its_stream_ends(tiny_served_path):
    with running_worker(tiny_served_path, "--kv-cache-bytes", "1000000") as worker:
        loads = []
        with worker.client() as client, client.stream("GET", "/internal/kv-events") as response:
            reader = MessageReader()
            for data in response.iter_raw():
                frames = [message for message in reader.feed(data) if isinstance(message, Frame)]
                if frames and not loads:
                    worker.process.send_signal(signal.SIGTERM)
                loads += [frame.load for frame in frames]

        # Each may be sent twice: a heartbeat comes when it is due.
        states = [draining for draining, _ in itertools.groupby(load.draining for load in loads)]
        assert states == [False, True]
        assert worker.process.wait(15) == 0


@pytest.mark.parametrize("query", ["after=x", "after=-1", "nonce=zz", "nonce=" + "00" * 65])
def test_a_malformed_subscription_is_refused(client, query):
    assert client.get(f"/internal/kv-events?{query}").status_code == 400


@pytest.mark.parametrize("versions", ["", "1,", "one", "3,4"])
def test_a_subscription_without_a_common_version_is_refused(client, versions):
    refused = client.get("/internal/kv-events", headers={"x-warmfleet-versions": versions})

    assert refused.status_code == 400
    assert "version" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("stated", "version"), [(None, 1), ("1", 1), ("1,2", 2), ("2,3", 2)])
def test_a_worker_writes_the_highest_version_that_its_subscriber_accepts(shared_worker, stated, version):
    headers = {} if stated is None else {"x-warmfleet-versions": stated}

    assert first_message(shared_worker, "/internal/kv-events", headers).v == version


def test_streams_opened_before_the_engine_is_ready_count_and_get_a_proven_hello(tiny_served_path):
    token, nonce = "secret-token", secrets.token_bytes(16)
    flags = ("--max-subscribers", "2", "--uid", "pod-7")
    with running_worker(tiny_served_path, *flags, token=token, wait=False) as worker:
        path, headers = "/internal/kv-events", {"x-warmfleet-nonce": nonce.hex()}
        with worker.client() as client, client.stream("GET", path), client.stream("GET", path):
            refused = client.get(path)
        hello = first_message(worker, path, headers)

    assert refused.status_code == 429
    assert isinstance(hello, Hello)
    assert hello.proof == hello_proof(token.encode(), nonce=nonce, uid="pod-7", identity=hello.identity)


def test_the_replay_buffer_keeps_the_bytes_of_frames_and_not_their_objects():
    stored = [bytes(16)]
    references = sys.getrefcount(stored)
    buffer = events_module.ReplayBuffer()

    buffer.append(events_module.EncodedFrame(Frame(epoch="epoch", seq=1, stored=stored)))

    assert len(buffer.after(0, 1) or []) == 1
    assert sys.getrefcount(stored) == references
