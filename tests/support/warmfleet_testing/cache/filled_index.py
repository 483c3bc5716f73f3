"""A prefix index that holds what modelled workers stored."""

from collections.abc import Iterable

from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of


def filled(worker: ModelledWorker, index: PrefixIndex, numbers: Iterable[int]) -> None:
    """Connect `worker` to `index` and store the blocks `numbers`."""
    index.connected(worker.uid, worker.epoch)
    for frame in worker.snapshot():
        index.apply(worker.uid, frame)
    index.apply(worker.uid, worker.change(stored=[hash_of(number) for number in numbers]))


def swept(index: PrefixIndex) -> int:
    """Sweep until nothing is left; the slices after which there was more to do."""
    slices = 0
    while index.sweep():
        slices += 1
    return slices
