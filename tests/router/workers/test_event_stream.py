"""The stream's decisions with a hand-set clock, and the whole fleet over in-memory streams of real bytes."""

import asyncio
import random

import msgspec
import pytest

from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
from warmfleet_contracts.cache.kv_events import (
    MAX_COUNT,
    MAX_REPORTED_ROUTERS,
    Frame,
    LoadReport,
    ResidentDigest,
    encode_message,
    hello_proof,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.framing import frame
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.errors import HelloRefusedError, StreamUnavailableError
from warmfleet_router.workers.event_stream import ResyncNeededError, StreamTiming, WorkerStream, verify_hello
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_router.workers.stream_follower import MAX_REASON_CHARS
from warmfleet_testing.cache.prefix_matches import matches
from warmfleet_testing.engine.modelled_worker import IDENTITY, ModelledWorker, hash_of

TIMING = StreamTiming()
NONCE = b"n" * 16
TOKEN = b"the worker's token"


def endpoint_of(worker, **changes):
    fields = {"uid": worker.uid, "name": worker.uid, "url": "http://127.0.0.1:1", "token": worker.token}
    return Endpoint(**{**fields, **changes})


def connected(worker, index, *, now=0.0, timing=TIMING):
    stream = WorkerStream(endpoint_of(worker), index, timing)
    reconnect(stream, worker, now)
    return stream


def reconnect(stream, worker, now):
    epoch, after = stream.opening(NONCE)
    for message in worker.answer(epoch, after, NONCE):
        stream.received(message, now)


def is_ready(stream, now):
    return not stream.unready_reason(now)


def is_load_only(stream, now):
    return stream._load_only_until is not None and now < stream._load_only_until


# Verification.


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "another-worker"},
        {"proof": b""},
        {"proof": hello_proof(b"another token", nonce=NONCE, uid="worker-0", identity=IDENTITY)},
        {"proof": hello_proof(TOKEN, nonce=b"an older nonce", uid="worker-0", identity=IDENTITY)},
        {"identity": b"short"},
        {"epoch": ""},
        {"block_size_tokens": 0},
        {"served_names": ["name"] * 65},
        {"served_names": [""]},
        {"served_names": ["m", "n" * 257]},
        {"block_size_tokens": MAX_COUNT + 1},
        {"window_tokens": MAX_COUNT + 1},
        {"max_model_length_tokens": MAX_COUNT + 1},
        {"epoch": "e" * 129},
        {"tokenizer_digest": "0" * 129},
        {"model_digest": "0" * 129},
    ],
    ids=lambda changes: f"{next(iter(changes))}-{str(next(iter(changes.values())))[:24]}",
)
def test_an_impostor_gets_no_prompt(changes):
    worker = ModelledWorker("worker-0", token=TOKEN)
    stream = connected(worker, PrefixIndex())
    stream.lost("reset", now=1.0)

    stream.opening(NONCE)
    with pytest.raises(HelloRefusedError):
        stream.received(worker.hello(NONCE, **changes), now=1.1)

    assert not is_ready(stream, 1.1)
    assert stream.hello is None
    assert stream.counts.hellos_refused == 1


def test_a_token_shows_that_the_worker_is_the_right_one():
    worker = ModelledWorker("worker-0", token=TOKEN)

    verify_hello(worker.hello(NONCE), endpoint_of(worker), NONCE)


def test_a_hello_may_have_the_largest_counts_and_the_longest_texts():
    worker = ModelledWorker("worker-0", token=TOKEN)
    largest = {
        **dict.fromkeys(("block_size_tokens", "window_tokens", "max_model_length_tokens"), MAX_COUNT),
        **dict.fromkeys(("epoch", "tokenizer_digest", "model_digest"), "0" * 128),
        "served_names": ["A model's folder: any name \N{LATIN SMALL LETTER U WITH DIAERESIS}", "n" * 256],
    }

    verify_hello(worker.hello(NONCE, **largest), endpoint_of(worker), NONCE)


def test_frames_before_the_hello_are_refused():
    worker = ModelledWorker("worker-0")
    stream = WorkerStream(endpoint_of(worker), PrefixIndex(), TIMING)
    stream.opening(NONCE)

    with pytest.raises(HelloRefusedError):
        stream.received(worker.load_frame(), now=0.0)


# Readiness.


def test_a_worker_is_ready_once_its_engine_reports_blocks():
    worker = ModelledWorker("worker-0")
    stream = WorkerStream(endpoint_of(worker), PrefixIndex(), TIMING)
    stream.opening(NONCE)
    reasons = [stream.unready_reason(0.0)]

    for message in worker.answer("", 0, NONCE):
        stream.received(message, 0.0)
        reasons.append(stream.unready_reason(0.0))

    assert reasons == [
        "not connected yet",
        "the engine is not ready yet",
        "the engine is not ready yet",
        "",
    ]


