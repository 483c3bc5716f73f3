"""A whole fleet over in-memory streams of real bytes: opened, lost, and opened again."""

import asyncio
import random

import msgspec

from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ROUTERS, Frame, LoadReport, encode_message
from warmfleet_contracts.framing import frame
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.event_stream import StreamTiming
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.stream_follower import MAX_REASON_CHARS
from warmfleet_testing.cache.prefix_matches import matches
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of

TOKEN = b"the worker's token"


def endpoint_of(worker, **changes):
    fields = {"uid": worker.uid, "name": worker.uid, "url": "http://127.0.0.1:1", "token": worker.token}
    return Endpoint(**{**fields, **changes})


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


async def test_reads_that_follow_each_other_set_no_deadlines_of_their_own(monkeypatch):
    worker = ModelledWorker("worker-0", token=TOKEN, replay_frames=64)
    source = InMemorySource(worker)
    fleet = Fleet(StaticDiscovery([endpoint_of(worker)]), source, timing=FAST)
    loop, deadlines = asyncio.get_running_loop(), []
    call_at = loop.call_at

    def recorded(when, callback, *args, **options):
        deadlines.extend([when] if "ReadDeadline" in callback.__qualname__ else [])
        return call_at(when, callback, *args, **options)

    monkeypatch.setattr(loop, "call_at", recorded)
    await fleet.start()
    try:
        await until(lambda: fleet.workers() and fleet.worker(worker.uid).precise, "the hello")
        for number in range(200):
            source.send(worker.uid, worker.change(stored=[hash_of(number)]))
            await until(lambda: fleet.index.position(worker.uid) == (worker.epoch, worker.seq), "the event")
    finally:
        await fleet.stop()

    assert 1 <= len(deadlines) < 20
