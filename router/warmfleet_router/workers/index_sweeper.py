"""Sweeps the prefix index in slices, between which the event loop runs."""

import asyncio
import contextlib
from itertools import count
from typing import Final

import structlog

from warmfleet_router.workers.block_use import HALVING_SECONDS
from warmfleet_router.workers.prefix_index import PrefixIndex

PASSES_PER_HALVING: Final = 4

_log = structlog.get_logger()


class IndexSweeper:
    """Sweeps when a set was dropped, and every `HALVING_SECONDS / PASSES_PER_HALVING` to count use."""

    def __init__(
        self, index: PrefixIndex, dropped: asyncio.Event, *, halving_seconds: float = HALVING_SECONDS
    ) -> None:
        """`dropped` is set by the index when a set was dropped."""
        self._index = index
        self._dropped = dropped
        self._pass_seconds = halving_seconds / PASSES_PER_HALVING
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin; returns at once."""
        self._tasks.append(asyncio.create_task(self._run(), name="index sweeper"))

    async def stop(self) -> None:
        """End; what is not swept stays where it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        for number in count(1):
            counts_at = now() + self._pass_seconds
            while now() < counts_at:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(counts_at):
                        await self._dropped.wait()
                await self._sweep()
            self._index.count_use(halve=number % PASSES_PER_HALVING == 0)
            await self._sweep()

    async def _sweep(self) -> None:
        self._dropped.clear()
        try:
            while self._index.sweep():  # noqa: ASYNC110 - work in slices, no waiting for a condition
                await asyncio.sleep(0)
        except Exception:  # noqa: BLE001
            # Without sweeping no worker could be indexed anew: a fault must not end the task.
            _log.exception("index not swept, the next pass tries again")