def test_a_draining_worker_is_not_ready():
    worker = ModelledWorker("worker-0")
    stream = connected(worker, PrefixIndex())

    worker.load = LoadReport(total_blocks=10, draining=True)
    stream.received(worker.load_frame(), 1.0)

    assert stream.unready_reason(1.0) == "draining"


def test_a_broken_stream_keeps_the_worker_ready_until_an_attempt_to_reopen_it_fails():
    worker = ModelledWorker("worker-0")
    index = PrefixIndex()
    stream = connected(worker, index)

    stream.lost("reset", now=10.0)
    within_grace = (is_ready(stream, 10.1), index.is_precise(worker.uid))
    stream.opening(NONCE)
    stream.lost("connection refused", now=10.2)

    assert within_grace == (True, True)
    assert not is_ready(stream, 10.2)
    assert not index.is_precise(worker.uid)
    assert stream.unready_reason(10.2) == "connection refused"


def test_the_grace_of_a_broken_stream_ends():
    stream = connected(ModelledWorker("worker-0"), PrefixIndex())

    stream.lost("reset", now=10.0)

    assert not is_ready(stream, 10.0 + TIMING.reopen_grace_seconds)


def test_load_of_an_earlier_engine_does_not_make_a_new_one_ready():
    worker = ModelledWorker("worker-0")
    stream = connected(worker, PrefixIndex())
    worker.restart()
    stream.lost("reset", now=1.0)

    stream.opening(NONCE)
    stream.received(worker.hello(NONCE), now=1.1)

    assert not is_ready(stream, 1.1)
    assert stream.load.total_blocks == 0


# Silence and resyncs.


@pytest.mark.parametrize(("running", "limit"), [(0, 12.0), (1, 3.0)])
def test_a_silent_worker_is_not_current_until_its_next_frame(running, limit):
    worker = ModelledWorker("worker-0")
    worker.load = LoadReport(total_blocks=10, running_sequences=running)
    index = PrefixIndex()
    stream = connected(worker, index, now=0.0)

    at_the_limit, beyond = stream.is_current(limit), stream.is_current(limit + 0.1)
    stream.received(worker.load_frame(), limit + 0.2)

    assert (at_the_limit, beyond, stream.is_current(limit + 0.2)) == (True, False, True)
    assert index.is_precise(worker.uid)


def test_a_reopened_stream_resumes_without_a_snapshot():
    worker = ModelledWorker("worker-0", replay_frames=4)
    index = PrefixIndex()
    stream = connected(worker, index)
    stream.lost("reset", now=1.0)
    for number in range(4):
        worker.change(stored=[hash_of(number)])

    reconnect(stream, worker, 1.1)

    assert index.position(worker.uid) == (worker.epoch, 4)
    assert stream.counts.snapshots == 1
    assert stream.counts.resyncs == 0


def test_a_worker_that_cannot_replay_any_more_sends_a_snapshot_which_counts_as_a_resync():
    worker = ModelledWorker("worker-0", replay_frames=4)
    index = PrefixIndex()
    stream = connected(worker, index)
    stream.lost("reset", now=1.0)
    for number in range(5):
        worker.change(stored=[hash_of(number)])

    reconnect(stream, worker, 1.1)

    assert matches(index, [hash_of(0), hash_of(4)], [worker.uid]) == {worker.uid: 2}
    assert (stream.counts.snapshots, stream.counts.resyncs) == (2, 1)


def lie(stream, worker, now):
    """The worker's digest contradicts the set."""
    stream.received(msgspec.structs.replace(worker.load_frame(), digest=ResidentDigest(count=77)), now)


def test_three_resyncs_in_a_minute_mean_load_only_until_the_quiet_period_is_over():
    worker = ModelledWorker("worker-0")
    index = PrefixIndex()
    stream = connected(worker, index)

    for now in (10.0, 20.0):
        with pytest.raises(ResyncNeededError):
            lie(stream, worker, now)
        stream.lost("resync", now)
        reconnect(stream, worker, now)
    lie(stream, worker, 30.0)

    # Its load still counts and it still gets prompts; its events do not count.
    worker.load = LoadReport(total_blocks=10, running_sequences=3)
    stream.received(worker.load_frame(), 31.0)
    assert is_ready(stream, 31.0)
    assert is_load_only(stream, 31.0)
    assert stream.load.running_sequences == 3
    assert not index.is_precise(worker.uid)
    assert index.blocks == 0
    assert (stream.counts.resyncs, stream.counts.load_only) == (3, 1)

    with pytest.raises(ResyncNeededError):
        stream.received(worker.load_frame(), 91.0)
    stream.lost("resync", 91.0)
    reconnect(stream, worker, 91.1)
    assert index.is_precise(worker.uid)
    assert not is_load_only(stream, 91.1)


