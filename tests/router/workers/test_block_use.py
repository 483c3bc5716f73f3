"""What a worker alone holds, and how often that was asked for lately."""

import pytest

from warmfleet_router.workers.prefix_index import NO_UNIQUE_VALUE, PrefixIndex
from warmfleet_testing.cache.filled_index import filled, swept
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of


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
