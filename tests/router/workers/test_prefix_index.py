"""What the index answers about complete sets of blocks, and which sets it trusts."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import ResidentDigest
from warmfleet_contracts.cache.resident import PositionGapError, SetMismatchError
from warmfleet_contracts.errors import ContractError
from warmfleet_router.workers.prefix_index import IndexFullError, PrefixIndex, Suspicion
from warmfleet_testing.cache.filled_index import filled
from warmfleet_testing.cache.prefix_matches import longest_run, matches
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of

UIDS = ("worker-0", "worker-1", "worker-2")
NONCE = b"n" * 16


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