def test_resyncs_that_are_far_apart_are_forgiven():
    worker = ModelledWorker("worker-0")
    index = PrefixIndex()
    stream = connected(worker, index)

    for now in (10.0, 50.0, 90.0, 130.0):
        with pytest.raises(ResyncNeededError):
            lie(stream, worker, now)
        stream.lost("resync", now)
        reconnect(stream, worker, now)

    assert index.is_precise(worker.uid)
    assert stream.counts.load_only == 0


def test_a_worker_whose_blocks_do_not_fit_is_routed_by_load_only():
    worker = ModelledWorker("worker-0")
    worker.change(stored=[hash_of(number) for number in range(9)])
    index = PrefixIndex(max_blocks=8)

    stream = connected(worker, index)

    assert is_ready(stream, 0.0)
    assert is_load_only(stream, 0.0)
    assert index.blocks == 0


def test_a_frame_of_another_epoch_closes_the_stream():
    worker = ModelledWorker("worker-0")
    stream = connected(worker, PrefixIndex())
    worker.restart()

    with pytest.raises(ContractError):
        stream.received(worker.load_frame(), 1.0)


def test_a_worker_that_stays_away_is_dropped_from_the_index():
    worker = ModelledWorker("worker-0")
    worker.change(stored=[hash_of(1)])
    index = PrefixIndex()
    stream = connected(worker, index)

    stream.lost("reset", now=10.0)
    for now in (10.1, 40.0, 71.0):
        stream.opening(NONCE)
        stream.lost("connection refused", now)

    assert index.blocks == 0


# The whole fleet over streams of bytes.

FAST = StreamTiming(
    # Longer than a busy machine's pauses, which would count as a worker's silence.
    hello_seconds=1.0,
    busy_silence_seconds=1.0,
    idle_silence_seconds=1.0,
    reopen_grace_seconds=0.5,
    first_backoff_seconds=0.002,
    longest_backoff_seconds=0.01,
)


class InMemorySource:
    """An `EventSource` whose workers live in this process; bytes are cut at random places."""

    def __init__(self, *workers):
        self.workers = {worker.uid: worker for worker in workers}
        self.queues: dict[str, asyncio.Queue] = {}
        self.down: set[str] = set()
        self.mute: set[str] = set()
        self.open_streams = 0
        self.random = random.Random(7)

    async def open(self, endpoint, epoch, after, nonce, versions):
        if endpoint.uid in self.down:
            raise StreamUnavailableError("connection refused")
        queue = self.queues[endpoint.uid] = asyncio.Queue()
        self.open_streams += 1
        try:
            if endpoint.uid in self.mute:
                await asyncio.Event().wait()
            answer = self.workers[endpoint.uid].answer(epoch, after, nonce)
            assert CONTRACT_VERSION in versions
            for chunk in self.cut(b"".join(map(encode_message, answer))):
                yield chunk
            while True:
                message = await queue.get()
                if message is None:
                    return
                for chunk in self.cut(encode_message(message)):
                    yield chunk
        finally:
            self.open_streams -= 1

    def cut(self, data):
        while data:
            size = self.random.randint(1, 80)
            yield data[:size]
            data = data[size:]

    def send(self, uid, message):
        self.queues[uid].put_nowait(message)


async def until(condition, what):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"never happened: {what}")


async def test_a_fleet_follows_its_workers_through_events_restarts_and_silence():
    workers = [ModelledWorker(f"worker-{n}", token=TOKEN, replay_frames=64) for n in range(3)]
    source = InMemorySource(*workers)
    fleet = Fleet(StaticDiscovery([endpoint_of(w) for w in workers]), source, timing=FAST)
    first = workers[0]

    def view(worker):
        return fleet.worker(worker.uid)

    def exact(worker):
        return view(worker).precise and fleet.index.position(worker.uid) == (worker.epoch, worker.seq)

    await fleet.start()
    try:
        await until(lambda: len(fleet.workers("model-a")) == 3, "all hellos")
        await until(lambda: all(v.ready and v.precise for v in fleet.workers()), "all ready")
        assert fleet.models() == ["model-a"]
        assert fleet.workers("another-model") == []

        # Events arrive.
        for number in range(40):
            source.send(first.uid, first.change(stored=[hash_of(number)]))
        await until(lambda: exact(first), "events applied")
        prompt = [hash_of(number) for number in range(50)]
        assert matches(fleet.index, prompt, [w.uid for w in workers])[first.uid] == 40

        # A gap: the lost frame is replayed.
        first.change(removed=[hash_of(0)])
        source.send(first.uid, first.change(stored=[hash_of(60)]))
        await until(lambda: exact(first), "gap replayed")
        assert matches(fleet.index, prompt, [first.uid]) == {first.uid: 0}
        assert view(first).counts.resyncs == 1

        # A restart: the old epoch is forgotten.
        source.down.add(first.uid)
        source.send(first.uid, None)
        await until(lambda: not view(first).ready, "death noticed")
        assert [v.ready for v in fleet.workers()] == [False, True, True]
        first.restart()
        source.down.clear()
        await until(lambda: exact(first) and view(first).ready, "restart followed")
        assert fleet.index.blocks == 0

        # Silence: not used, and not ready once the reopened stream is silent too.
        source.mute.add(first.uid)
        await until(lambda: not view(first).precise, "silence noticed")
        await until(lambda: not view(first).ready, "silence after reopening")
        source.mute.clear()
        await until(lambda: exact(first) and view(first).ready, "frames arrive again")
    finally:
        await fleet.stop()
    assert source.open_streams == 0


