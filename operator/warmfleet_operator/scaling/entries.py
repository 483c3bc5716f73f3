"""Numbers and their times, in memory that is bounded: the extremes of a time window, and samples.

A number that a later one exceeds can never be the highest of a window again: kept are only those that still
can, so a window of any length holds at most as many entries as there are different numbers.

Of what is learnt under load the median of three to ten samples counts, so that an odd moment changes nothing;
each for an hour at most, so that what has been mended since does not ask for replicas for ever.
"""

from statistics import median
from typing import Final

Entries = tuple[tuple[float, int], ...]
"""Time in seconds and number, oldest first. Of a window the first one is the extreme, the last one is now."""
LEAST_SAMPLES: Final = 3
"""Of fewer one unusual sample could be the median."""
MAX_SAMPLES: Final = 10
MOST_AGE_SECONDS: Final = 3600.0
"""That a sample counts."""


def with_highest(entries: Entries, now_seconds: float, number: int, window_seconds: float) -> Entries:
    """The window one tick later; its highest number is that of its first entry."""
    kept = _recent(entries, now_seconds, window_seconds)
    end = len(kept)
    while end and kept[end - 1][1] <= number:
        end -= 1
    return (*kept[:end], (now_seconds, number))


def with_lowest(entries: Entries, now_seconds: float, number: int, window_seconds: float) -> Entries:
    """The window one tick later; its lowest number is that of its first entry."""
    kept = _recent(entries, now_seconds, window_seconds)
    end = len(kept)
    while end and kept[end - 1][1] >= number:
        end -= 1
    return (*kept[:end], (now_seconds, number))


def _recent(entries: Entries, now_seconds: float, window_seconds: float) -> Entries:
    oldest = now_seconds - window_seconds
    start = 0
    while start < len(entries) and entries[start][0] < oldest:
        start += 1
    return entries[start:]


def with_sample(samples: Entries, now_seconds: float, number: int, pause_seconds: float) -> Entries:
    """The last samples with another one, if so long a pause has passed since the newest."""
    if samples and now_seconds - samples[-1][0] < pause_seconds:
        return samples
    return (*samples, (now_seconds, number))[-MAX_SAMPLES:]


def median_of(samples: Entries, now_seconds: float, age_seconds: float = MOST_AGE_SECONDS) -> int | None:
    """The median of those that are younger, and younger than an hour; None of too few."""
    oldest = now_seconds - min(age_seconds, MOST_AGE_SECONDS)
    known = [number for at_seconds, number in samples if at_seconds > oldest]
    return round(median(known)) if len(known) >= LEAST_SAMPLES else None


def not_after(entries: Entries, now_seconds: float) -> Entries:
    """Those that are not later than now: a clock may have been set back."""
    return tuple([entry for entry in entries if entry[0] <= now_seconds])
