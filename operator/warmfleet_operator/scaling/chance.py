"""What of a demand is chance: how far few requests move it at a constant load.

Of k independent requests whose lengths vary as much as their mean (exponential), the sum has a relative
deviation of sqrt(2 / k). So a demand above its threshold adds a replica only where it is above by more than
that explains, or where its mean over some minutes is: a new pod takes longer to start than a moment of chance
lasts. A demand so far above its mean that a constant load brings it no more than once a day has risen, and
counts whole. And a shrink must leave what a day of the same load is likely to bring below that threshold, or
its highest hour would add the replica again. Where the number of requests is not known, nothing is chance.

Whether a demand has risen is asked as in a control chart (Shewhart, 1931), of the square roots of counts,
whose deviation is the same at any count (Bartlett, 1936): the sum of few requests is too skewed for the
normal distribution, which would find up to 28 rises a day.
"""

from dataclasses import dataclass
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
LEAST_MEAN: Final = 1e-9
"""Without requests means fall for weeks, to numbers whose reciprocals are infinite: below this they are 0."""


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
            followed = known + gain * (new - known)
            return followed if followed >= LEAST_MEAN else 0.0

        return Means(
            load_permille=mean(self.load_permille, now.load_permille),
            tokens=mean(self.tokens, now.tokens),
            sequences=mean(self.sequences, now.sequences),
            requests=mean(self.requests, now.requests),
            requests_per_second=mean(self.requests_per_second, now.requests_per_second),
            seconds=seconds,
        )

    @property
    def observed_requests(self) -> float:
        """That they are over."""
        return max(self.seconds * self.requests_per_second, self.requests)

    @property
    def highest_ratio(self) -> float:
        """The highest mean of a day at this load, as a ratio of this one."""
        return 1 + peak(self.observed_requests)

    @property
    def lowest_ratio(self) -> float:
        """The lowest one."""
        return max(0.0, 1 - peak(self.observed_requests))

    @property
    def load_level(self) -> "Level":
        return Level(self.load_permille, self.requests, self.observed_requests)

    @property
    def tokens_level(self) -> "Level":
        return Level(self.tokens, self.sequences, self.observed_requests)

    @property
    def sequences_level(self) -> "Level":
        return Level(self.sequences, self.sequences, self.observed_requests)


@dataclass(frozen=True, slots=True)
class Level:
    """What a demand is in the mean of some minutes."""

    mean: float
    requests: float
    """Behind the demand of a moment."""
    observed_requests: float
    """That the mean is over."""

    def is_below(self, demand: float) -> bool:
        """Whether so high a demand shows that the level has risen: at a constant one it comes once a day."""
        if self.mean <= 0 or self.observed_requests <= 0:
            return False
        # In requests of the mean size: the sum of k has the variance 2 k, and its square root that of 1 / 2.
        rise = sqrt(demand * self.requests / self.mean) - sqrt(self.requests)
        return rise > PEAK_DEVIATIONS * sqrt((1 + self.requests / self.observed_requests) / 2)

    def risen(self, demand: float, requests: float) -> float:
        """What is certain of a demand of so many requests, if it shows that the level has risen; else 0."""
        return certain(demand, requests) if self.is_below(demand) else 0.0

    def is_exceeded_by(self, demand: float, requests: float) -> bool:
        """Whether a demand of so many requests is above the mean by more than chance explains mostly.

        What no request shows is above none.
        """
        return requests > 0 and certain(demand, requests) > self.mean

    def bounded(self, highest: float, requests: float) -> "Level":
        """The level if `highest` was the highest moment of late, of so many requests: it is no higher."""
        if highest >= self.mean:
            return self
        return Level(highest, self.requests * highest / self.mean, min(self.observed_requests, requests))

    @property
    def highest_of_day(self) -> float:
        """The highest `lasting` demand that a day is likely to bring.

        The day's mean may be above this one.
        """
        highest_mean = 1 + peak(self.observed_requests)
        requests = self.requests * highest_mean
        moment = 1 + peak(requests)
        return self.mean * highest_mean * max(highest_mean, certain(moment, requests * moment))


def deviation(requests: float) -> float:
    """Relative standard deviation of what so many requests demand together."""
    return sqrt(2 / requests) if requests > 0 else 0.0


def peak(requests: float) -> float:
    """Relative deviation of the highest and the lowest sum of a day."""
    return PEAK_DEVIATIONS * deviation(requests)


def certain(demand: float, requests: float) -> float:
    """What a demand of so many requests is at least, chance excluded."""
    return demand * max(0.0, 1 - CHANCE_DEVIATIONS * deviation(requests))


def lasting(demand: float, requests: float, level: Level) -> float:
    """What counts for growth: all of it after a rise; else what is certain now, or has been the mean and is.

    Args:
        demand: now.
        requests: those behind it.
        level: of this demand.
    """
    if level.is_below(demand):
        return demand
    return max(certain(demand, requests), min(demand, level.mean))
