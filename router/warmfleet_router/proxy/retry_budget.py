"""Bounds retries to a share of the recent requests.

Without it a fleet that dies under its load is hit up to three times as hard. The window is long enough that
the death of one worker among two is covered as long as answers take less than a quarter of a minute, and the
lasting rate stays at the share (Envoy's retry budget, counted over time instead of over what is in flight).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetSettings:
    """`floor_retries` + `ratio` * requests, per window."""

    ratio: float = 0.2
    floor_retries: int = 32
    """Always granted, so that a quiet fleet retries too."""
    window_seconds: int = 60


@dataclass(slots=True)
class _Second:
    number: int
    requests: int = 0
    retries: int = 0


class RetryBudget:
    """Counts requests and retries per second; holds `window_seconds` of them."""

    def __init__(
        self,
        settings: RetryBudgetSettings,
        now: Callable[[], float],
        *,
        on_refused: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_refused` is called for each retry that the budget does not have."""
        self._settings = settings
        self._now = now
        self._on_refused = on_refused
        self._seconds: deque[_Second] = deque()
        self._requests = 0
        self._retries = 0

    def request(self) -> None:
        """A client's request was dispatched for the first time."""
        self._present().requests += 1
        self._requests += 1

    def take(self) -> bool:
        """Whether the budget has one more retry; if so, it is counted."""
        present = self._present()
        if self._retries + 1 > self._settings.floor_retries + self._settings.ratio * self._requests:
            self._on_refused()
            return False
        present.retries += 1
        self._retries += 1
        return True

    def _present(self) -> _Second:
        number = int(self._now())
        while self._seconds and self._seconds[0].number <= number - self._settings.window_seconds:
            gone = self._seconds.popleft()
            self._requests -= gone.requests
            self._retries -= gone.retries
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_Second(number))
        return self._seconds[-1]
