"""What of a demand is chance: how far few requests move it at a constant load.

Of k independent requests whose lengths vary as much as their mean (exponential), the sum has a relative
deviation of sqrt(2 / k). So a demand above its threshold adds a replica only where it is above by more than
that explains, or where its mean over some minutes is: a new pod takes longer to start than a moment of chance
lasts. And a shrink must leave what a day of the same load is likely to bring below that threshold, or its
highest hour would add the replica again. Where the number of requests is not known, nothing is chance.
"""

from math import sqrt
from typing import Final

import msgspec

CHANCE_DEVIATIONS: Final = 1.645
"""Standard deviations that one in twenty moments exceeds."""

PEAK_DEVIATIONS: Final = 3.4
"""Standard deviations of the highest and the lowest mean of a day."""
MEAN_REQUESTS: Final = 200
"""A mean is over so many requests, within the times below: then it is off by a tenth."""
LEAST_MEAN_SECONDS: Final = 200.0
MOST_MEAN_SECONDS: Final = 1800.0


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """Means over some minutes."""

    load_permille: float
    """Of arrivals, in 1/1000 of one replica's time."""
    tokens: float
    sequences: float
    requests: float = 0.0
    """In a window of traffic."""
    requests_per_second: float = 0.0
    seconds: float = 0.0
    """That they are over."""

    def followed(self, now: "Means", elapsed_seconds: float) -> "Means":
        """The means after another tick."""
        rate = max(self.requests_per_second, 1 / MOST_MEAN_SECONDS)
        longest = min(max(MEAN_REQUESTS / rate, LEAST_MEAN_SECONDS), MOST_MEAN_SECONDS)
        seconds = min(self.seconds + elapsed_seconds, longest)
        gain = min(1.0, elapsed_seconds / seconds) if seconds > 0 else 1.0

        def mean(known: float, new: float) -> float:
            return known + gain * (new - known)

        return Means(
            load_permille=mean(self.load_permille, now.load_permille),
            tokens=mean(self.tokens, now.tokens),
            sequences=mean(self.sequences, now.sequences),
            requests=mean(self.requests, now.requests),
            requests_per_second=mean(self.requests_per_second, now.requests_per_second),
            seconds=seconds,
        )

    @property
    def highest_ratio(self) -> float:
        """The highest mean of a day at this load, as a ratio of this one."""
        return 1 + self._peak

    @property
    def lowest_ratio(self) -> float:
        """The lowest one."""
        return max(0.0, 1 - self._peak)

    @property
    def _peak(self) -> float:
        requests = max(self.seconds * self.requests_per_second, self.requests)
        return PEAK_DEVIATIONS * deviation(requests)


def deviation(requests: float) -> float:
    """Relative standard deviation of what so many requests demand together."""
    return sqrt(2 / requests) if requests > 0 else 0.0


def certain(demand: float, requests: float) -> float:
    """What a demand of so many requests is at least, chance excluded."""
    return demand * max(0.0, 1 - CHANCE_DEVIATIONS * deviation(requests))


def lasting(demand: float, mean: float, requests: float) -> float:
    """What counts for growth: what is certain now, or has been the mean and still is."""
    return max(certain(demand, requests), min(demand, mean))


def highest_of_day(mean: float, requests: float, highest_ratio: float) -> float:
    """The highest `lasting` demand that a day is likely to bring at a load whose mean is this now.

    Args:
        mean: over some minutes; the day's may be above it.
        requests: those behind the demand of a moment.
        highest_ratio: of `Means`.
    """
    peak = 1 + PEAK_DEVIATIONS * deviation(requests * highest_ratio)
    return mean * highest_ratio * max(highest_ratio, certain(peak, requests * highest_ratio * peak))
