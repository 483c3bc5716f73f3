"""The highest and the lowest number of a time window, in memory that does not grow with the window.

A number that a later one exceeds can never be the highest again: kept are only those that still can, so a
window of any length holds at most as many entries as there are different numbers.
"""

Entries = tuple[tuple[float, int], ...]
"""Time in seconds and number, oldest first; the first one is the extreme."""


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
