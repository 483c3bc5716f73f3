"""Processes the keys of a work queue, a bounded number at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from warmfleet_operator.watch.queue import WorkQueue

K = TypeVar("K")


class KeyProcessor(Generic[K]):
    """Runs `handle` for every key that is due, `count` keys at once. Runs until it is cancelled.

    processor = KeyProcessor(handle, count=4)
    processor.add(key)
    await processor.run()
    """

    def __init__(self, handle: Callable[[K], Awaitable[None]], count: int) -> None:
        """`handle` processes a key and reports the result to `queue` by `done` or `failed`."""
        self.queue: Final[WorkQueue[K]] = WorkQueue()
        self._handle = handle
        self._count = count
        self._changed = asyncio.Event()

    def now(self) -> float:
        """Seconds on the clock of the queue."""
        return asyncio.get_running_loop().time()

    def add(self, key: K, after_seconds: float = 0.0) -> None:
        """Process `key` after this many seconds."""
        self.queue.add(key, self.now() + after_seconds)
        self._changed.set()

    async def run(self) -> None:
        """Process keys until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                while self.queue.working < self._count and (key := self.queue.take(self.now())) is not None:
                    tasks.create_task(self._work(key))
                due = self.queue.next_due() if self.queue.working < self._count else None
                timeout = None if due is None else max(0.0, due - self.now())
                try:
                    await asyncio.wait_for(self._changed.wait(), timeout)
                except TimeoutError:
                    continue

    async def _work(self, key: K) -> None:
        try:
            await self._handle(key)
        finally:
            self._changed.set()
