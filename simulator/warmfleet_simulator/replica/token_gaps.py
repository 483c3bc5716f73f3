"""How long sequences wait for their next token, over many steps, in bounded memory."""

import math
from collections.abc import Callable
from typing import Final

from warmfleet_simulator.step_times import PICOSECONDS

RATIO: Final = 1.01
"""From one bucket's bound to the next: a percentile is within one percent."""
_LEAST_SECONDS: Final = 1e-6
_BUCKETS: Final = 2200
"""Up to an hour."""


class TokenGaps:
    """Counts of gaps between tokens by their length; those above the last bucket count in it."""

    def __init__(self, on_gap: Callable[[float, int], None] = lambda _seconds, _count: None) -> None:
        """`on_gap(seconds, count)` is called whenever gaps are counted."""
        self._on_gap = on_gap
        self.counts = [0] * _BUCKETS
        """By bucket, the shortest first."""
        self.total = 0

    def add(self, gap_ps: int, count: int = 1) -> None:
        """Count a gap of so many picoseconds, `count` times."""
        self.counts[_bucket(gap_ps)] += count
        self.total += count
        self._on_gap(gap_ps / PICOSECONDS, count)

    def add_series(self, first_ps: int, growth_ps: int, steps: int, count: int) -> None:
        """Count `steps` gaps, each `growth_ps` longer than the one before it, `count` times."""
        last_ps = first_ps + growth_ps * (steps - 1)
        if _bucket(first_ps) == _bucket(last_ps):
            self.add(first_ps, steps * count)
            return
        for step in range(steps):
            self.add(first_ps + growth_ps * step, count)

    def merge(self, other: "TokenGaps") -> None:
        """Add the counts of `other`."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def percentile_seconds(self, percent: float) -> float | None:
        """The upper bound of the bucket below which `percent` of the gaps are; None without any."""
        if not self.total:
            return None
        rank = math.ceil(self.total * percent / 100)
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                return _LEAST_SECONDS * RATIO**bucket
        raise AssertionError("the counts add up to their total")


def _bucket(gap_ps: int) -> int:
    seconds = max(gap_ps / PICOSECONDS, _LEAST_SECONDS)
    return min(math.ceil(math.log(seconds / _LEAST_SECONDS) / _LOG_RATIO), _BUCKETS - 1)


_LOG_RATIO: Final = math.log(RATIO)
