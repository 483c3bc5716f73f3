"""Counters of a while ago, as a time series database keeps them."""

from collections import deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Earlier(NamedTuple, Generic[T]):
    """A value and how old it is."""

    seconds: float
    value: T


class Lookback(Generic[T]):
    """Keeps a value's samples of the last `seconds`, and one that is older."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, T]] = deque()

    def add(self, now_seconds: float, value: T) -> Earlier[T]:
        """Keep `value`; return the sample of `seconds` ago, or the oldest if there is none that old."""
        self._samples.append((now_seconds, value))
        while len(self._samples) > 1 and self._samples[1][0] <= now_seconds - self._seconds:
            self._samples.popleft()
        at_seconds, earlier = self._samples[0]
        return Earlier(now_seconds - at_seconds, earlier)
