"""How fast a queue is served, and the `Retry-After` that follows from it."""

import math
from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 10.0
"""The rate is that of the last ten seconds: several answers, and not the fleet of a minute ago."""
SETTLED_SECONDS: Final = 1.0
"""Until requests have waited this long, the rate of the queue's previous busy period counts."""
BUCKET_SECONDS: Final = 0.25
MAX_RETRY_AFTER_SECONDS: Final = 60


class ServiceRate:
    """Cost per second that left a queue, measured only while requests waited. The time is an argument."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, float]] = deque()
        self._since: float | None = None
        self._last: float | None = None

    def filled(self, now: float) -> None:
        """Requests wait from now on. Idempotent."""
        if self._since is None:
            self._since = now
            self._buckets.clear()

    def emptied(self, now: float) -> None:
        """No request waits any more. Idempotent."""
        self._last = self.rate(now)
        self._since = None

    def served(self, cost: float, now: float) -> None:
        """A request of `cost` left the queue to be served."""
        if self._buckets and now - self._buckets[-1][0] < BUCKET_SECONDS:
            started, before = self._buckets[-1]
            self._buckets[-1] = (started, before + cost)
        else:
            self._buckets.append((now, cost))
        while now - self._buckets[0][0] > WINDOW_SECONDS:
            self._buckets.popleft()

    def rate(self, now: float) -> float | None:
        """Cost per second; None while nothing is known."""
        if self._since is None:
            return self._last
        elapsed = min(now - self._since, WINDOW_SECONDS)
        if elapsed < SETTLED_SECONDS:
            return self._last
        recent = (cost for started, cost in self._buckets if now - started <= WINDOW_SECONDS)
        return sum(recent) / elapsed

    def seconds(self, cost: float, now: float) -> float | None:
        """Time until `cost` is served, infinite if nothing is served; None while nothing is known."""
        rate = self.rate(now)
        if rate is None:
            return None
        return cost / rate if rate > 0 else math.inf


def retry_after_seconds(seconds: float | None) -> int:
    """A `Retry-After` for a request that would wait `seconds`: whole, at least 1, at most a minute."""
    if seconds is None:
        return 1
    return max(1, math.ceil(min(seconds, MAX_RETRY_AFTER_SECONDS)))
