"""Tail latency against its objective: llm-d's SLO-aware autoscaling on predicted latency.

Source: llm-d-autoscaling pull request 1376 and llm-d's guide "SLO-Aware Autoscaling with KEDA and Predicted
Latency", whose control law and benchmarked values these are: saturation is the worse of P90 time to first
token and P90 time per output token, each over its objective; clamped to 2 and averaged over 45 s. Above an
upper threshold replicas are added in proportion, less what is starting already; below a lower one some go.
The HPA behind it grows by max(100 %, 4) per minute and takes one replica per two minutes.

P90s are those of the last minute. Where a request that arrives now would wait longer than that by the tokens
that are queued and the measured speed of prefill, that prediction counts: it rises before requests are late.
"""

import math
from collections import deque
from statistics import fmean, median
from typing import Final

from warmfleet_contracts.cache.fleet_totals import LatencyHistogram, ModelTotals
from warmfleet_simulator.autoscalers.hpa import SYNC_SECONDS, Behavior, Change, Hpa, by_average
from warmfleet_simulator.autoscalers.lookback import Lookback
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted
from warmfleet_simulator.scaling.objective import Objective

PERCENTILE: Final = 0.9
WINDOW_SECONDS: Final = 60.0
CLAMP: Final = 2.0
SMOOTHING_SECONDS: Final = 45.0
BEHAVIOR: Final = Behavior(
    up=(Change(60, pods=4), Change(60, percent=100)),
    down=(Change(120, pods=1),),
    down_stabilization_seconds=180.0,
)


def desired_replicas(saturation: float, *, replicas: int, ready: int, up: float, down: float) -> int:
    """The control law; `replicas` is what is wanted so far."""
    if saturation > up:
        credit = ready / replicas if 0 < ready < replicas else 1.0
        return replicas + math.ceil(replicas * (saturation * credit / up - 1))
    if saturation < down:
        return replicas - math.floor(replicas * (1 - saturation / down))
    return replicas


def predicted_wait_ms(tick: Tick) -> float:
    """To the first token of a request that arrives now: what is queued before it, and its own prompt.

    Both uncached, and as long as the mean. 0 while no replica knows its speed.
    """
    speeds = [replica.prefill_tokens_per_second for replica in tick.totals.replicas]
    known = [speed for speed in speeds if speed > 0]
    models = tick.totals.models.values()
    requests = sum(sum(model.first_token.counts) for model in models)
    prompts = sum(model.prompt_tokens for model in models)
    if not known or not requests or not prompts:
        return 0.0
    missed = 1 - sum(model.cached_tokens for model in models) / prompts
    queued = missed * sum(model.queued_tokens for model in models)
    queued += sum(replica.queued_uncached_tokens for replica in tick.totals.replicas)
    return 1e3 * (queued / len(speeds) + missed * prompts / requests) / median(known)


class PredictedLatency:
    """Grows above `up_percent` of the objective's times, shrinks below `down_percent`."""

    def __init__(self, objective: Objective, up_percent: float, down_percent: float) -> None:
        self._up, self._down = up_percent / 100, down_percent / 100
        self._objective = objective
        self._hpa = Hpa(BEHAVIOR)
        self._first_tokens = Lookback[tuple[int, ...]](WINDOW_SECONDS)
        self._per_token = Lookback[tuple[int, ...]](WINDOW_SECONDS)
        # There was no traffic before the first request: the source's rule gives 0 for that.
        samples = round(SMOOTHING_SECONDS / SYNC_SECONDS)
        self._saturations = deque([0.0] * samples, maxlen=samples)

    def wanted(self, tick: Tick) -> Wanted:
        """A number per sync period."""
        state, now = tick.replicas, tick.now_seconds
        model = next(iter(tick.totals.models.values()), ModelTotals())
        first = _percentile_ms(self._first_tokens, now, model.first_token)
        between = _percentile_ms(self._per_token, now, model.mean_inter_token)
        if not self._hpa.is_due(now):
            return Wanted(state.spec_replicas)
        saturation = max(
            max(first, predicted_wait_ms(tick)) / self._objective.first_token_milliseconds,
            between / self._objective.between_tokens_milliseconds,
        )
        self._saturations.append(min(saturation, CLAMP))
        desired = desired_replicas(
            fmean(self._saturations),
            replicas=state.spec_replicas,
            ready=state.ready,
            up=self._up,
            down=self._down,
        )
        recommended = by_average(desired, replicas=state.spec_replicas, target=1.0)
        return Wanted(self._hpa.replicas(recommended, replicas=state.spec_replicas, now_seconds=now))


def _percentile_ms(lookback: Lookback[tuple[int, ...]], now: float, histogram: LatencyHistogram) -> float:
    """Of what was counted within the window; 0 without any."""
    counts = histogram.counts
    before = lookback.add(now, counts).value
    risen = tuple(
        count - (before[bucket] if bucket < len(before) else 0) for bucket, count in enumerate(counts)
    )
    return LatencyHistogram(risen).percentile_ms(PERCENTILE) or 0.0
