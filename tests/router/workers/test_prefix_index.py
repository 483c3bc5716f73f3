"""The index against a model of the fleet: it answers exactly, or with None."""

import gc
import itertools
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from warmfleet_contracts.cache.kv_events import MessageReader, ResidentDigest, encode_message
from warmfleet_contracts.cache.resident import PositionGapError, SetMismatchError
from warmfleet_contracts.errors import ContractError
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.workers.event_stream import ResyncNeededError, StreamTiming, WorkerStream
from warmfleet_router.workers.prefix_index import NO_UNIQUE_VALUE, IndexFullError, PrefixIndex, Suspicion
from warmfleet_router.workers.slots import MAX_RETIRED_PER_WORKER
from warmfleet_router.workers.table_pass import SLICE_BLOCKS
from warmfleet_testing.cache.prefix_matches import matches
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of

TIMING = StreamTiming()
UIDS = ("worker-0", "worker-1", "worker-2")
NONCE = b"n" * 16
BLOCKS = 24
SETTINGS = settings(
    max_examples=120,
    stateful_step_count=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def longest_run(prompt, held):
    """Oracle of one match: the definition, spelled out."""
    run = 0
    while run < len(prompt) and prompt[run] in held:
        run += 1
    return run


def filled(worker, index, numbers):
    """Connect `worker` to `index` and store the blocks `numbers`."""
    index.connected(worker.uid, worker.epoch)
    for frame in worker.snapshot():
        index.apply(worker.uid, frame)
    index.apply(worker.uid, worker.change(stored=[hash_of(number) for number in numbers]))


def swept(index):
    """Slices until nothing is left to sweep."""
    slices = 0
    while index.sweep():
        slices += 1
    return slices


class Wire:
    """One connection from a worker to the router; it loses, repeats and damages frames as the test orders."""

    def __init__(self, worker, stream, index):
        self.worker = worker
        self.index = index
        self.stream = stream
        self.reader = None
        self.queued: list[bytes] = []

    def connect(self):
        epoch, after = self.stream.opening(NONCE)
        self.reader = MessageReader()
        self.queued = [encode_message(message) for message in self.worker.answer(epoch, after, NONCE)]

    def disconnect(self, reason, now):
        if self.reader is not None:
            self.reader = None
            self.queued = []
            self.stream.lost(reason, now)

    def send(self, frame):
        if self.reader is not None:
            self.queued.append(encode_message(frame))

    def deliver(self, frames, cut, now):
        """Hand over the first `frames` queued frames in pieces of `cut` bytes; reconnect on a fault."""
        data = b"".join(self.queued[:frames])
        del self.queued[:frames]
        for start in range(0, len(data), cut):
            try:
                for message in self.reader.feed(data[start : start + cut]):
                    self.stream.received(message, now)
            except ContractError as error:
                # A set known to be broken answers nothing, not even by its old position.
                if isinstance(error, ResyncNeededError) and self.index.is_precise(self.worker.uid):
                    raise AssertionError("a broken set is still trusted") from error
                self.disconnect(str(error), now)
                return


steps_taken = itertools.count()


class FleetOnALossyWire(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.now = 1000.0
        self.index = self.new_index()
        self.workers = [ModelledWorker(uid) for uid in UIDS]
        self.streams = [
            WorkerStream(Endpoint(uid=uid, name=uid, url="http://127.0.0.1:1"), self.index, TIMING)
            for uid in UIDS
        ]
        self.wires = [Wire(w, s, self.index) for w, s in zip(self.workers, self.streams, strict=True)]
        for wire in self.wires:
            wire.connect()

    def new_index(self):
        return PrefixIndex()

    which = st.integers(0, len(UIDS) - 1)

    # Half of the time the wire is quick: what happened is delivered at once, after a reconnect if need be.
    quick = st.booleans()

    def send(self, which, frame, quick):
        wire = self.wires[which]
        wire.send(frame)
        if quick:
            if wire.reader is None:
                wire.connect()
            wire.deliver(len(wire.queued), 1 << 20, self.now)

    @rule(which=which, numbers=st.sets(st.integers(0, BLOCKS - 1), min_size=1, max_size=8), quick=quick)
    def store(self, which, numbers, quick):
        worker = self.workers[which]
        new = [hash_of(number) for number in sorted(numbers) if hash_of(number) not in worker.held]
        if new:
            self.send(which, worker.change(stored=new), quick)

    @rule(which=which, seed=st.integers(0, 9), count=st.integers(1, 4), quick=quick)
    def evict(self, which, seed, count, quick):
        worker = self.workers[which]
        leaving = random.Random(seed).sample(sorted(worker.held), min(count, len(worker.held)))
        if leaving:
            self.send(which, worker.change(removed=leaving), quick)

    @rule(which=which, number=st.integers(0, BLOCKS - 1), quick=quick)
    def clear(self, which, number, quick):
        self.send(which, self.workers[which].change(cleared=True, stored=[hash_of(number)]), quick)

    @rule(which=which, quick=quick)
    def report_load(self, which, quick):
        self.send(which, self.workers[which].load_frame(), quick)

    @rule(which=which, frames=st.integers(1, 6), cut=st.integers(1, 64))
    def deliver(self, which, frames, cut):
        if self.wires[which].reader is not None:
            self.wires[which].deliver(frames, cut, self.now)

    @rule(which=which, number=st.integers(0, BLOCKS - 1))
    def miss(self, which, number):
        self.workers[which].change(cleared=True, stored=[hash_of(number)])

    @rule(which=which, place=st.integers(1, 8))
    def lose(self, which, place):
        if place < len(self.wires[which].queued):
            del self.wires[which].queued[place]

    @rule(which=which, place=st.integers(1, 8))
    def repeat(self, which, place):
        queued = self.wires[which].queued
        if place < len(queued):
            queued.insert(place, queued[place])

    @rule(which=which, number=st.integers(0, BLOCKS - 1), quick=quick)
    def damage(self, which, number, quick):
        # A frame with another change than the real one, under the digest of what happened.
        worker = self.workers[which]
        if hash_of(number) not in worker.held and self.wires[which].reader is not None:
            frame = worker.change(stored=[hash_of(number)])
            self.send(which, msgspec.structs.replace(frame, stored=[hash_of(number + BLOCKS)]), quick)

    @rule(which=which)
    def break_off(self, which):
        self.wires[which].disconnect("reset", self.now)

    @rule(which=which)
    def connect(self, which):
        if self.wires[which].reader is None:
            self.wires[which].connect()

    @rule(which=which)
    def restart(self, which):
        self.workers[which].restart()
        self.wires[which].disconnect("the worker died", self.now)

    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0, 20.0]))
    def wait(self, seconds):
        self.now += seconds
        for stream in self.streams:
            if not stream.is_current(self.now):
                stream.silent()

    @invariant()
    def answers_are_exact_or_absent(self):
        step = next(steps_taken)
        trusted = {}
        for worker, stream in zip(self.workers, self.streams, strict=True):
            if not self.index.is_precise(worker.uid):
                continue
            epoch, seq = self.index.position(worker.uid)
            assert epoch == stream.hello.epoch
            trusted[worker.uid] = worker.history[epoch, seq]
        every = [hash_of(number) for number in range(2 * BLOCKS)]
        for uid in UIDS:
            held = {block for block in every if self.index.holds(uid, block)}
            assert held == trusted.get(uid, frozenset())
        prompts = (every[:BLOCKS], every[BLOCKS:], random.Random(step).sample(every, 12))
        for prompt in prompts:
            expected = {uid: longest_run(prompt, held) for uid, held in trusted.items()}
            assert matches(self.index, prompt, [*UIDS, "stranger"]) == expected
            assert self.index.matches(prompt) == {uid: run for uid, run in expected.items() if run}
        for block in every[: 2 * BLOCKS : 5]:
            assert set(self.index.holders(block)) == {uid for uid, held in trusted.items() if block in held}

    def teardown(self):
        if not hasattr(self, "wires"):
            return
        swept(self.index)
        # Quiet at last, and any load-only period over: the index must hold what the workers hold.
        self.now += 1000.0
        for wire in self.wires:
            wire.send(wire.worker.load_frame())
            for _ in range(6):
                if wire.reader is None:
                    wire.connect()
                wire.deliver(len(wire.queued), 1 << 20, self.now)
        for worker in self.workers:
            assert self.index.is_precise(worker.uid)
            assert self.index.position(worker.uid) == (worker.epoch, worker.seq)
            held = {hash_of(n) for n in range(2 * BLOCKS) if self.index.holds(worker.uid, hash_of(n))}
            assert held == worker.held
        assert self.index.blocks == sum(len(worker.held) for worker in self.workers)
        for uid in UIDS:
            self.index.forget(uid)
        assert self.index.blocks == 0


