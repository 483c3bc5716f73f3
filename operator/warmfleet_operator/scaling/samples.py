"""What was learnt under load: the median of a few samples, so that an odd moment changes nothing.

A sample is of the time in which traffic is measured, so there is at most one per `TRAFFIC_SECONDS`. It counts
for an hour at most: what has been mended since does not ask for replicas for ever.
"""

from statistics import median
from typing import Final

from warmfleet_operator.scaling.signals import TRAFFIC_SECONDS
from warmfleet_operator.scaling.windows import Entries

LEAST_SAMPLES: Final = 3
"""Of fewer one unusual sample could be the median."""
MAX_SAMPLES: Final = 10
MOST_AGE_SECONDS: Final = 3600.0


def is_due(samples: Entries, now_seconds: float) -> bool:
    """Whether there may be another sample."""
    return not samples or now_seconds - samples[-1][0] >= TRAFFIC_SECONDS


def with_sample(samples: Entries, now_seconds: float, number: int) -> Entries:
    """The last ones, with another one that `is_due`."""
    return (*samples, (now_seconds, number))[-MAX_SAMPLES:]


def median_of(samples: Entries, now_seconds: float, age_seconds: float = MOST_AGE_SECONDS) -> int | None:
    """The median of those that are younger, and younger than an hour; None of too few."""
    oldest = now_seconds - min(age_seconds, MOST_AGE_SECONDS)
    known = [number for at_seconds, number in samples if at_seconds > oldest]
    return round(median(known)) if len(known) >= LEAST_SAMPLES else None


def not_after(samples: Entries, now_seconds: float) -> Entries:
    """Samples that are not later than now: a clock may have been set back."""
    return tuple([sample for sample in samples if sample[0] <= now_seconds])
