"""Statistics over several measurements, and the targets that they are compared with."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several runs: its mean, and the lowest and highest run."""

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """`values` holds one figure per run; without any, all three are not-a-number."""
        if not values:
            return cls(mean=math.nan, low=math.nan, high=math.nan)
        return cls(mean=statistics.fmean(values), low=min(values), high=max(values))


def mean(values: Sequence[float]) -> float:
    """The mean; not-a-number for no values, because zero would look like a good latency."""
    return statistics.fmean(values) if values else math.nan


def median(values: Sequence[float]) -> float:
    """The median; not-a-number for no values."""
    return statistics.median(values) if values else math.nan


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        return math.nan
    ordered = sorted(values)
    rank = max(math.ceil(percent / 100 * len(ordered)), 1)
    return ordered[rank - 1]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that a benchmark must reach. `at_least` False means that it must not exceed `required`."""

    name: str
    measured: float
    required: float
    at_least: bool = True
    unit: str = ""

    @property
    def reached(self) -> bool:
        """False for a figure that could not be measured."""
        return self.measured >= self.required if self.at_least else self.measured <= self.required

    def verdict(self) -> str:
        """One line: the measured and the required figure, and by how much it was missed."""
        word = "at least" if self.at_least else "at most"
        line = (
            f"{self.name}: {_short(self.measured)}{self.unit} ({word} {_short(self.required)}{self.unit}"
            f" asked): {'reached' if self.reached else 'missed'}"
        )
        if self.reached:
            return line
        difference = abs(self.measured - self.required)
        # What the figures above do not show is not nothing.
        by = f"{difference:.1g}" if 0 < difference < 0.005 else _short(difference)
        return f"{line} by {by}{self.unit}"


def _short(value: float) -> str:
    """Two decimals at most; a count has none."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
