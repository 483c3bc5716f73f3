"""Delays between restarts of a process."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential backoff: 1, 2, 4 ... 30 seconds by default. Keep the delay, and pass it in next time."""

    first_seconds: float = 1.0
    max_seconds: float = 30.0
    stable_seconds: float = 60.0
    """A process that lived this long starts over with the first delay."""

    def next_delay_seconds(self, previous_seconds: float | None, *, lived_seconds: float) -> float:
        """Delay before the next start; `previous_seconds` is None for a process never restarted before."""
        if previous_seconds is None or lived_seconds >= self.stable_seconds:
            return self.first_seconds
        return min(previous_seconds * 2, self.max_seconds)
