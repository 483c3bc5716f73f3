"""The queue of keys to reconcile. It holds no changes: a reconciliation reads the whole state.

A key is in the queue at most once and is processed by one task at a time; a key that is added while it is
processed is processed again. The backoff after a failure starts at 5 ms and doubles up to a minute.
"""

import heapq
import random
from collections.abc import Callable
from typing import Final, Generic, TypeVar

MIN_BACKOFF_SECONDS: Final = 0.005
MAX_BACKOFF_SECONDS: Final = 60.0
_JITTER_RATIO: Final = 0.2

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """The state of the queue, without tasks and without a clock. Times are seconds on one monotonic clock.

    queue.add(key, due=now)
    key = queue.take(now)  # None if no key is due
    queue.done(key)  # or queue.failed(key, now), which returns the backoff
    """

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._count = 0
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}

    def __len__(self) -> int:
        """Number of keys in the queue, due or not."""
        return len(self._due)

    @property
    def working(self) -> int:
        """Number of keys that are being processed."""
        return len(self._working)

    def add(self, key: K, due: float) -> None:
        """Process `key` at `due`, or earlier if it is in the queue with an earlier time."""
        due = max(due, self._not_before.get(key, due))
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._push(key, due)

    def take(self, now: float) -> K | None:
        """Take the key with the earliest due time that is not being processed; None if none is due."""
        deferred: list[tuple[float, int, K]] = []
        taken: K | None = None
        while self._order and self._order[0][0] <= now:
            entry = heapq.heappop(self._order)
            due, _, key = entry
            if self._due.get(key) != due:
                continue  # superseded by an earlier time, or taken
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
        """`key` was processed."""
        self._working.discard(key)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def failed(self, key: K, now: float, at_least_seconds: float = 0.0) -> float:
        """Process `key` again after a backoff; returns the backoff in seconds.

        A later `add` shortens the backoff, because something changed, but not below `at_least_seconds`, which
        the API server asked for.
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

    def next_due(self) -> float | None:
        """The earliest due time of the keys that are not being processed; None if there are none."""
        return min((due for key, due in self._due.items() if key not in self._working), default=None)

    def _push(self, key: K, due: float) -> None:
        self._count += 1
        heapq.heappush(self._order, (due, self._count, key))
        if len(self._order) > 64 + 4 * len(self._due):  # superseded entries
            self._order = [entry for entry in self._order if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._order)
