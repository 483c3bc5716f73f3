"""Replicas for the cache: tokens that were computed again because a replica had to evict them.

Only capacity misses count; compulsory, lost and rollout misses are no reason to grow, and placement misses
are the router's. Of n replicas each gets n / (n + k) of its requests when k more share them, as if its cache
were k / n larger: so k more spare the misses of no greater depth, a stretch of the miss ratio curve (Mattson
et al. 1970). A k beyond 1 matters where a set of prompts is read in turns: one more replica spares nothing
then until all of it fits (the look-ahead of utility-based cache partitioning; Qureshi and Patt 2006).

Tokens that are not computed again save two things, and each has its price. Compute: k replicas are paid for
by k replicas' time. And time to the first token: a target for it is how long it may be, and
within that a shorter one is worth nothing more; without one `percent` is the user's word, and a replica is
worth that share of the prompt tokens that a replica is sent, however low their rate.

The caches must be full, and all this must last for the policy's time. After a shrink a smaller fleet caches
anew first. A growth takes its own reason away, so it is remembered: it is kept for as long as others
(`outgrown`), by the rate of requests.

Routers that measure no depths report none: nothing is worth a replica then.
"""

from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import CACHE_DEPTHS
from warmfleet_operator.scaling.demand import Ask, Demand
from warmfleet_operator.scaling.memory import GrownForCache, ScalingMemory
from warmfleet_operator.scaling.outgrown import hold_seconds
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals
from warmfleet_operator.scaling.ticks import idle_seconds

FULL_PERCENT: Final = 85
"""Of the fleet's KV memory, pinned or cached."""
WORTH_REPLICAS: Final = 1.0
"""Of a replica's time, spared by each replica that is added: then it costs nothing."""
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


def grown(
    policy: AutoscalingPolicy, memory: ScalingMemory, replicas: int, now_seconds: float
) -> ScalingMemory:
    """The memory with a growth to so many replicas for capacity misses."""
    means = memory.means
    return replace(
        memory,
        grown_for_cache=GrownForCache(
            until_seconds=now_seconds + hold_seconds(policy, memory),
            replicas=replicas,
            least_requests_per_second=means.requests_per_second * means.lowest_ratio if means else 0.0,
        ),
    )


def asks(policy: AutoscalingPolicy, memory: ScalingMemory, replicas: int, now_seconds: float) -> Ask:
    """One more replica for capacity misses that lasted, and none fewer while one more would be worth it."""
    kept = _kept_replicas(policy, memory, now_seconds)
    since = memory.misses_since_seconds
    if since is None or replicas <= 0:
        return Ask(0, kept)
    shrunk = memory.decreased_seconds
    paused = shrunk is not None and now_seconds - shrunk < policy.pause_after_shrink_seconds
    # A replica that was just added has to be filled before its effect shows.
    changed = max(since, memory.changed_seconds if memory.changed_seconds is not None else since)
    if paused or now_seconds - changed < policy.capacity_miss_seconds:
        return Ask(0, kept if paused else max(replicas, kept))
    return Ask(replicas + 1, max(replicas, kept))


def _kept_replicas(policy: AutoscalingPolicy, memory: ScalingMemory, now_seconds: float) -> int:
    """What the last growth for capacity misses still keeps; nothing for a fleet without requests."""
    last, means = memory.grown_for_cache, memory.means
    if not policy.capacity_misses_enabled or last is None or now_seconds >= last.until_seconds:
        return 0
    if idle_seconds(memory, now_seconds) >= policy.down_stabilization_seconds:
        return 0
    if means is None:
        return last.replicas
    highest = means.requests_per_second * means.highest_ratio
    return last.replicas if highest >= last.least_requests_per_second else 0


def _worth(policy: AutoscalingPolicy, signals: FleetSignals, demand: Demand) -> bool:
    traffic = signals.traffic
    if not traffic.seconds or 100 * traffic.misses.capacity < (
        policy.capacity_miss_percent * traffic.prompt_tokens
    ):
        return False
    capacity = sum(replica.capacity_tokens for replica in signals.replicas)
    used = sum(replica.pinned_tokens + replica.evictable_tokens for replica in signals.replicas)
    if not signals.replicas or 100 * used < FULL_PERCENT * capacity:
        return False
    count, price = len(signals.replicas), _price_tokens(policy, signals, demand)
    return price > 0 and any(
        traffic.misses.within_depth(more / count) >= more * price
        for more in range(1, min(round(count * CACHE_DEPTHS[-1]), MOST_AHEAD) + 1)
    )


def _price_tokens(policy: AutoscalingPolicy, signals: FleetSignals, demand: Demand) -> float:
    """Tokens that each replica must spare within the time of `signals.traffic`; 0: not known."""
    traffic = signals.traffic
    compute = WORTH_REPLICAS * demand.prefill_rate * traffic.seconds
    if policy.first_token is not None:
        return compute
    stated = policy.capacity_miss_percent * traffic.prompt_tokens / (100 * len(signals.replicas))
    return min(compute, stated) if compute else stated
