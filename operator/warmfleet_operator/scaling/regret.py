"""Replicas for the cache: tokens that were computed again because a replica had to evict them.

Only capacity misses count; compulsory, lost and rollout misses are no reason to grow, and placement misses
are the router's. Another replica is worth it when what is recomputed takes at least a replica's whole time,
the caches are full, and both lasted for the policy's time. After a shrink a smaller fleet caches anew first.
"""

from typing import Final

from msgspec.structs import replace

from warmfleet_operator.scaling.demand import Ask, Demand
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals

FULL_PERCENT: Final = 85
"""Of the fleet's KV memory, pinned or cached."""
WORTH_REPLICAS: Final = 1.0
"""Of a replica's time, recomputed: less than that costs less than a replica."""


def miss_percent(signals: FleetSignals) -> int:
    """Capacity misses in percent of prompt tokens."""
    traffic = signals.traffic
    if not traffic.prompt_tokens:
        return 0
    return min(100, 100 * traffic.misses.capacity // traffic.prompt_tokens)


def noticed(
    policy: AutoscalingPolicy,
    memory: ScalingMemory,
    signals: FleetSignals,
    demand: Demand,
    now_seconds: float,
) -> ScalingMemory:
    """The memory with since when capacity misses have been worth a replica."""
    if not policy.capacity_misses_enabled or not _worth(policy, signals, demand):
        return replace(memory, misses_since_seconds=None)
    if memory.misses_since_seconds is None:
        return replace(memory, misses_since_seconds=now_seconds)
    return memory


def asks(policy: AutoscalingPolicy, memory: ScalingMemory, replicas: int, now_seconds: float) -> Ask:
    """One more replica for capacity misses that lasted, and none fewer while there are any."""
    since = memory.misses_since_seconds
    if since is None or replicas <= 0:
        return Ask()
    shrunk = memory.decreased_seconds
    paused = shrunk is not None and now_seconds - shrunk < policy.pause_after_shrink_seconds
    # A replica that was just added has to be filled before its effect shows.
    changed = max(since, memory.changed_seconds if memory.changed_seconds is not None else since)
    if paused or now_seconds - changed < policy.capacity_miss_seconds:
        return Ask(0, 0 if paused else replicas)
    return Ask(replicas + 1, replicas)


def _worth(policy: AutoscalingPolicy, signals: FleetSignals, demand: Demand) -> bool:
    traffic = signals.traffic
    if not traffic.seconds or 100 * traffic.misses.capacity < (
        policy.capacity_miss_percent * traffic.prompt_tokens
    ):
        return False
    capacity = sum(replica.capacity_tokens for replica in signals.replicas)
    used = sum(replica.pinned_tokens + replica.evictable_tokens for replica in signals.replicas)
    if traffic.misses.capacity <= 0 or 100 * used < FULL_PERCENT * capacity:
        return False
    recomputed = traffic.misses.capacity / traffic.seconds
    return demand.prefill_rate <= 0 or recomputed >= WORTH_REPLICAS * demand.prefill_rate