class FleetSweptInSlices(FleetOnALossyWire):
    """Sets are dropped and stored anew while the table is swept, in any order."""

    def new_index(self):
        return PrefixIndex(on_dropped=lambda: None)

    @rule(slices=st.sampled_from([1, 40, 300]))
    def sweep(self, slices):
        for _ in range(slices):
            self.index.sweep()

    @rule(halve=st.booleans())
    def count(self, halve):
        self.index.count_use(halve=halve)

    @rule(numbers=st.sets(st.integers(0, BLOCKS - 1)))
    def touch(self, numbers):
        self.index.touched([hash_of(number) for number in numbers])


@pytest.mark.parametrize("fleet", [FleetOnALossyWire, FleetSweptInSlices])
def test_the_index_answers_exactly_or_not_at_all_on_any_wire(fleet):
    before = next(steps_taken)

    run_state_machine_as_test(fleet, settings=SETTINGS)

    assert next(steps_taken) - before >= 2000


@settings(max_examples=60)
@given(
    holdings=st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=12),
    prompt=st.lists(st.integers(0, 40), max_size=40),
)
def test_a_match_is_the_longest_run_from_the_first_block_for_every_worker(holdings, prompt):
    index = PrefixIndex()
    workers = [ModelledWorker(f"worker-{number}") for number in range(len(holdings))]
    for worker, numbers in zip(workers, holdings, strict=True):
        filled(worker, index, numbers)

    hashes = [hash_of(number) for number in prompt]
    matched = matches(index, hashes, [worker.uid for worker in workers])

    assert matched == {worker.uid: longest_run(hashes, worker.held) for worker in workers}


