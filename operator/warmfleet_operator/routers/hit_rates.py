"""Prefix cache hit rates of the last minutes, from the routers' counters."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from warmfleet_operator.routers.fleet import Tokens

WINDOW_SECONDS: Final = 300.0
MAX_MODELS: Final = 4096


class HitRates:
    """Per model name: prompt tokens within the window, and how many of them were cached.

    Counters grow until a router restarts, and then start at 0 again; such a step is left out.
    """

    def __init__(self) -> None:
        self._last: dict[str, Tokens] = {}
        self._recent: dict[str, deque[tuple[float, int, int]]] = {}
        self._percent: dict[str, tuple[int, int]] = {}
        self._has_baseline = False

    def add(self, tokens: Mapping[str, Tokens], now_seconds: float) -> None:
        """Add the current counters, summed over all routers."""
        for model, now in list(tokens.items())[:MAX_MODELS]:
            # The first counters may cover days; a model that appears later starts at 0.
            before = self._last.get(model, Tokens() if self._has_baseline else now)
            self._last[model] = now
            prompt, cached = now.prompt - before.prompt, now.cached - before.cached
            recent = self._recent.setdefault(model, deque())
            if prompt > 0 and 0 <= cached <= prompt:  # counters fall when a router leaves or restarts
                recent.append((now_seconds, prompt, cached))
            while recent and recent[0][0] < now_seconds - WINDOW_SECONDS:
                recent.popleft()
            if recent:
                self._percent[model] = (sum(item[1] for item in recent), sum(item[2] for item in recent))
        self._has_baseline = True
        for model in self._last.keys() - tokens.keys():
            for kept in (self._last, self._recent, self._percent):
                kept.pop(model, None)

    def percent(self, names: Iterable[str]) -> int | None:
        """Percentage of cached prompt tokens for these names in the latest traffic; None before any."""
        known = [self._percent[name] for name in names if name in self._percent]
        prompt = sum(item[0] for item in known)
        return round(100 * sum(item[1] for item in known) / prompt) if prompt else None
