"""Prompt tokens that each worker was lately asked for, and how many of them it found cached."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 300
BUCKET_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A sum over answers."""

    prompt: int = 0
    cached: int = 0

    def __add__(self, other: "PromptTokens") -> "PromptTokens":
        return PromptTokens(self.prompt + other.prompt, self.cached + other.cached)

    @property
    def hit_percent(self) -> int | None:
        """Rounded down, so that 100 means all of them; None without any."""
        return 100 * self.cached // self.prompt if self.prompt else None


class RecentTokens:
    """Sums over the last `WINDOW_SECONDS` and the bucket that has begun, by uid."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[str, dict[int, PromptTokens]] = {}

    def add(self, uid: str, *, prompt: int, cached: int) -> None:
        """A worker answered."""
        buckets, current = self._buckets.setdefault(uid, {}), self._current
        if current not in buckets:
            for old in [number for number in buckets if number < self._first]:
                del buckets[old]
        buckets[current] = buckets.get(current, PromptTokens()) + PromptTokens(prompt, cached)

    def of(self, uid: str) -> PromptTokens:
        """What it was asked for lately."""
        buckets = self._buckets.get(uid, {})
        return sum((buckets[number] for number in buckets if number >= self._first), PromptTokens())

    def forget(self, uid: str) -> None:
        """The worker is gone."""
        self._buckets.pop(uid, None)

    @property
    def _current(self) -> int:
        return int(self._now() // BUCKET_SECONDS)

    @property
    def _first(self) -> int:
        return self._current - WINDOW_SECONDS // BUCKET_SECONDS