def test_only_the_given_workers_are_matched():
    index = PrefixIndex()
    for uid in UIDS:
        filled(ModelledWorker(uid), index, range(4))

    matched = matches(index, [hash_of(0), hash_of(1), hash_of(9)], ["worker-1"])

    assert matched == {"worker-1": 2}


def test_a_new_epoch_drops_the_old_set_before_any_frame_of_the_new_one():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0")
    filled(worker, index, range(8))

    worker.restart()
    index.connected(worker.uid, worker.epoch)

    assert not index.is_precise(worker.uid)
    assert index.position(worker.uid) is None
    assert index.blocks == 0


def test_a_gap_keeps_the_set_for_a_replay_but_not_for_decisions():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0", replay_frames=8)
    filled(worker, index, range(8))

    missed = worker.change(removed=[hash_of(0)])
    with pytest.raises(PositionGapError):
        index.apply(worker.uid, worker.change(stored=[hash_of(9)]))

    assert matches(index, [hash_of(0)], [worker.uid]) == {}
    assert index.suspicion(worker.uid) is Suspicion.GAP
    # The worker replays from the old position: no snapshot needed.
    assert index.position(worker.uid) == (worker.epoch, missed.seq - 1)
    index.connected(worker.uid, worker.epoch)
    for frame in worker.answer(worker.epoch, missed.seq - 1, NONCE)[1:]:
        index.apply(worker.uid, frame)
    assert matches(index, [hash_of(1), hash_of(9)], [worker.uid]) == {worker.uid: 2}


def test_a_digest_mismatch_is_cured_by_a_snapshot_only():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0")
    filled(worker, index, range(8))

    with pytest.raises(SetMismatchError):
        index.apply(worker.uid, msgspec.structs.replace(worker.load_frame(), digest=ResidentDigest(count=3)))

    assert index.position(worker.uid) is None
    with pytest.raises(ContractError):
        index.apply(worker.uid, worker.load_frame())
    for frame in worker.snapshot():
        assert not index.is_precise(worker.uid)
        index.apply(worker.uid, frame)
    assert index.is_precise(worker.uid)


def test_the_next_frame_in_sequence_ends_a_suspicion_of_silence():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0")
    filled(worker, index, range(2))

    index.suspect(worker.uid, Suspicion.SILENT)
    silent = index.is_precise(worker.uid)
    index.apply(worker.uid, worker.load_frame())

    assert not silent
    assert index.is_precise(worker.uid)


