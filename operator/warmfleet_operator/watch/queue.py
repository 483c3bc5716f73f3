"""Which deployments are to be looked at, and when. Says nothing about what changed: who works looks at all.

A key stands in the queue once, however often it is added; it is worked on by one worker at a time, and a key
that was added meanwhile is looked at again. Failures wait for 5 ms, doubled each time, up to a minute.
"""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

MIN_BACKOFF_SECONDS: Final = 0.005
MAX_BACKOFF_SECONDS: Final = 60.0
_JITTER_RATIO: Final = 0.2

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """The state: no tasks, no clock of its own. All times are seconds on one monotonic clock."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._count = 0
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}

    def __len__(self) -> int:
        """Keys that wait, due or not."""
        return len(self._due)

    @property
    def working(self) -> int:
        return len(self._working)

    def add(self, key: K, due: float) -> None:
        """Look at `key` at `due`, or earlier if it stands in the queue for earlier."""
        due = max(due, self._not_before.get(key, due))
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._push(key, due)

    def take(self, now: float) -> K | None:
        """The key that is due longest and that nobody works on; None if there is none."""
        deferred: list[tuple[float, int, K]] = []
        taken: K | None = None
        while self._order and self._order[0][0] <= now:
            entry = heapq.heappop(self._order)
            due, _, key = entry
            if self._due.get(key) != due:
                continue  # it was added again for earlier, or was taken
            if key in self._working:
                deferred.append(entry)
                continue
            del self._due[key]
            self._working.add(key)
            taken = key
            break
        for entry in deferred:
            heapq.heappush(self._order, entry)
        return taken

    def done(self, key: K) -> None:
        """What was to do for `key` is done."""
        self._working.discard(key)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def failed(self, key: K, now: float, at_least_seconds: float = 0.0) -> float:
        """Try `key` again; returns the pause in seconds.

        Adding it shortens the pause, because something changed: but not below `at_least_seconds`, for which
        the API server asked.
        """
        self._working.discard(key)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        doubled: float = MIN_BACKOFF_SECONDS * 2 ** min(failures - 1, 20)
        jitter = self._uniform(1 - _JITTER_RATIO, 1 + _JITTER_RATIO)
        pause = max(min(doubled * jitter, MAX_BACKOFF_SECONDS), at_least_seconds)
        self._not_before[key] = now + at_least_seconds
        self._due[key] = now + pause
        self._push(key, now + pause)
        return pause

    def forget(self, key: K) -> None:
        """`key` is gone: nothing waits, nothing is remembered."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def next_due(self) -> float | None:
        """When a key that nobody works on is due; None while there is none."""
        return min((due for key, due in self._due.items() if key not in self._working), default=None)

    def _push(self, key: K, due: float) -> None:
        self._count += 1
        heapq.heappush(self._order, (due, self._count, key))
        if len(self._order) > 64 + 4 * len(self._due):  # entries that were overtaken by earlier ones
            self._order = [entry for entry in self._order if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._order)


class Workers(Generic[K]):
    """Runs `handle` for every key that is due, a bounded number at once."""

    def __init__(self, handle: Callable[[K], Awaitable[None]], count: int) -> None:
        """`handle` looks at a key and says what comes of it by calling `done` or `failed` of the queue."""
        self.queue: Final[WorkQueue[K]] = WorkQueue()
        self._handle = handle
        self._count = count
        self._changed = asyncio.Event()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def add(self, key: K, after_seconds: float = 0.0) -> None:
        """Look at `key`, at once or later."""
        self.queue.add(key, self.now() + after_seconds)
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
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