async def test_a_worker_that_leaves_the_list_is_forgotten_and_a_changed_address_is_opened_anew():
    workers = [ModelledWorker(f"worker-{n}") for n in range(2)]
    for worker in workers:
        worker.change(stored=[hash_of(1)])
    source = InMemorySource(*workers)
    gone = []
    fleet = Fleet(StaticDiscovery([]), source, timing=FAST, on_gone=gone.append)

    await fleet.reconcile(Discovered(tuple(map(endpoint_of, workers))))
    await until(lambda: fleet.index.blocks == 2, "both known")
    await fleet.reconcile(Discovered((endpoint_of(workers[1], url="http://127.0.0.1:2"),)))

    assert gone == ["worker-0"]
    assert [view.endpoint.url for view in fleet.workers()] == ["http://127.0.0.1:2"]
    assert fleet.index.blocks == 0
    await until(lambda: fleet.index.blocks == 1, "opened anew")
    await fleet.stop()
    assert source.open_streams == 0


async def test_garbage_on_the_stream_costs_a_reconnect_and_nothing_else():
    worker = ModelledWorker("worker-0")
    source = InMemorySource(worker)
    honest_cut = source.cut
    source.cut = lambda _data: iter([b"\x05\x00\x00\x00junk!"])
    fleet = Fleet(StaticDiscovery([endpoint_of(worker)]), source, timing=FAST)

    await fleet.start()
    await until(lambda: fleet.worker(worker.uid) and fleet.worker(worker.uid).counts.failed >= 3, "refusals")
    refused = fleet.worker(worker.uid)
    source.cut = honest_cut
    await until(lambda: fleet.worker(worker.uid).ready, "recovery")
    await fleet.stop()

    assert "malformed" in refused.unready_reason
    assert not refused.ready


async def test_a_report_of_more_routers_than_there_can_be_costs_a_reconnect_and_nothing_else():
    worker = ModelledWorker("worker-0")
    source = InMemorySource(worker)
    fleet = Fleet(StaticDiscovery([endpoint_of(worker)]), source, timing=FAST)
    routers = {f"router-{number}": 1 for number in range(MAX_REPORTED_ROUTERS + 1)}

    await fleet.start()
    await until(lambda: fleet.worker(worker.uid) and fleet.worker(worker.uid).ready, "readiness")
    opened = fleet.worker(worker.uid).counts.opened
    source.send(
        worker.uid, Frame(epoch=worker.epoch, seq=worker.seq, load=LoadReport(admitted_dispatches=routers))
    )
    await until(lambda: fleet.worker(worker.uid).counts.opened > opened, "another attempt")
    await until(lambda: fleet.worker(worker.uid).ready, "recovery")
    reported = fleet.worker(worker.uid).load
    await fleet.stop()

    assert reported == worker.load


async def test_a_worker_that_quotes_much_in_a_wrong_message_gives_a_reason_that_is_short():
    worker = ModelledWorker("worker-0")
    source = InMemorySource(worker)
    wrong = msgspec.msgpack.encode({"type": "\0" * 1_000_000})
    source.cut = lambda _data: iter([frame(wrong, max_bytes=len(wrong))])
    fleet = Fleet(StaticDiscovery([endpoint_of(worker)]), source, timing=FAST)

    await fleet.start()
    await until(lambda: fleet.worker(worker.uid) and fleet.worker(worker.uid).counts.failed >= 3, "refusals")
    refused = fleet.worker(worker.uid)
    await fleet.stop()

    assert "malformed" in refused.unready_reason
    assert len(refused.unready_reason) <= MAX_REASON_CHARS
