"""Tokens, misses, refusals and latencies per model since the router's start. Models that are gone go."""

from bisect import bisect_left
from collections.abc import Collection
from typing import Literal, get_args

from warmfleet_contracts.cache.fleet_totals import (
    CACHE_DEPTHS,
    LATENCY_BOUNDS_MS,
    LatencyHistogram,
    MissTokens,
    RefusedRequests,
)
from warmfleet_contracts.cache.kv_events import MAX_COUNT
from warmfleet_router.economics.misses import MissCause, without_last_zeros

QueueBound = Literal["queue_full", "wait", "held_too_long", "tenant_queue"]
"""The bound of the queue for which a request was refused."""


class LatencyCounts:
    """Latencies counted per bucket of `LATENCY_BOUNDS_MS`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)

    def add(self, latency_ms: float, times: int = 1) -> None:
        self._counts[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += times

    @property
    def histogram(self) -> LatencyHistogram:
        """So far, without the empty buckets above the last one that is not."""
        return LatencyHistogram(tuple(_at_most(count) for count in without_last_zeros(self._counts)))


class ModelCount:
    """One model's."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        """Of prompts that workers answered."""
        self.cached_tokens = 0
        self.first_token = LatencyCounts()
        self.inter_token = LatencyCounts()
        self.mean_inter_token = LatencyCounts()
        self.missed_tokens = dict.fromkeys(MissCause, 0)
        self._capacity_depths = [0] * len(CACHE_DEPTHS)
        self._refused: dict[str, int] = dict.fromkeys(get_args(QueueBound), 0)
        self._refused_retries = 0
        self._refused_tokens = 0

    def answered(self, prompt_tokens: int, cached_tokens: int, misses: MissTokens) -> None:
        """A worker reported what it found cached."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        for cause in MissCause:
            self.missed_tokens[cause] += getattr(misses, cause)
        for number, tokens in enumerate(misses.capacity_depths):
            self._capacity_depths[number] += tokens

    def refused_by(self, bound: QueueBound, prompt_tokens: int, *, is_retry: bool) -> None:
        """A request was refused; `is_retry`: its client had sent it before."""
        if is_retry:
            self._refused_retries += 1
            return
        self._refused[bound] += 1
        if bound != "tenant_queue":
            self._refused_tokens += prompt_tokens

    @property
    def refused(self) -> RefusedRequests:
        """So far."""
        return RefusedRequests(
            **{bound: _at_most(count) for bound, count in self._refused.items()},
            retries=_at_most(self._refused_retries),
            tokens=_at_most(self._refused_tokens),
        )

    @property
    def misses(self) -> MissTokens:
        """So far."""
        depths = without_last_zeros(self._capacity_depths)
        return MissTokens(
            **{cause: _at_most(tokens) for cause, tokens in self.missed_tokens.items()},
            capacity_depths=tuple(_at_most(tokens) for tokens in depths),
        )


class ModelCounts:
    """By model name, as requests give it."""

    def __init__(self) -> None:
        self._models: dict[str, ModelCount] = {}

    def of(self, model: str) -> ModelCount:
        """The counts to add to; `model` is one that the fleet serves."""
        if model not in self._models:
            self._models[model] = ModelCount()
        return self._models[model]

    def all(self) -> dict[str, ModelCount]:
        """Those of every model that was asked for."""
        return dict(self._models)

    def keep_models(self, models: Collection[str]) -> None:
        """Drop all others."""
        for model in self._models.keys() - set(models):
            del self._models[model]


def _at_most(count: int) -> int:
    """As it is reported: the operator refuses an answer with a count that is larger, for every model."""
    return min(count, MAX_COUNT)