def test_a_torn_snapshot_never_becomes_a_live_set():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0", chunk_hashes=2)
    worker.change(stored=[hash_of(number) for number in range(6)])
    chunks = worker.snapshot()
    index.connected(worker.uid, worker.epoch)

    index.apply(worker.uid, chunks[0])
    with pytest.raises(ContractError):
        index.apply(worker.uid, chunks[2])

    assert not index.is_precise(worker.uid)
    assert index.blocks == 0


def test_the_index_never_holds_more_blocks_than_its_bound():
    index = PrefixIndex(max_blocks=10)
    first, second = ModelledWorker("worker-0"), ModelledWorker("worker-1")
    filled(first, index, range(8))
    second.change(stored=[hash_of(number) for number in range(8)])
    index.connected(second.uid, second.epoch)

    with pytest.raises(IndexFullError):
        index.apply(second.uid, second.snapshot()[0])
    with pytest.raises(IndexFullError):
        index.apply(first.uid, first.change(stored=[hash_of(number) for number in range(8, 12)]))

    assert not index.is_precise(second.uid)
    assert not index.is_precise(first.uid)
    assert index.blocks <= 10


def test_a_hundred_workers_are_each_matched_as_far_as_they_hold_the_prompt():
    index = PrefixIndex()
    prompt = [hash_of(number) for number in range(125)]
    uids = [f"worker-{number}" for number in range(100)]
    for number, uid in enumerate(uids):
        filled(ModelledWorker(uid), index, range(number))

    matched = matches(index, prompt, uids)

    assert matched == {uid: number for number, uid in enumerate(uids)}


def hashes_that_a_collection_walks(prompt):
    """Of `prompt`, those in containers that the next full garbage collection would visit."""
    wanted = set(prompt)
    containers = [one for one in gc.get_objects() if type(one) in (set, dict, list)]
    return {
        entry
        for container in containers
        if container is not prompt and container is not wanted
        for entry in list(container)
        if type(entry) is bytes and entry in wanted
    }


@pytest.mark.parametrize("start", ["snapshot", "live frames", "cleared"])
def test_a_full_collection_walks_no_block_of_the_index(start):
    index = PrefixIndex()
    worker = ModelledWorker("worker-0", chunk_hashes=100)
    prompt = [hash_of(number) for number in range(1000, 1300)]
    if start == "snapshot":
        worker.change(stored=prompt)
        filled(worker, index, [])
    else:
        filled(worker, index, range(3))
        index.apply(worker.uid, worker.change(stored=prompt, cleared=start == "cleared"))
    assert index.matched_blocks(worker.uid, prompt) == len(prompt)
    del worker

    assert hashes_that_a_collection_walks(prompt) == set()


def replaced(index, worker):
    worker.seq += 1
    for frame in worker.snapshot():
        index.apply(worker.uid, frame)


def restarted(index, worker):
    worker.restart()
    index.connected(worker.uid, worker.epoch)


def abandoned(index, worker):
    index.forget(worker.uid)
    index.connected(worker.uid, worker.epoch)
    index.apply(worker.uid, worker.snapshot()[0])
    index.connected(worker.uid, worker.epoch)


@pytest.mark.parametrize(
    "drop",
    [
        lambda index, worker: index.forget(worker.uid),
        restarted,
        replaced,
        abandoned,
        lambda index, worker: index.apply(worker.uid, worker.change(cleared=True)),
    ],
    ids=["forgotten", "another epoch", "replaced by a snapshot", "snapshot abandoned", "cleared"],
)
def test_a_set_that_is_dropped_leaves_the_table_when_it_is_swept(drop):
    dropped = []
    index = PrefixIndex(on_dropped=lambda: dropped.append(None))
    worker, other = ModelledWorker("worker-0"), ModelledWorker("worker-1")
    filled(worker, index, range(7))
    filled(other, index, range(3))

    drop(index, worker)
    is_announced = bool(dropped)
    swept(index)

    assert is_announced
    kept = {*other.held, *(worker.held if index.is_precise(worker.uid) else ())}
    assert {hash_of(number) for number in range(7) if index._table.entry(hash_of(number))} == kept
    assert index._slots.retired == 0


