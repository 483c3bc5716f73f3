"""What dropped sets leave is swept in slices, and requests are served in between."""

import asyncio

from warmfleet_router.workers.index_sweeper import PASSES_PER_HALVING, IndexSweeper
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_router.workers.table_pass import SLICE_BLOCKS
from warmfleet_testing.cache.filled_index import filled
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of


async def test_the_event_loop_runs_between_the_slices_of_a_sweep() -> None:
    dropped = asyncio.Event()
    index = PrefixIndex(on_dropped=dropped.set)
    sweeper = IndexSweeper(index, dropped)
    await sweeper.start()
    for uid in ("worker-0", "worker-1"):
        filled(ModelledWorker(uid), index, range(2 * SLICE_BLOCKS))

    for uid in ("worker-0", "worker-1"):
        index.forget(uid)
    iterations = 0
    while len(index._table):
        await asyncio.sleep(0)
        iterations += 1
    await sweeper.stop()

    assert iterations >= 2


async def test_a_set_that_is_dropped_later_is_swept_too() -> None:
    dropped = asyncio.Event()
    index = PrefixIndex(on_dropped=dropped.set)
    sweeper = IndexSweeper(index, dropped)
    await sweeper.start()

    for _ in range(2):
        filled(ModelledWorker("worker-0"), index, range(10))
        index.forget("worker-0")
        async with asyncio.timeout(10):
            while index._slots.retired:  # noqa: ASYNC110 - no event is set by it
                await asyncio.sleep(0)

    await sweeper.stop()
    assert len(index._table) == 0


async def test_use_is_counted_and_halved_although_no_set_is_dropped() -> None:
    index = PrefixIndex()
    sweeper = IndexSweeper(index, asyncio.Event(), halving_seconds=PASSES_PER_HALVING * 0.005)
    filled(ModelledWorker("worker-0"), index, range(10))
    index.touched([hash_of(0)])
    await sweeper.start()

    seen = set()
    async with asyncio.timeout(10):
        while (value := index.unique_value("worker-0")) != (10, 0.0):
            seen.add(value.blocks)
            await asyncio.sleep(0.001)
    await sweeper.stop()

    assert seen <= {0, 10}
