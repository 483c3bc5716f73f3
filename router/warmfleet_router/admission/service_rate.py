"""How fast a queue is served, whether it stands, and the `Retry-After` that follows from its rate.

A queue stands while each request has waited for long: a burst is served in time before that, an overload is
not (CoDel: Nichols and Jacobson, Controlling Queue Delay, 2012). How long it was never empty shows less: a
request that fits nowhere waits for minutes, while others are served at once.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 10.0
"""The rate is that of the last ten seconds: several answers, and not the fleet of a minute ago."""
SETTLED_SECONDS: Final = 1.0
"""Until requests have waited this long, the rate of the queue's previous busy period counts."""
BUCKET_SECONDS: Final = 0.25
MAX_RETRY_AFTER_SECONDS: Final = 60


@dataclass(slots=True)
class _Bucket:
    """What left the queue within `BUCKET_SECONDS`."""

    started: float
    cost: float
    least_wait_seconds: float


class ServiceRate:
    """Cost per second that left a queue, measured only while requests waited. The time is an argument."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()
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

    def served(self, cost: float, now: float, *, waited_seconds: float) -> None:
        """A request of `cost` left the queue to be served."""
        if self._buckets and now - self._buckets[-1].started < BUCKET_SECONDS:
            newest = self._buckets[-1]
            newest.cost += cost
            newest.least_wait_seconds = min(newest.least_wait_seconds, waited_seconds)
        else:
            self._buckets.append(_Bucket(now, cost, waited_seconds))
        while now - self._buckets[0].started > WINDOW_SECONDS:
            self._buckets.popleft()

    def rate(self, now: float) -> float | None:
        """Cost per second; None while nothing is known."""
        if self._since is None:
            return self._last
        elapsed = min(now - self._since, WINDOW_SECONDS)
        if elapsed < SETTLED_SECONDS:
            return self._last
        return sum(bucket.cost for bucket in self._recent(now)) / elapsed

    def stands(self, now: float, late_seconds: float) -> bool:
        """Whether all that was served in the last ten seconds had waited for longer than `late_seconds`.

        Not of a queue that began later, and not while nothing is served: then nothing is known of a wait.
        Requests of all tenants count: where one that was served in time shares the queue, it is a burst.
        """
        if self._since is None or now - self._since < WINDOW_SECONDS:
            return False
        waits = [bucket.least_wait_seconds for bucket in self._recent(now)]
        return bool(waits) and min(waits) > late_seconds

    def seconds(self, cost: float, now: float) -> float | None:
        """Time until `cost` is served, infinite if nothing is served; None while nothing is known."""
        rate = self.rate(now)
        if rate is None:
            return None
        return cost / rate if rate > 0 else math.inf

    def _recent(self, now: float) -> list[_Bucket]:
        return [bucket for bucket in self._buckets if now - bucket.started <= WINDOW_SECONDS]


def retry_after_seconds(seconds: float | None) -> int:
    """A `Retry-After` for a request that would wait `seconds`: whole, at least 1, at most a minute."""
    if seconds is None:
        return 1
    return max(1, math.ceil(min(seconds, MAX_RETRY_AFTER_SECONDS)))
