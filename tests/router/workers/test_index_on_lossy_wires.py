"""The index against a model of the fleet: it answers exactly, or with None."""

import itertools
import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from warmfleet_contracts.cache.kv_events import MessageReader, encode_message
from warmfleet_contracts.errors import ContractError
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.workers.event_stream import ResyncNeededError, StreamTiming, WorkerStream
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_testing.cache.filled_index import swept
from warmfleet_testing.cache.prefix_matches import longest_run, matches
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
            assert self.index.matches([block]) == {uid: 1 for uid, held in trusted.items() if block in held}

    def teardown(self):
        if not hasattr(self, "wires"):
            return
        # Quiet at last, and any load-only period over: the index must hold what the workers hold.
        self.now += 1000.0
        for wire in self.wires:
            wire.send(wire.worker.load_frame())
            for _ in range(6):
                swept(self.index)  # what the last connection had to drop
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
