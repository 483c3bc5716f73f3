"""Token demand against token supply: llm-d's Workload Variant Autoscaler, its saturation analyzer V2.

Source: llm-d-workload-variant-autoscaler, internal/engines/analyzers/saturation_v2/analyzer.go and
docs/developer-guide/saturation-scaling-config.md, v0.9. A replica takes min(k1, k2) tokens: k1 is
`KV_PERCENT` of its KV memory, k2 what it held when its queue was `QUEUE_LENGTH` long (a mean of ten such
moments per class of answer lengths, or estimated before the first). Demand is what replicas hold and what
waits. Every `LOOP_SECONDS` the wanted number follows, and an HPA sets it, with the chart's `behavior`.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from warmfleet_contracts.cache.fleet_totals import ModelTotals, ReplicaTotals
from warmfleet_simulator.autoscalers.hpa import Behavior, Change, Hpa, by_average
from warmfleet_simulator.autoscalers.lookback import Lookback
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted

LOOP_SECONDS: Final = 60.0
"""`GLOBAL_OPT_INTERVAL`."""
AVERAGE_SECONDS: Final = 300.0
"""Lengths of prompts and answers are means of this time."""
KV_PERCENT: Final = 80
"""`kvCacheThreshold`."""
QUEUE_LENGTH: Final = 5
"""`queueLengthThreshold`."""
DOWN_SECONDS: Final = 240.0
"""`hpa.behavior.scaleDown.stabilizationWindowSeconds` of the chart."""
MAX_SAMPLES: Final = 10
BATCHED_TOKENS: Final = 8192
"""vLLM's `max_num_batched_tokens` where it is not set, for the estimate of k2."""
SHORT_ANSWER_TOKENS: Final = 100
LONG_ANSWER_TOKENS: Final = 500


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Means over requests of the last minutes."""

    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    hit_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Need:
    """Tokens that are lacking and spare, of the replicas that there are and will be."""

    replica_tokens: float
    required_tokens: float
    spare_tokens: float

    def replicas(self, wanted: int) -> int:
        """As many as are lacking more, or as many as are spare fewer."""
        if self.replica_tokens <= 0:
            return wanted
        if self.required_tokens > 0:
            return wanted + math.ceil(self.required_tokens / self.replica_tokens)
        return max(wanted - math.floor(self.spare_tokens / self.replica_tokens), 1)


def estimated_tokens(shape: RequestShape, *, batched_tokens: int, seats: int) -> float:
    """k2 without any measurement: N = min(B * O / (I + O), S) sequences of I + O / 2 tokens; 0: unknown."""
    prompt, answer = shape.prompt_tokens, shape.answer_tokens
    if answer <= 0:
        return 0.0
    return min(batched_tokens * answer / (prompt + answer), seats) * (prompt + answer / 2)


class ComputeCapacity:
    """What replicas held when work waited (k2), by how long answers were."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[int]] = {}

    def tokens(self, replica: ReplicaTotals, shape: RequestShape) -> float:
        """k2 of one replica now; the memory's capacity if nothing is known."""
        bounds = (SHORT_ANSWER_TOKENS, LONG_ANSWER_TOKENS)
        samples = self._samples.setdefault(
            sum(shape.answer_tokens >= bound for bound in bounds), deque(maxlen=MAX_SAMPLES)
        )
        if replica.waiting_sequences >= QUEUE_LENGTH and replica.pinned_tokens:
            samples.append(replica.pinned_tokens)
            return replica.pinned_tokens
        if samples:
            return fmean(samples)
        estimate = estimated_tokens(shape, batched_tokens=BATCHED_TOKENS, seats=replica.seats)
        return estimate or replica.capacity_tokens


def needed(
    replicas: Sequence[ReplicaTotals],
    capacity: ComputeCapacity,
    shape: RequestShape,
    *,
    queued_demand_tokens: float,
    ready: int,
    pending: int,
    up_percent: float,
    down_percent: float,
) -> Need:
    """What `replicas`, those that report, lack or have to spare."""
    tokens = [
        min(KV_PERCENT * replica.capacity_tokens / 100, capacity.tokens(replica, shape))
        for replica in replicas
    ]
    each = median(tokens) if tokens else 0.0
    demand = queued_demand_tokens + sum(
        replica.pinned_tokens + replica.waiting_sequences * shape.prompt_tokens for replica in replicas
    )
    return Need(
        replica_tokens=each,
        required_tokens=max(100 * demand / up_percent - (ready + pending) * each, 0.0),
        spare_tokens=max(ready * each - 100 * demand / down_percent, 0.0),
    )


def queued_demand(models: Iterable[ModelTotals], shape: RequestShape) -> float:
    """Tokens of requests that wait in the router: their prompts but for hits, and their answers."""
    queued, tokens = 0, 0
    for model in models:
        queued += model.queued_requests + model.held_requests
        tokens += model.queued_tokens + model.held_tokens
    prompts = max(float(tokens), queued * shape.prompt_tokens)
    return prompts * (1 - shape.hit_ratio) + queued * shape.answer_tokens


class TokenSupply:
    """Grows above `up_percent` of the supply, shrinks below `up_percent` - 15.

    `up_seconds` is the HPA's stabilization window for growth; the chart's 240 s are that for a shrink.
    """

    DOWN_BELOW: Final = 15
    """Points between `scaleUpThreshold` 0.85 and `scaleDownBoundary` 0.70."""

    def __init__(self, up_percent: float, up_seconds: float) -> None:
        change = (Change(150, pods=10),)
        self._up_percent = up_percent
        self._hpa = Hpa(Behavior(change, change, up_seconds, DOWN_SECONDS))
        self._capacity = ComputeCapacity()
        self._counters = Lookback[tuple[int, int, int, int]](AVERAGE_SECONDS)
        self._next_loop = 0.0
        self._desired = 0

    def wanted(self, tick: Tick) -> Wanted:
        """A number per sync period, of the last loop's analysis."""
        state, now = tick.replicas, tick.now_seconds
        models = tuple(tick.totals.models.values())
        shape = self._shape(now, models)
        if now >= self._next_loop:
            self._next_loop = now + LOOP_SECONDS
            need = needed(
                [replica for replica in tick.totals.replicas if replica.capacity_tokens],
                self._capacity,
                shape,
                queued_demand_tokens=queued_demand(models, shape),
                ready=state.ready,
                pending=state.pending,
                up_percent=self._up_percent,
                down_percent=self._up_percent - self.DOWN_BELOW,
            )
            self._desired = need.replicas(state.spec_replicas)
        if not self._hpa.is_due(now):
            return Wanted(state.spec_replicas)
        recommended = by_average(self._desired, replicas=state.spec_replicas, target=1.0)
        return Wanted(self._hpa.replicas(recommended, replicas=state.spec_replicas, now_seconds=now))

    def _shape(self, now: float, models: Sequence[ModelTotals]) -> RequestShape:
        counters = (
            sum(sum(model.first_token.counts) for model in models),
            sum(model.prompt_tokens for model in models),
            sum(model.cached_tokens for model in models),
            sum(sum(model.inter_token.counts) for model in models),
        )
        earlier = self._counters.add(now, counters).value
        requests, prompts, cached, generated = (new - old for new, old in zip(counters, earlier, strict=True))
        if not requests:
            return RequestShape()
        return RequestShape(prompts / requests, generated / requests, cached / prompts if prompts else 0.0)
