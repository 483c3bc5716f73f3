"""Garbage collections of Python do not walk the blocks of the index."""

import gc

import pytest

from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_testing.cache.filled_index import filled
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of


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


def test_the_tables_of_the_index_are_invisible_to_garbage_collections():
    index = PrefixIndex()
    worker = ModelledWorker("worker-0", chunk_hashes=4096)
    filled(worker, index, range(5000))
    index.apply(worker.uid, worker.change(removed=[hash_of(number) for number in range(4000)]))
    index.touched([hash_of(4500)])

    assert not any(gc.is_tracked(part) for part in index._table._parts)
    assert not gc.is_tracked(index._table._shared)
