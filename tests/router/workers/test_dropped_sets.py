"""A dropped set is gone from the answers at once, and from the table when that is swept."""

import pytest

from warmfleet_router.workers.prefix_index import IndexFullError, PrefixIndex
from warmfleet_router.workers.slots import MAX_RETIRED_PER_WORKER
from warmfleet_router.workers.table_pass import SLICE_BLOCKS
from warmfleet_testing.cache.filled_index import filled, swept
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of


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
    matched = index.matches([hash_of(1)])
    slices = swept(index)

    assert matched == {}
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
    assert index.matches([hash_of(20)]) == {second.uid: 1}


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
    assert index.matches([hash_of(20)]) == {restless.uid: 1}


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
