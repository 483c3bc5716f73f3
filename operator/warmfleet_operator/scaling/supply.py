"""What one replica takes: tokens of KV memory, sequences, and compute time; learnt where work waits.

A replica whose queue waits although there are seats shows how many tokens it really takes (k2 of llm-d's
WVA 2), if what waits is larger than what is free: a prompt that would fit waits for the steps before it, and
so for compute. The median of such samples counts, as one long prompt at the head of a queue shows less than
what fits. Work that waits at every replica for half a minute shows how much they really compute, by the
median of ten samples at most.
"""

from dataclasses import dataclass
from statistics import median
from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_operator.scaling.demand import MOST_COMPUTE_PERMILLE, Demand, refused_ratio
from warmfleet_operator.scaling.entries import MAX_SAMPLES, median_of, with_sample
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.signals import TRAFFIC_SECONDS, FleetSignals

USABLE_PERCENT: Final = 95
"""Of the KV memory; a full pool preempts."""
LEAST_PERCENT: Final = 50
"""Of the KV memory: below it a queue waits for a step, and not for memory."""
BUSY_SECONDS: Final = 2.0
"""Every replica has at least so much prefill waiting: then what they compute is all they can."""
LEAST_COMPUTE_PERMILLE: Final = 400


@dataclass(frozen=True, slots=True)
class Supply:
    """Of one replica; 0: unknown.

    Panic, what is remembered of a demand and the load that latencies are compared with follow from it, too: a
    limit of growth alone is an `Ask` of its own.
    """

    tokens: int
    sequences: int
    compute_permille: int
    """Of its measured speed: 1000 until it is known better."""


def learnt(memory: ScalingMemory, signals: FleetSignals, demand: Demand, now_seconds: float) -> ScalingMemory:
    """The memory with this tick's samples."""
    full = [replica.pinned_tokens for replica in signals.replicas if _waits_for_memory(replica)]
    if full:
        held = round(median(full))
        known = with_sample(memory.supply_samples, now_seconds, held, pause_seconds=TRAFFIC_SECONDS)
        memory = replace(memory, supply_samples=known)
    if signals.replicas:
        memory = replace(
            memory,
            supply_tokens=_tokens(median_of(memory.supply_samples, now_seconds), signals.replicas),
            supply_sequences=_seats(signals.replicas),
        )
    if not _computes_all_it_can(signals, demand):
        return replace(memory, busy_since_seconds=None)
    since = memory.busy_since_seconds
    if since is None:
        return replace(memory, busy_since_seconds=now_seconds)
    if now_seconds - since < TRAFFIC_SECONDS:
        return memory
    computed_permille = demand.compute_permille / (1.0 + refused_ratio(signals.traffic))
    sample = round(computed_permille / len(signals.replicas))
    bounded = min(max(sample, LEAST_COMPUTE_PERMILLE), MOST_COMPUTE_PERMILLE)
    computed = (*memory.compute_samples, bounded)[-MAX_SAMPLES:]
    return replace(memory, compute_samples=computed, busy_since_seconds=now_seconds)


def supply_of(memory: ScalingMemory) -> Supply:
    """The supply of one replica, by what `learnt` has learnt; while a fleet sleeps that of its last one."""
    return Supply(
        tokens=memory.supply_tokens,
        sequences=memory.supply_sequences,
        compute_permille=round(median(memory.compute_samples)) if memory.compute_samples else 1000,
    )


def _seats(replicas: tuple[ReplicaTotals, ...]) -> int:
    seats = [replica.seats for replica in replicas if replica.seats]
    return round(median(seats)) if seats else 0


def _tokens(held: int | None, replicas: tuple[ReplicaTotals, ...]) -> int:
    """By what replicas held while their queues waited for memory, if it is known."""
    capacity = round(median(replica.capacity_tokens for replica in replicas))
    usable = capacity * USABLE_PERCENT // 100
    return usable if held is None else min(usable, max(capacity * LEAST_PERCENT // 100, held))


def _waits_for_memory(replica: ReplicaTotals) -> bool:
    if not replica.waiting_sequences or not 0 < replica.running_sequences < replica.seats:
        return False
    # What waits is about as large as what runs, or as the prompts that are not computed yet.
    waiting_tokens = max(
        replica.pinned_tokens / replica.running_sequences,
        replica.queued_uncached_tokens / replica.waiting_sequences,
    )
    free_tokens = replica.capacity_tokens - replica.pinned_tokens
    full_enough = 100 * replica.pinned_tokens >= LEAST_PERCENT * replica.capacity_tokens
    return full_enough and waiting_tokens > free_tokens


def _computes_all_it_can(signals: FleetSignals, demand: Demand) -> bool:
    busy = demand.prefill_rate * BUSY_SECONDS
    return (
        signals.complete
        and bool(signals.replicas)
        and demand.compute_permille > 0
        and all(replica.queued_uncached_tokens >= busy for replica in signals.replicas)
    )
