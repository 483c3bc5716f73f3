"""The figures of one simulation: what it cost, and what its clients noticed."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from warmfleet_router.economics.misses import MissCause
from warmfleet_simulator.replica.token_gaps import TokenGaps
from warmfleet_simulator.router.outcome import Outcome
from warmfleet_simulator.scaling.bounds import Met
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.scaling.pods import PodCounts, PodSeconds
from warmfleet_simulator.scaling.replica_change import ReplicaChange

PERCENTS: Final = (50, 90, 99)
WINDOW_SECONDS: Final = 60.0
"""Without an objective."""
MISS_CAUSES: Final = tuple(cause.value for cause in MissCause)


class Stopped(StrEnum):
    """The limit that ended a simulation."""

    NO = ""
    MISSED = "missed"
    """Too many requests missed the objective."""
    COST = "cost"
    """Too many replica-seconds."""


class WindowCounts(msgspec.Struct, frozen=True):
    """Requests that arrived within a window."""

    at_seconds: float
    """Since the first arrival."""
    requests: int
    prompt_tokens: int
    met: int
    """Those that met the objective; 0 without one."""


class Percentiles(msgspec.Struct, frozen=True):
    """In milliseconds; None without any value."""

    p50: float | None
    p90: float | None
    p99: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. Times are virtual, but for `wall_seconds`."""

    routing: str
    replicas: int
    """At the beginning."""
    most_replicas: int
    """Pods at any time: pending, ready and draining."""
    replica_seconds: float
    """Of all pods, pending and draining ones among them, from the first arrival to the last answer."""
    pod_seconds: PodSeconds
    """The same by state."""
    stopped: Stopped
    """Which limit ended it before its last answer; then all figures are those until there."""
    objective_percent: float | None
    """Requests that met the service level objective, in percent of all; None without one."""
    requests: int
    met: int
    """Of them those that met the objective; 0 without one."""
    answered: int
    refused: dict[str, int]
    """Requests that the router refused, by code of the error."""
    prompt_tokens: int
    """Of the answered requests."""
    cached_tokens: int
    """Those of them that were found in a KV cache."""
    hit_rate: float
    missed_tokens: dict[str, int]
    """Those that were computed, by why they were not cached (`MissTokens`); empty where no router knows."""
    missed_replica_seconds: dict[str, float]
    """What these cost, at the replica's time per prefill token."""
    output_tokens: int
    first_token_ms: Percentiles
    """From arrival at the router."""
    inter_token_ms: Percentiles
    """Between two tokens of an answer, over all tokens, within one percent."""
    evicted_blocks: int
    steps: int
    virtual_seconds: float
    wall_seconds: float
    timeline: list[PodCounts]
    """Whenever it changed, on the simulation's clock."""
    changes: list[ReplicaChange]
    """Of the number of replicas, with the autoscaler's reasons."""
    first_arrival_seconds: float
    """On that clock."""
    window_seconds: float
    """Of one of `windows`; as long as the objective's peak window."""
    windows: list[WindowCounts]
    """From the first arrival to the last one."""


class Tally:
    """Adds up outcomes as they come; keeps a number per answer."""

    def __init__(self, objective: Objective | None = None) -> None:
        self.met: list[Met] = []
        """Which requests met the objective; empty without one."""
        self.missed = 0
        """How many did not."""
        self.requests = 0
        self._objective = objective
        self.refused: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.missed_tokens: Counter[str] = Counter(dict.fromkeys(MISS_CAUSES, 0))
        self._first_token_seconds = array("d")
        self.window_seconds = WINDOW_SECONDS if objective is None else objective.peak_window_seconds
        self._windows: dict[int, tuple[int, int, int]] = {}

    def add(self, outcome: Outcome) -> None:
        """Count one request that has ended."""
        self.requests += 1
        is_met = self._objective is not None and self._objective.is_met(outcome)
        window = int(outcome.arrival_seconds // self.window_seconds)
        requests, tokens, met = self._windows.get(window, (0, 0, 0))
        self._windows[window] = requests + 1, tokens + outcome.prompt_tokens, met + is_met
        if self._objective is not None:
            self.met.append(Met(outcome.arrival_seconds, outcome.prompt_tokens, is_met))
            self.missed += not is_met
        if outcome.refusal:
            self.refused[outcome.refusal] += 1
            return
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        self.output_tokens += outcome.output_tokens
        for cause in MISS_CAUSES:
            self.missed_tokens[cause] += getattr(outcome.misses, cause)
        self._first_token_seconds.append(outcome.first_token_seconds)

    def windows(self) -> list[WindowCounts]:
        """From the first arrival on, empty ones included."""
        return [
            WindowCounts(number * self.window_seconds, *self._windows.get(number, (0, 0, 0)))
            for number in range(max(self._windows, default=-1) + 1)
        ]

    @property
    def answered(self) -> int:
        return len(self._first_token_seconds)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def objective_percent(self) -> float | None:
        """Share of all requests that met the objective; None without one, or without requests."""
        return 100 * (len(self.met) - self.missed) / len(self.met) if self.met else None

    def first_token_ms(self) -> Percentiles:
        """Exact percentiles of the time to first token."""
        in_order = sorted(self._first_token_seconds)
        return Percentiles(*(_percentile_ms(in_order, percent) for percent in PERCENTS))


def inter_token_ms(gaps: TokenGaps) -> Percentiles:
    """Percentiles of the time between tokens."""
    seconds = (gaps.percentile_seconds(percent) for percent in PERCENTS)
    return Percentiles(*(None if value is None else value * 1e3 for value in seconds))


def _percentile_ms(in_order: Sequence[float], percent: float) -> float | None:
    """The least value that is not below `percent` of them (nearest rank)."""
    if not in_order:
        return None
    return in_order[math.ceil(len(in_order) * percent / 100) - 1] * 1e3
