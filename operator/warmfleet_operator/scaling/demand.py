"""Demand in tokens of KV memory, in sequences, and in compute time; and the replicas that each asks for.

Demand D against supply S per replica (llm-d's WVA 2): more than `up` percent of n * S asks for
ceil(D / (up * S)), and a shrink needs D below `down` percent of what is left. Cached blocks that no sequence
holds are free capacity and no demand.

Requests that routers refuse are demand that no replica holds. What they would take is what the answered ones
take per prompt token, for at most as many tokens again as workers answered: a client that sends a refused
request again without saying so at most doubles a demand.
"""

from dataclasses import dataclass
from statistics import median
from typing import Final

from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_operator.scaling.signals import FleetSignals, Traffic

LEAST_RATE: Final = 0.1
"""Tokens per second: a lower rate is no measurement, and to divide by it gives no finite number."""
MOST_COMPUTE_PERMILLE: Final = 1200
"""Of a replica's time that its work may take by its own measurement, which is a fit and may be off."""
MOST_REFUSED_RATIO: Final = 1.0
"""Of the tokens of prompts that were answered."""
_MOST_REPLICAS: Final = 1000
"""No deployment may have more."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a fleet has to hold and to compute."""

    tokens: int
    """Of KV memory: pinned, and prompts that wait."""
    sequences: int
    """Running or waiting, anywhere."""
    compute_permille: int
    """Arrivals, in 1/1000 of one replica's time; -1: unknown."""
    backlog_tokens: int
    """Prompt tokens that wait to be computed."""
    prefill_rate: float
    """Tokens per second of one replica; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Replicas for one signal: at least `growth`, and a shrink must leave `need`."""

    growth: int = 0
    need: int = 0

    def recommendation(self, replicas: int) -> int:
        """What this signal alone would do with so many."""
        return max(self.growth, min(self.need, replicas))


def demand_of(signals: FleetSignals, ready: int) -> Demand:
    """The demand. Ready replicas without a report count as the mean of the others."""
    known = signals.replicas
    factor = max(ready, len(known)) / len(known) if known else 0.0
    missed = 1.0 - signals.traffic.hit_ratio
    waiting = (signals.queued_tokens + signals.held_tokens) * missed
    backlog = sum(replica.queued_uncached_tokens for replica in known) * factor + waiting
    with_refused = 1.0 + refused_ratio(signals.traffic)
    pinned = sum(replica.pinned_tokens for replica in known) * factor * with_refused
    sequences = sum(replica.running_sequences + replica.waiting_sequences for replica in known) * factor
    sequences *= with_refused
    prefill, decode = rate(known, "prefill_tokens_per_second"), rate(known, "decode_tokens_per_second")
    return Demand(
        tokens=round(pinned + backlog),
        sequences=round(sequences) + signals.waiting_requests,
        compute_permille=_compute_permille(signals, ready, prefill, decode),
        backlog_tokens=round(backlog),
        prefill_rate=prefill,
    )


def refused_ratio(traffic: Traffic) -> float:
    """Prompt tokens of requests that routers refused, per token of those that workers answered."""
    if not traffic.prompt_tokens:
        return 0.0
    return min(traffic.refused_tokens / traffic.prompt_tokens, MOST_REFUSED_RATIO)


def rate(replicas: tuple[ReplicaTotals, ...], field: str) -> float:
    """The median of a measured rate; 0 if no replica has measured it."""
    known = [float(getattr(replica, field)) for replica in replicas]
    return median([value for value in known if value >= LEAST_RATE] or [0.0])


def backlog_permille(demand: Demand, backlog_seconds: float) -> int:
    """Replicas in 1/1000 that compute the backlog within that time."""
    if demand.prefill_rate <= 0:
        return 0
    return round(1000 * demand.backlog_tokens / (demand.prefill_rate * backlog_seconds))


def asked(demand: float, supply: int, up_percent: int, down_percent: int) -> Ask:
    """Replicas for `demand` where one replica takes `supply`; nothing if that is unknown."""
    if supply <= 0 or demand <= 0:
        return Ask()
    growth, need = _ceil(100 * demand, up_percent * supply), _ceil(100 * demand, down_percent * supply)
    return Ask(min(growth, _MOST_REPLICAS), min(need, _MOST_REPLICAS))


def _ceil(dividend: float, divisor: int) -> int:
    return -int(-dividend // divisor)


def _compute_permille(signals: FleetSignals, ready: int, prefill: float, decode: float) -> int:
    """Prompt tokens over the speed of prefill, and generated tokens over that of full decode steps.

    Ready replicas have computed all of them, so that speeds which ask for more of their time are wrong.
    """
    traffic = signals.traffic
    if not traffic.seconds or prefill <= 0:
        return -1
    uncached = max(0, traffic.prompt_tokens - traffic.cached_tokens)
    load = uncached / prefill + (traffic.generated_tokens / decode if decode > 0 else 0.0)
    computed = min(1000 * load / traffic.seconds, MOST_COMPUTE_PERMILLE * max(1, ready))
    return round(computed * (1.0 + refused_ratio(traffic)))
