"""Replicas for the cache: tokens that were computed again because a replica had to evict them.

Only capacity misses count; compulsory, lost and rollout misses are no reason to grow, and placement misses
are the router's. Of n replicas each gets n / (n + k) of its requests when k more share them, as if its cache
were k / n larger: so k more spare the misses of no greater depth, a stretch of the miss ratio curve (Mattson
et al. 1970). They are worth it when computing those takes k replicas their whole time. A k beyond 1 matters
where a set of prompts is read in turns: one more replica spares nothing then until all of it fits (the
look-ahead of utility-based cache partitioning; Qureshi and Patt 2006). The caches must be full, and all this
must last for the policy's time. After a shrink a smaller fleet caches anew first.

Routers that measure no depths report none: nothing is worth a replica then.
"""

from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import CACHE_DEPTHS
from warmfleet_operator.scaling.demand import Ask, Demand
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals

FULL_PERCENT: Final = 85
"""Of the fleet's KV memory, pinned or cached."""
WORTH_REPLICAS: Final = 1.0
"""Of a replica's time, spared by each replica that is added: less than that costs less than a replica."""
MOST_AHEAD: Final = 8
"""Replicas that are looked ahead for together."""


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
    """One more replica for capacity misses that lasted, and none fewer while one more would be worth it."""
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
    if not demand.prefill_rate or 100 * used < FULL_PERCENT * capacity:
        return False
    count, price = len(signals.replicas), WORTH_REPLICAS * demand.prefill_rate * traffic.seconds
    return any(
        traffic.misses.within_depth(more / count) >= more * price
        for more in range(1, min(round(count * CACHE_DEPTHS[-1]), MOST_AHEAD) + 1)
    )