def test_a_large_set_is_swept_in_slices_and_is_gone_from_the_answers_at_once():
    index = PrefixIndex(on_dropped=lambda: None)
    worker = ModelledWorker("worker-0", chunk_hashes=4096)
    filled(worker, index, range(3 * SLICE_BLOCKS))

    index.forget(worker.uid)
    holders = index.holders(hash_of(1))
    slices = swept(index)

    assert holders == []
    assert slices >= 3
    assert len(index._table) == 0


def test_a_slot_is_not_taken_again_before_it_is_swept():
    index = PrefixIndex(on_dropped=lambda: None)
    first, second = ModelledWorker("worker-0"), ModelledWorker("worker-1")
    filled(first, index, range(8))

    index.forget(first.uid)
    filled(second, index, range(20, 22))

    assert index.matches([hash_of(0)]) == {}
    assert not index.holds(second.uid, hash_of(0))
    assert index.holders(hash_of(20)) == [second.uid]


def test_a_worker_that_drops_its_sets_faster_than_they_are_swept_is_refused_and_the_others_are_not():
    index = PrefixIndex(on_dropped=lambda: None)
    restless, steady = ModelledWorker("worker-0"), ModelledWorker("worker-1")
    filled(restless, index, range(4))

    with pytest.raises(IndexFullError):
        for number in range(2 * MAX_RETIRED_PER_WORKER):
            index.apply(restless.uid, restless.change(cleared=True, stored=[hash_of(number)]))
    filled(steady, index, range(4))

    assert not index.is_precise(restless.uid)
    assert index.matches([hash_of(0)]) == {steady.uid: 1}
    swept(index)
    filled(restless, index, range(20, 24))
    assert index.holders(hash_of(20)) == [restless.uid]


def test_sets_that_are_dropped_and_not_swept_hold_no_more_than_the_bound_again():
    index = PrefixIndex(max_blocks=10, on_dropped=lambda: None)
    for number in range(2):
        gone = ModelledWorker(f"gone-{number}")
        filled(gone, index, range(number * 8, number * 8 + 8))
        index.forget(gone.uid)
    worker = ModelledWorker("worker-0")
    index.connected(worker.uid, worker.epoch)

    with pytest.raises(IndexFullError):
        index.apply(worker.uid, worker.snapshot()[0])

    swept(index)
    filled(worker, index, range(8))
    assert index.is_precise(worker.uid)


def test_the_tables_of_the_index_are_invisible_to_garbage_collections():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0", chunk_hashes=4096)
    filled(worker, index, range(5000))
    index.apply(worker.uid, worker.change(removed=[hash_of(number) for number in range(4000)]))
    index.touched([hash_of(4500)])

    assert not any(gc.is_tracked(part) for part in index._table._parts)
    assert not gc.is_tracked(index._table._shared)


def test_what_a_worker_alone_holds_is_counted_with_how_often_it_was_asked_for():
    index = PrefixIndex()
    first, second = ModelledWorker("worker-0"), ModelledWorker("worker-1")
    filled(first, index, range(10))
    filled(second, index, range(4))

    for _ in range(3):
        index.touched([hash_of(number) for number in range(6)])
    index.count_use(halve=False)
    before = index.unique_value(first.uid)
    swept(index)

    assert before == NO_UNIQUE_VALUE
    assert index.unique_value(first.uid).blocks == 6
    # Blocks 4 and 5, three uses each as four bits count them, in a halving time and a half.
    assert index.unique_value(first.uid).reuses_per_second == pytest.approx(2 * 3 / 180, abs=2 * 4 / 180)
    assert index.unique_value(first.uid).reuses_per_second > 0
    assert index.unique_value(second.uid) == NO_UNIQUE_VALUE
    assert index.unique_value("stranger") == NO_UNIQUE_VALUE


def test_a_use_is_forgotten_with_the_halvings():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0")
    filled(worker, index, range(4))
    index.touched([hash_of(0)])

    for _ in range(20):
        index.count_use(halve=True)
        swept(index)

    assert index.unique_value(worker.uid) == (4, 0.0)


def test_blocks_that_no_worker_holds_count_no_use():
    index = PrefixIndex()

    index.touched([hash_of(0)])

    assert len(index._table) == 0
